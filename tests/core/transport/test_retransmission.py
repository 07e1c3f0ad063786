"""Selective retransmission: what is sent again is what was lost, and nothing else."""

from __future__ import annotations

from collections import Counter as Bag

import numpy as np
import pytest
from by_hand import feedback, header, ready, written
from hypothesis import example, given, settings
from hypothesis import strategies as st
from link_state import check_consistency
from transfers import Transfer
from virtual_link import Datagram, Faults, VirtualLink, joined, tag

from shoal.transport import wire
from shoal.transport.endpoint import TransportConfig
from shoal.transport.tables import ADD, ASKING, SENDING, Counter
from thoroughness import examples


def count_segments(link: VirtualLink, segment_bytes: int) -> tuple[Bag[int], Bag[int]]:
    """Return bags that will hold how often each segment is sent, and lost."""
    sent, lost = Bag[int](), Bag[int]()
    previous = link.drop

    def note(datagram: Datagram) -> bool:
        if not datagram.is_data:
            return previous is not None and previous(datagram)
        segment = int(datagram.header["offset"]) // segment_bytes
        sent[segment] += 1
        again = bool(datagram.header["flags"] & wire.AGAIN)
        assert again == (sent[segment] > 1)
        if previous is not None and previous(datagram):
            lost[segment] += 1
            return True
        return False

    link.drop = note
    return sent, lost


@given(
    seed=st.integers(0, 1 << 30),
    loss=st.floats(0, 0.5),
    control_loss=st.floats(0, 0.5),
    delay_us=st.sampled_from([1, 50, 3_000, 30_000]),
    segments=st.integers(1, 150),
    duplication=st.sampled_from([0.0, 0.3]),
    budget=st.sampled_from([3, 20, 512]),
)
@example(  # the sender asks several times before the first answer can come
    seed=1,
    loss=0.3,
    control_loss=0.0,
    delay_us=30_000,
    segments=60,
    duplication=0.0,
    budget=512,
)
@settings(max_examples=examples(150))
def test_each_segment_is_sent_once_and_once_more_for_every_loss(
    seed: int,
    loss: float,
    control_loss: float,
    delay_us: int,
    segments: int,
    duplication: float,
    budget: int,
) -> None:
    faults = Faults(delay_us=delay_us, duplication=duplication)
    config = TransportConfig(segment_bytes=16, budget_packets=budget, parity=False)
    link, (sender, receiver) = joined(2, config, faults=faults, seed=seed, limit_us=600_000_000)
    link.drop = lambda each: link.random.random() < (loss if each.is_data else control_loss)
    sent, lost = count_segments(link, 16)
    transfer = Transfer(link, 0, 1, np.arange(4 * segments, dtype=np.float32), mode=ADD)
    transfer.post()
    link.run()
    transfer.check_places()
    assert sent == Bag({segment: 1 + lost[segment] for segment in range(segments)})
    assert sender.counts(1)[Counter.SENT_AGAIN] == lost.total()
    assert receiver.counts(0)[Counter.REPEATED] == 0


@pytest.mark.parametrize("seed", range(5))
def test_with_a_bound_nothing_is_sent_again_that_has_arrived(seed: int) -> None:
    link, _ = joined(2, TransportConfig(segment_bytes=16), seed=seed)
    link.drop = lambda each: link.random.random() < 0.5
    sent, lost = count_segments(link, 16)
    transfer = Transfer(link, 0, 1, np.ones(4 * 200, np.float32), loss_bound=0.1)
    transfer.post()
    link.run()
    assert all(sent[segment] <= 1 + lost[segment] for segment in range(200))
    assert lost.total() > 50


def test_important_segments_go_first_and_first_again() -> None:
    important = np.zeros(60, np.bool_)
    important[[3, 17, 18, 40, 59]] = True
    order: list[tuple[int, bool, int]] = []

    def note(datagram: Datagram) -> None:
        if datagram.is_data:
            flags = int(datagram.header["flags"])
            order.append(
                (int(datagram.header["offset"]) // 16, bool(flags & wire.IMPORTANT), datagram.tos)
            )

    config = TransportConfig(segment_bytes=16, largest_batch=4, parity=False)
    link, _ = joined(2, config, watch=note)
    link.drop = lambda each: each.is_data and len(order) in (2, 3, 20, 30)
    transfer = Transfer(link, 0, 1, np.ones(4 * 60, np.float32), important=important, layer_class=2)
    transfer.post()
    link.run()
    assert [segment for segment, _, _ in order[:5]] == [3, 17, 18, 40, 59]
    assert all(flag == important[segment] for segment, flag, _ in order)
    assert all(tos == (5 << 5 | flag) for _, flag, tos in order)
    assert [segment for segment, _, _ in order[60:]] == [17, 18, order[19][0], order[29][0]]


def test_a_late_answer_to_an_earlier_question_is_ignored() -> None:
    link, (sender, _) = joined(2, TransportConfig(segment_bytes=16))
    transfer = Transfer(link, 0, 1, np.ones(4 * 8, np.float32))
    transfer.post_sender()
    about = {"session": tag(1, 0), "source": 1, "length": 32}
    link.hand(0, ready(16 * 8, session=tag(1, 0), source=1) + feedback(grant=30))
    link.pass_time(1)
    first = header(wire.BITMAP, **about) + feedback(highest=8, received=6, grant=30)
    first += (0b00010010).to_bytes(8, "little")
    row = transfer.sending.outgoing
    assert row["state"][0] == ASKING
    link.hand(0, first)
    assert row["state"][0] == SENDING
    assert row["unsent"][0] == 2
    link.pass_time(1)
    assert row["state"][0] == ASKING
    link.hand(0, first)  # once more: the answer to a PROBE that the second pass overtook
    assert row["state"][0] == ASKING
    second = header(wire.BITMAP, **about) + feedback(highest=10, received=7, grant=30)
    link.hand(0, second + (0b00000010).to_bytes(8, "little"))
    assert row["state"][0] == SENDING
    link.pass_time(1)
    assert sender.counts(1)[Counter.SENT] == 11
    assert sender.counts(1)[Counter.SENT_AGAIN] == 3


def test_a_bitmap_is_cut_to_the_message_and_refused_if_too_short() -> None:
    link, (sender, _) = joined(2, TransportConfig(segment_bytes=16))
    transfer = Transfer(link, 0, 1, np.ones(4 * 3, np.float32))
    transfer.post_sender()
    about = {"session": tag(1, 0), "source": 1}
    link.hand(0, ready(16 * 3, **about) + feedback(grant=30))
    link.pass_time(1)
    short = header(wire.BITMAP, length=24, **about) + feedback(highest=3, received=2, grant=30)
    link.hand(0, short)
    assert sender.counts(1)[Counter.TRUNCATED] == 1
    everything = header(wire.BITMAP, length=32, **about) + feedback(highest=3, received=2, grant=30)
    link.hand(0, everything + b"\xff" * 8)
    assert transfer.sending.outgoing["unsent"][0] == 3
    check_consistency(sender)  # no bit beyond the message's last is set
    link.pass_time(1)
    assert sender.counts(1)[Counter.SENT] == 6


@pytest.mark.parametrize("reorder_us", [200, 2_000, 10_000])
def test_on_a_network_that_reorders_answers_wait_for_the_stragglers(reorder_us: int) -> None:
    faults = Faults(reordering=0.3, reorder_us=reorder_us)
    config = TransportConfig(segment_bytes=16, budget_packets=256, first_budget_packets=256)
    link, (sender, receiver) = joined(2, config, faults=faults, seed=1)
    for number in range(40):
        transfer = Transfer(link, 0, 1, np.ones(4 * 100, np.float32), iteration=number)
        transfer.post(sender_at=number * 50_000, receiver_at=number * 50_000)
    link.run(lambda: len(link.finished[0]) >= 20)
    before = sender.counts(1)[Counter.SENT_AGAIN]
    link.run()
    assert receiver.state.peers[0]["lateness"] > reorder_us / 4
    # once the lag is known, hardly anything that is only late is sent again
    assert sender.counts(1)[Counter.SENT_AGAIN] - before < 0.05 * 2_000


def test_questions_do_not_overtake_data_that_wait_in_a_switch() -> None:
    classes = (15_000, *(0,) * 7)
    config = TransportConfig(segment_bytes=16, budget_packets=20, parity=False)
    link, (sender, receiver) = joined(2, config, faults=Faults(class_delay_us=classes))
    tags: set[tuple[int, int]] = set()
    link.watch = lambda each: tags.add((each.kind, each.tos))
    link.drop = lambda each: each.is_data and each.header["offset"] == 16 * 149
    transfer = Transfer(link, 0, 1, np.ones(4 * 150, np.float32), layer_class=7)
    transfer.post()
    link.run(lambda: sender.counts(1)[Counter.SENT_AGAIN] == 3)
    link.drop = None
    link.run()
    assert sender.counts(1)[Counter.PROBES] > 3
    assert sender.counts(1)[Counter.SENT] == 154
    assert receiver.counts(0)[Counter.REPEATED] == 0
    questions = {wire.DATA, wire.PROBE, wire.CREDIT_PROBE}
    assert {tos for kind, tos in tags if kind in questions} == {1}
    assert {tos for kind, tos in tags if kind not in questions} == {7 << 5 | 1}


def test_data_that_a_question_has_overtaken_are_waited_for_the_next_time() -> None:
    link, (_, receiver) = joined(2, TransportConfig(segment_bytes=16))
    link.offsets[1] = 0
    Transfer(link, 0, 1, np.ones(4 * 3, np.float32)).post_receiver()
    written(receiver)
    number = {"session": tag(0, 1), "length": 24, "number": 3}
    link.hand(1, header(wire.PROBE, clock=1_000, **number) + feedback(), arrived=1_100)
    written(receiver)
    body = header(wire.DATA, session=tag(0, 1), length=16, clock=900) + b"\0" * 16
    link.hand(1, body, arrived=6_000)
    assert receiver.state.peers[0]["lateness"] == 5_000
    question = header(wire.PROBE, clock=9_000, **number) + feedback()
    link.hand(1, question, arrived=9_100)
    assert [each[0] & 15 for each in written(receiver)] == []
    assert [each[0] & 15 for each in written(receiver, now=10_000)] == [wire.BITMAP]


@pytest.mark.parametrize(("tos", "late"), [(0, 5_000), (4 << 5, 0)])
def test_only_what_others_of_its_class_overtake_is_late(tos: int, late: int) -> None:
    """A switch lets urgent packets go first; a question waits behind the data it asks about."""
    link, (_, receiver) = joined(2, TransportConfig(segment_bytes=16))
    link.offsets[1] = 0
    Transfer(link, 0, 1, np.ones(4 * 3, np.float32)).post_receiver()
    written(receiver)
    about = {"session": tag(0, 1), "length": 16}
    urgent = header(wire.DATA, clock=1_000, number=1, offset=16, **about) + b"\0" * 16
    link.hand(1, urgent, arrived=1_100, tos=tos)
    body = header(wire.DATA, clock=900, number=0, **about) + b"\0" * 16
    link.hand(1, body, arrived=6_000)
    assert receiver.state.peers[0]["lateness"] == late


def test_lateness_is_forgotten_when_packets_keep_their_order() -> None:
    link, (_, receiver) = joined(2, TransportConfig(segment_bytes=16))
    peer = receiver.state.peers[0]
    peer["lateness"] = 20_000.0
    for number in range(20):
        transfer = Transfer(link, 0, 1, np.ones(4 * 500, np.float32), iteration=number)
        transfer.post(sender_at=number * 1_000, receiver_at=number * 1_000)
    link.run()
    assert peer["lateness"] < 50
