"""The wire format, byte by byte: what is written, and what bytes written by hand do.

The vectors are those of `docs/wire-format.md`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from by_hand import CLOCK, agreement, feedback, header, ready, written
from hypothesis import given
from hypothesis import strategies as st
from transfers import Transfer
from virtual_link import VirtualLink, joined, tag

from shoal.transport.endpoint import TransportConfig
from shoal.transport.tables import ASKING, DONE, Counter
from shoal.transport.wire import (
    FEEDBACK_BYTES,
    HEADER_BYTES,
    LARGEST_SEGMENT,
    REPORT,
    segment_bytes_for,
    unwrap,
)

HELD_FOR_EVER = 0xFFFFFFFF

READY_1_TO_0 = bytes.fromhex(
    "12 00 1800 00 01a55e 00000000 04030201 07000000 01000000 0000 0100 3f4c41e2"
    "00000000 00000000 00000000 02000000 00000000 ffffffff"
)
DATA_0_TO_1 = bytes.fromhex(
    "11 02 1000 01 00a55e 00000000 04030201 07000000 01000000 0000 0000 00000000"
    "0000803f 00000040 00004040 00008040"
)
LAST_0_TO_1 = bytes.fromhex(
    "11 03 0400 01 00a55e 01000000 04030201 07000000 01000000 0000 0000 10000000 0000a040"
)
PARITY_0_TO_1 = bytes.fromhex(
    "11 23 1000 01 00a55e 02000000 04030201 07000000 01000000 0000 0000 00000080"
    "0000207f 00000040 00004040 00008040"
)
PROBE_0_TO_1 = bytes.fromhex(
    "13 00 1800 01 00a55e 02000000 04030201 07000000 01000000 0000 0000 00000000"
    "00000000 00000000 00000000 00000000 00000000 ffffffff"
)
BITMAP_1_TO_0 = bytes.fromhex(
    "14 00 2000 00 01a55e 00000000 04030201 07000000 01000000 0000 0100 00000000"
    "02000000 01000000 00000000 03000000 04030201 00000000 0100000000000000"
)
STOP_1_TO_0 = bytes.fromhex(
    "15 00 1800 00 01a55e 00000000 04030201 07000000 01000000 0000 0100 00000000"
    "02000000 02000000 00000000 02000000 04030201 00000000"
)
STOP_WITH_HOLES_1_TO_0 = bytes.fromhex(
    "15 00 2000 00 01a55e 00000000 04030201 07000000 01000000 0000 0100 00000000"
    "01000000 01000000 00000000 02000000 04030201 00000000 0200000000000000"
)
FEEDBACK_1_TO_0 = bytes.fromhex(
    "16 00 1800 00 01a55e 00000000 04030201 00000000 00000000 0000 0100 00000000"
    "01000000 01000000 01000000 02000000 04030201 00000000"
)
CREDIT_PROBE_0_TO_1 = bytes.fromhex(
    "17 00 1800 01 00a55e 01000000 04030201 07000000 01000000 0000 0000 00000000"
    "00000000 00000000 00000000 00000000 00000000 ffffffff"
)
MISFIT_1_TO_0 = bytes.fromhex(
    "18 00 1800 00 01a55e 00000000 04030201 07000000 01000000 0000 0100 03331f5b"
    "00000000 00000000 00000000 02000000 00000000 ffffffff"
)
VECTORS = {
    "READY": READY_1_TO_0,
    "DATA": DATA_0_TO_1,
    "DATA, the last of its pass": LAST_0_TO_1,
    "DATA, the parity of both if there is one": PARITY_0_TO_1,
    "PROBE": PROBE_0_TO_1,
    "BITMAP": BITMAP_1_TO_0,
    "STOP": STOP_1_TO_0,
    "STOP with a bitmap": STOP_WITH_HOLES_1_TO_0,
    "FEEDBACK": FEEDBACK_1_TO_0,
    "CREDIT_PROBE": CREDIT_PROBE_0_TO_1,
    "MISFIT": MISFIT_1_TO_0,
}


def five_floats(loss_bound: float = 0.0) -> tuple[VirtualLink, Transfer]:
    """Two hosts between which 1.0, 2.0, ... 5.0 go in two segments; clocks agree."""
    link, _ = joined(2, TransportConfig(segment_bytes=16, stop_early=True))
    link.offsets = [CLOCK - 1] * 2
    values = np.arange(1, 6, dtype=np.float32)
    return link, Transfer(link, 0, 1, values, loss_bound=loss_bound, keeps_missing=True)


def posted(loss_bound: float = 0.0) -> tuple[VirtualLink, Transfer]:
    """Both ends have posted, and the receiver's READY has been written but not delivered."""
    link, transfer = five_floats(loss_bound)
    transfer.post_sender()
    transfer.post_receiver()
    assert written(link.endpoints[1]) == [READY_1_TO_0]
    return link, transfer


def test_the_documentation_has_these_vectors() -> None:
    text = (Path(__file__).parents[3] / "docs" / "wire-format.md").read_text()
    for name, vector in VECTORS.items():
        rows = [vector[at : at + 16].hex(" ", 4) for at in range(0, len(vector), 16)]
        assert "\n".join(rows) in text, name


def test_sizes() -> None:
    assert (HEADER_BYTES, FEEDBACK_BYTES) == (32, 24)
    assert segment_bytes_for(1500) == 1440
    assert segment_bytes_for(1500, ipv6=True) == 1408
    assert segment_bytes_for(9000) == 8928
    assert segment_bytes_for(65535) == LARGEST_SEGMENT == 65472
    assert segment_bytes_for(20) == 16


def test_ready_and_data_are_written_so() -> None:
    link, _ = posted()
    assert written(link.endpoints[0]) == []
    link.hand(0, READY_1_TO_0)
    assert written(link.endpoints[0]) == [DATA_0_TO_1, LAST_0_TO_1]


def test_data_is_read_so() -> None:
    link, transfer = posted()
    link.hand(1, DATA_0_TO_1)
    assert transfer.received.tolist() == [1, 2, 3, 4, 0]
    assert written(link.endpoints[1]) == []
    link.hand(1, LAST_0_TO_1)
    assert transfer.received.tolist() == [1, 2, 3, 4, 5]
    assert written(link.endpoints[1]) == [STOP_1_TO_0]
    assert link.slots[1] == dict.fromkeys(link.endpoints[1].finished(), transfer.receiver_ticket)


def test_parity_is_written_and_read_so() -> None:
    link, transfer = posted()
    link.hand(0, READY_1_TO_0)
    peer = link.endpoints[0].state.peers[1]
    peer["losses"], peer["smoothed_rtt"], peer["granted"] = 256 << 16 | 66, 1e6, 3
    first, _, parity, _ = written(link.endpoints[0])
    assert first == DATA_0_TO_1[:1] + b"\x22" + DATA_0_TO_1[2:]
    assert parity == PARITY_0_TO_1
    link.hand(1, first)
    link.hand(1, parity)
    assert transfer.received.tolist() == [1, 2, 3, 4, 5]


def test_probe_is_written_so() -> None:
    link, _ = posted()
    link.hand(0, READY_1_TO_0)
    written(link.endpoints[0])
    assert written(link.endpoints[0], now=10_000_000) == [PROBE_0_TO_1]


def test_last_packet_and_probe_are_answered_with_a_bitmap() -> None:
    for question in (LAST_0_TO_1, PROBE_0_TO_1):
        link, _ = posted()
        if question is PROBE_0_TO_1:
            link.hand(1, LAST_0_TO_1[:1] + b"\x02" + LAST_0_TO_1[2:])
            written(link.endpoints[1])
        link.hand(1, question)
        assert written(link.endpoints[1]) == [BITMAP_1_TO_0]


def test_bitmap_is_read_so() -> None:
    link, _ = posted()
    link.hand(0, READY_1_TO_0)
    written(link.endpoints[0])
    link.hand(0, BITMAP_1_TO_0)
    again = bytes.fromhex("11 07") + DATA_0_TO_1[2:8] + bytes.fromhex("02000000") + DATA_0_TO_1[12:]
    probe = PROBE_0_TO_1[:8] + bytes.fromhex("03000000") + PROBE_0_TO_1[12:]
    assert written(link.endpoints[0]) == [again, probe]  # after a loss, questions are asked twice


def test_stop_at_the_bound_says_what_is_missing() -> None:
    link, transfer = posted(loss_bound=0.2)
    link.hand(0, READY_1_TO_0)
    written(link.endpoints[0])
    link.hand(1, DATA_0_TO_1)
    assert written(link.endpoints[1]) == [STOP_WITH_HOLES_1_TO_0]
    link.hand(0, STOP_WITH_HOLES_1_TO_0)
    assert transfer.sending.outgoing["state"][0] == DONE
    assert transfer.missing().tolist() == [False, True]


def test_stop_is_read_so() -> None:
    link, transfer = posted()
    link.hand(0, READY_1_TO_0)
    written(link.endpoints[0])
    assert transfer.sending.outgoing["state"][0] == ASKING
    link.hand(0, STOP_1_TO_0)
    assert transfer.sending.outgoing["state"][0] == DONE
    assert not transfer.missing().any()
    assert link.slots[0] == dict.fromkeys(link.endpoints[0].finished(), transfer.sender_ticket)


def test_a_congestion_mark_is_counted_and_nothing_is_sent_for_it() -> None:
    link, _ = posted()
    link.hand(1, DATA_0_TO_1, tos=3)
    assert written(link.endpoints[1]) == []
    assert link.endpoints[1].state.peers["marked"][0] == 1


def test_a_report_is_given_when_it_is_asked_for() -> None:
    link, _ = posted()
    asking = bytearray(DATA_0_TO_1)
    asking[1] |= REPORT
    link.hand(1, bytes(asking), tos=3)
    assert written(link.endpoints[1]) == [FEEDBACK_1_TO_0]
    link.hand(0, FEEDBACK_1_TO_0)
    peer = link.endpoints[0].state.peers[1]
    # the block speaks of a packet that has not been sent: only its grant is believed
    assert peer["granted"] == 2
    assert link.endpoints[0].counts(1)[Counter.MISPLACED] == 1


def test_feedback_is_read_so() -> None:
    link, _ = posted()
    link.hand(0, READY_1_TO_0)
    written(link.endpoints[0])
    link.hand(0, FEEDBACK_1_TO_0, arrived=101)
    peer = link.endpoints[0].state.peers[1]
    names = ("reported_highest", "reported_received", "reported_marked", "granted")
    assert [int(peer[name]) for name in names] == [1, 1, 1, 2]
    assert peer["smoothed_rtt"] == 100


def test_misfit_is_written_and_read_so() -> None:
    """Rank 0 is READY for six floats where rank 1 has five to send; here both send and receive."""
    link, transfer = five_floats()
    back = Transfer(link, 1, 0, np.zeros(5, np.float32), stream=8)
    transfer.post_receiver()
    back.post_sender()
    written(link.endpoints[1])
    other = ready(24, session=tag(0, 1), stream=8)
    link.hand(1, other + feedback(grant=2, held=HELD_FOR_EVER))
    (answer,) = written(link.endpoints[1])
    assert answer[:16] == MISFIT_1_TO_0[:16]
    assert answer[16:32] == header(8, stream=8, source=1, offset=agreement(24))[16:]


def test_credit_probe_is_written_and_read_so() -> None:
    link, _ = posted()
    link.hand(0, READY_1_TO_0[:44] + bytes.fromhex("01000000") + READY_1_TO_0[48:])
    assert written(link.endpoints[0]) == [DATA_0_TO_1]
    assert written(link.endpoints[0], now=10_000_000) == [CREDIT_PROBE_0_TO_1]
    link.hand(1, CREDIT_PROBE_0_TO_1)
    (answer,) = written(link.endpoints[1])
    assert answer[0] == 0x16
    assert answer[32:36] == bytes.fromhex("01000000")
    assert answer[44:48] == bytes.fromhex("03000000")  # one number more: one was lost


def test_headers_made_by_fields_are_the_vectors() -> None:
    to_1, to_0 = tag(0, 1), tag(1, 0)
    assert header(1, flags=2, length=16, session=to_1) == DATA_0_TO_1[:32]
    assert ready(20, session=to_0, source=1) + feedback(grant=2, held=HELD_FOR_EVER) == READY_1_TO_0


@given(
    reference=st.integers(0, 1 << 62),
    difference=st.integers(-(1 << 31), (1 << 31) - 1),
)
def test_unwrap_finds_the_nearest(reference: int, difference: int) -> None:
    number = reference + difference
    assert unwrap(reference, number & 0xFFFFFFFF) == number


@pytest.mark.parametrize("mtu", [576, 1280, 1500, 4000, 9000, 65535])
def test_segments_hold_whole_elements_and_packets_fit_the_mtu(mtu: int) -> None:
    for ipv6 in (False, True):
        segment = segment_bytes_for(mtu, ipv6=ipv6)
        assert segment % 16 == 0
        assert segment + HEADER_BYTES + (48 if ipv6 else 28) <= mtu
