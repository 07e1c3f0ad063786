"""The loss of any packet is repaired, whatever it was, and whenever it is lost."""

from __future__ import annotations

from collections import Counter as Bag
from typing import TYPE_CHECKING

import numpy as np
import pytest
from by_hand import CLOCK, feedback, header, ready, written
from transfers import Transfer
from virtual_link import Datagram, Faults, joined, tag

from shoal.transport import wire
from shoal.transport.endpoint import TransportConfig
from shoal.transport.messages import Joining, MessageTables, Receiving, Sending
from shoal.transport.tables import ADD, CONTROL_SLOTS, NEVER, WRITE, Counter
from thoroughness import seldom

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS = {
    "READY": wire.READY,
    "DATA": wire.DATA,
    "PROBE": wire.PROBE,
    "BITMAP": wire.BITMAP,
    "STOP": wire.STOP,
    "FEEDBACK": wire.FEEDBACK,
    "CREDIT_PROBE": wire.CREDIT_PROBE,
}


class Thief:
    """Drops those packets of a kind whose number, among its kind, `steals` names."""

    def __init__(self, kind: int, steals: Callable[[int], bool]) -> None:
        self.kind, self.steals = kind, steals
        self.seen = self.stolen = 0

    def __call__(self, datagram: Datagram) -> bool:
        if datagram.kind != self.kind:
            return False
        self.seen += 1
        takes = self.steals(self.seen - 1)
        self.stolen += takes
        return takes


@pytest.mark.parametrize("bound", seldom([0.0, 0.3], often=[0.3]))
@pytest.mark.parametrize("stop_early", seldom([True, False], often=[False]))
@pytest.mark.parametrize("kind", KINDS)
def test_the_kth_packet_of_a_kind_may_get_lost(kind: str, stop_early: bool, bound: float) -> None:
    fired = 0
    for first in range(8):
        for seed in range(4):
            config = TransportConfig(segment_bytes=16, budget_packets=20, stop_early=stop_early)
            thief = Thief(KINDS[kind], lambda number, first=first: number == first)
            link, _ = joined(
                2, config, faults=Faults(loss=0.5 if seed % 2 else 0.02), seed=seed, drop=thief
            )
            values = np.arange(4 * 150, dtype=np.float32)
            transfer = Transfer(link, 0, 1, values, loss_bound=bound, keeps_missing=True)
            transfer.post()
            link.run()
            transfer.check_places()
            np.testing.assert_array_equal(transfer.missing(), ~transfer.arrived())
            fired += thief.stolen
    assert fired >= 4


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_packets_of_a_kind_may_all_get_lost(kind: str) -> None:
    fired = 0
    for seed in range(6):
        thief = Thief(KINDS[kind], lambda number: number < 12)
        config = TransportConfig(segment_bytes=16, budget_packets=20)
        link, _ = joined(2, config, faults=Faults(loss=0.2), seed=seed, drop=thief)
        transfers = [
            Transfer(link, 0, 1, np.ones(4 * 100, np.float32), iteration=k) for k in range(3)
        ]
        for transfer in transfers:
            transfer.post()
        link.run()
        for transfer in transfers:
            transfer.check_places()
        fired += thief.stolen
    assert fired >= 12


def test_no_feedback_at_all_is_only_slow() -> None:
    thief = Thief(wire.FEEDBACK, lambda number: number % 8 != 7)
    link, _ = joined(2, TransportConfig(segment_bytes=16, budget_packets=8), drop=thief)
    transfer = Transfer(link, 0, 1, np.ones(4 * 300, np.float32))
    transfer.post()
    link.run()
    transfer.check_places()
    assert thief.stolen > 10


def test_a_sender_without_credit_hears_that_it_may_stop() -> None:
    # the receiver has enough, so it grants nothing any more; its STOP is lost
    thief = Thief(wire.STOP, lambda number: number == 0)
    config = TransportConfig(
        segment_bytes=16, first_budget_packets=16, budget_packets=16, stop_early=True
    )
    link, (sender, _) = joined(2, config, drop=thief)
    transfer = Transfer(link, 0, 1, np.ones(4 * 200, np.float32), loss_bound=0.5)
    transfer.post()
    link.run()
    assert thief.stolen == 1
    assert sender.counts(1)[Counter.SENT] < 200


@pytest.mark.parametrize("lost", [1, 2, 5])
def test_a_stop_said_again_after_the_operation_says_what_was_missing(lost: int) -> None:
    thief = Thief(wire.STOP, lambda number: number < lost)
    link, _ = joined(2, TransportConfig(segment_bytes=16, stop_early=True), drop=thief)
    transfer = Transfer(
        link, 0, 1, np.ones(4 * 100, np.float32), loss_bound=0.4, keeps_missing=True
    )
    transfer.post()
    link.run()
    assert thief.stolen == lost
    assert transfer.missing().sum() == 40
    np.testing.assert_array_equal(transfer.missing(), ~transfer.arrived())


def test_stops_of_many_messages_are_not_mixed_up() -> None:
    thief = Thief(wire.STOP, lambda number: number < 300)
    link, _ = joined(3, TransportConfig(segment_bytes=16), faults=Faults(loss=0.1), drop=thief)
    transfers = [
        Transfer(
            link,
            source,
            0,
            np.ones(4 * 30, np.float32),
            loss_bound=0.5,
            keeps_missing=True,
            iteration=iteration,
            stream=stream,
        )
        for source in (1, 2)
        for stream in (1, 2)
        for iteration in range(50)
    ]
    for transfer in transfers:
        transfer.post()
    link.run()
    assert thief.stolen == 300
    for transfer in transfers:
        np.testing.assert_array_equal(transfer.missing(), ~transfer.arrived())


def test_operations_with_equal_keys_from_many_ranks_all_get_their_stop_again() -> None:
    seen: Bag[int] = Bag()

    def first_stop(datagram: Datagram) -> bool:
        if datagram.kind != wire.STOP:
            return False
        seen[datagram.target] += 1
        return seen[datagram.target] == 1

    link, _ = joined(20, TransportConfig(segment_bytes=16), drop=first_stop)
    transfers = [Transfer(link, source, 0, np.ones(8, np.float32)) for source in range(1, 20)]
    for transfer in transfers:
        transfer.post()
    link.run()
    assert link.counts["dropped"] == 19


def test_a_full_control_queue_silences_nobody_for_good() -> None:
    config = TransportConfig(segment_bytes=16, first_budget_packets=1, budget_packets=16)
    link, (sender, receiver) = joined(2, config)
    transfer = Transfer(link, 0, 1, np.ones(4 * 40, np.float32))
    transfer.post_receiver()
    transfer.post_sender()
    link.pass_time(1)
    receiver.state.core["control_tail"] += CONTROL_SLOTS // 2  # a socket that takes nothing
    receiver.state.control["peer"][: CONTROL_SLOTS // 2] = 1  # to the rank itself: nobody hears
    link.hand(1, header(wire.CREDIT_PROBE, length=24, session=tag(0, 1), number=1) + feedback())
    assert receiver.counts(0)[Counter.CONTROL_DROPPED] > 0
    receiver.state.core["control_head"] = receiver.state.core["control_tail"]
    link.run()
    transfer.check_places()
    assert sender.state.peers[1]["queue"] == -1


def test_a_sender_that_was_out_of_credit_asks_again_in_its_next_operation() -> None:
    link, (sender, _) = joined(2, TransportConfig(segment_bytes=16))
    Transfer(link, 0, 1, np.ones(4, np.float32)).post()
    link.run()
    peer = sender.state.peers[1]
    peer["granted"], peer["credit_probe_at"] = peer["next_number"], 5  # long ago
    sender.state.core["timer_at"] = NEVER
    later = Transfer(link, 0, 1, np.ones(4 * 9, np.float32), iteration=2)
    thief = Thief(wire.READY, lambda number: True)
    link.drop = thief
    later.post_receiver()
    later.post_sender()
    head = ready(16 * 9, session=tag(1, 0), iteration=2, source=1)
    link.hand(0, head + feedback(highest=1, received=1, grant=1))
    link.run()
    later.check_places()


# ---- empty parts of operations -----------------------------------------------------------------


def test_messages_of_no_bytes_are_done_at_once_and_hold_up_nobody() -> None:
    config = TransportConfig(segment_bytes=16)
    thief = Thief(wire.READY, lambda number: number == 0)
    link, _ = joined(2, config, drop=thief)
    values, target = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    sending = MessageTables(
        2, 16, 1, sending=[Sending(1, 0, 0), Sending(1, 0, 8), Sending(1, 8, 0)]
    )
    receiving = MessageTables(
        2,
        16,
        1,
        receiving=[
            Receiving(0, 0, 0, WRITE, 0),
            Receiving(0, 0, 8, WRITE),
            Receiving(0, 8, 0, ADD),
        ],
        sending=[],
        gates=[Joining(0, 0)],
    )
    sending.place(values.ctypes.data)
    receiving.place(target.ctypes.data)
    link.post(0, sending)
    link.post(1, receiving)
    link.run()
    np.testing.assert_array_equal(target, values)
    assert thief.stolen == 1


def test_an_operation_of_nothing_but_empty_messages_finishes_when_posted() -> None:
    link, (first, second) = joined(2, TransportConfig(segment_bytes=16))
    memory = np.zeros(1, np.float32)
    sending = MessageTables(2, 16, 1, sending=[Sending(1, 0, 0)])
    receiving = MessageTables(2, 16, 1, receiving=[Receiving(0, 0, 0, WRITE)])
    for endpoint, tables in ((first, sending), (second, receiving)):
        tables.place(memory.ctypes.data)
        slot = endpoint.post(tables, 1, 1, 1)
        assert endpoint.finished() == [slot]
        assert written(endpoint) == []
    assert link.running() == 0


def test_a_gate_that_nothing_leads_to_is_open() -> None:
    link, _ = joined(2, TransportConfig(segment_bytes=16))
    values, target = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    sending = MessageTables(
        2, 16, 1, sending=[Sending(1, 0, 8, gate=0)], gates=[Joining(0, 8, 2.0)]
    )
    receiving = MessageTables(2, 16, 1, receiving=[Receiving(0, 0, 8, WRITE)])
    sending.place(values.ctypes.data)
    receiving.place(target.ctypes.data)
    link.post(0, sending)
    link.post(1, receiving)
    link.run()
    np.testing.assert_array_equal(target, 2 * np.arange(8))


# ---- clocks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("near", [0, 1 << 31, 1 << 32, 3 << 31])
def test_clocks_that_differ_by_any_amount_look_like_no_congestion(near: int) -> None:
    config = TransportConfig(segment_bytes=64, budget_packets=64)
    link, (_, receiver) = joined(2, config)
    link.offsets = [1 << 40, (1 << 40) + near - 100]
    for number, delay_us in enumerate((150, 50, 150)):
        # now the difference of the clocks, as it is measured, lies on one side and now on the other
        link.faults = Faults(delay_us=delay_us)
        transfer = Transfer(link, 0, 1, np.ones(16 * 1_000, np.float32), iteration=number)
        transfer.post()
        link.run()
        transfer.check_places()
        assert receiver.state.core["budget"][0] == 64


def test_a_report_that_waited_for_an_occasion_is_no_round_trip() -> None:
    link, (sender, _) = joined(2, TransportConfig(segment_bytes=16))
    transfer = Transfer(link, 0, 1, np.ones(4 * 9, np.float32))
    transfer.post()
    link.run()
    peer, clock = sender.state.peers[1], CLOCK & 0xFFFFFFFF
    before = float(peer["smoothed_rtt"])
    assert 0 < before < 1_000
    Transfer(link, 0, 1, np.ones(4 * 9, np.float32), iteration=2).post_sender()
    head = ready(16 * 9, session=tag(1, 0), iteration=2, source=1)
    link.hand(0, head + feedback(highest=9, received=9, grant=18))
    link.pass_time(1)
    late = feedback(highest=18, received=18, grant=18, echo=clock, held=900_000)
    link.offsets[0] = CLOCK + 900_100 - link.now
    link.hand(0, header(wire.FEEDBACK, length=24, session=tag(1, 0), source=1) + late)
    assert peer["reported_received"] == 18
    assert peer["network_rtt"] == 100
    assert peer["smoothed_rtt"] == before


# ---- lost peers ---------------------------------------------------------------------------------


def test_nothing_goes_to_a_lost_peer_and_the_others_are_not_held_up() -> None:
    sent: Bag[int] = Bag()
    link, (host, *_) = joined(3, TransportConfig(segment_bytes=16, budget_packets=20))
    to_lost = Transfer(link, 0, 2, np.ones(4 * 300, np.float32))
    from_lost = Transfer(link, 2, 0, np.ones(4 * 300, np.float32))
    for transfer in (to_lost, from_lost):
        transfer.post()
    link.pass_time(200)
    host.state.peers[2]["lost"] = 1
    assert host.state.peers[2]["queue"] >= 0
    link.watch = lambda each: sent.update([each.target]) if each.source == 0 else None
    others = [Transfer(link, *pair, np.ones(4 * 300, np.float32)) for pair in ((0, 1), (1, 0))]
    for transfer in others:
        transfer.post()
    link.run(
        lambda: (
            all(each.sender_ticket in link.finished[each.source] for each in others)
            if link.now > 1_000
            else False
        )
    )
    link.cancel(0, to_lost.sender_ticket)
    link.cancel(0, from_lost.receiver_ticket)
    link.pass_time(1_000_000)
    for transfer in others:
        transfer.check_places()
    assert sent[2] == 0
    assert sent[1] > 300
    assert link.running() == 2  # at the lost peer itself


def test_a_peer_that_is_found_again_hears_from_us() -> None:
    link, (host, _) = joined(2, TransportConfig(segment_bytes=16))
    transfer = Transfer(link, 0, 1, np.ones(4 * 30, np.float32))
    host.state.peers[1]["lost"] = 1
    transfer.post()
    link.pass_time(300_000)
    assert link.counts["data sent 0-1"] == 0
    host.state.peers[1]["lost"] = 0
    link.run()
    transfer.check_places()
