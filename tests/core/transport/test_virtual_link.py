"""The virtual network does what it says, the same every time, and notices a hang."""

from __future__ import annotations

import numpy as np
import pytest
from transfers import Transfer
from virtual_link import Datagram, Faults, Port, StuckError, VirtualLink, joined

from shoal.transport.endpoint import TransportConfig
from shoal.transport.tables import Counter


def busy_link(faults: Faults, seed: int = 1) -> VirtualLink:
    """Send one message of 2,000 segments' worth of traffic both ways, and return the link."""
    link, _ = joined(2, TransportConfig(segment_bytes=16), faults=faults, seed=seed)
    for source in (0, 1):
        for number in range(3):
            values = np.ones(4 * 700, np.float32)
            Transfer(link, source, 1 - source, values, iteration=number).post()
    link.run()
    return link


@pytest.mark.parametrize(
    ("fault", "counted"),
    [
        ("loss", "lost"),
        ("duplication", "duplicated"),
        ("reordering", "reordered"),
        ("corruption", "corrupted"),
        ("truncation", "truncated"),
        ("marks", "marked"),
    ],
)
def test_each_fault_is_injected_as_often_as_asked(fault: str, counted: str) -> None:
    link = busy_link(Faults(**{fault: 0.2}))
    assert link.counts["sent"] > 4_000
    assert 0.17 < link.counts[counted] / link.counts["sent"] < 0.23
    others = {"lost", "duplicated", "reordered", "corrupted", "truncated", "marked"} - {counted}
    assert not any(link.counts[other] for other in others)


@pytest.mark.long
def test_truncated_datagrams_and_marks_are_noticed() -> None:
    link = busy_link(Faults(truncation=0.1))
    found = sum(each.counts()[Counter.TRUNCATED] for each in link.endpoints)
    assert found == link.counts["truncated"] > 0
    link = busy_link(Faults(marks=0.1))
    marked = sum(int(each.state.peers["marked"].sum()) for each in link.endpoints)
    assert marked == sum(link.counts[f"data marked {pair}"] for pair in ("0-1", "1-0")) > 0


def test_refusals_are_counted_as_the_pump_counts_them() -> None:
    link = busy_link(Faults(refusal=0.2))
    refused = sum(each.counts()[Counter.REFUSED] for each in link.endpoints)
    assert refused == sum(link.counts[f"data refused {pair}"] for pair in ("0-1", "1-0")) > 500


@pytest.mark.long
def test_the_same_seed_gives_the_same_run_and_another_another() -> None:
    faults = Faults(loss=0.1, duplication=0.1, reordering=0.3, host_delay_us=100)
    first, second, other = (busy_link(faults, seed) for seed in (5, 5, 6))
    assert (first.now, first.counts) == (second.now, second.counts)
    assert first.counts != other.counts


def test_a_port_takes_time_has_a_limit_and_marks() -> None:
    port = Port(bytes_per_us=1.0, room_bytes=2_000, mark_bytes=500)
    link, _ = joined(2, TransportConfig(segment_bytes=64), port=port)
    transfer = Transfer(link, 0, 1, np.ones(16 * 100, np.float32))
    transfer.post()
    link.run()
    assert link.now > 100 * 96
    assert link.counts["overrun"] > 0
    assert link.counts["marked"] > 0


def test_a_link_that_carries_nothing_is_a_failure_with_the_state_of_everyone() -> None:
    link, _ = joined(2, faults=Faults(loss=1.0), limit_us=1_000_000)
    Transfer(link, 0, 1, np.ones(100, np.float32)).post()
    with pytest.raises(StuckError, match=r"(?s)Time is up.*rank 0.*unready.*rank 1.*expected"):
        link.run()


def test_an_operation_that_nobody_answers_is_a_failure_too() -> None:
    link, _ = joined(2, limit_us=1_000_000)
    Transfer(link, 0, 1, np.ones(100, np.float32)).post_sender()
    with pytest.raises(StuckError, match="Nothing more will happen"):
        link.run()


def test_dropped_and_watched_datagrams_are_seen_before_the_dice_are_thrown() -> None:
    seen: list[Datagram] = []
    link, _ = joined(2, drop=lambda each: each.is_data and each.sent_at < 1_000, watch=seen.append)
    transfer = Transfer(link, 0, 1, np.ones(100, np.float32))
    transfer.post()
    link.run()
    assert link.counts["dropped"] == sum(each.is_data and each.sent_at < 1_000 for each in seen) > 0
    assert len(seen) == link.counts["sent"]
