"""What the transport says of itself is what happened: to packets, to sums, to those who waited."""

from __future__ import annotations

from fractions import Fraction
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transfers import Guarded, Transfer, tables_of
from virtual_link import Datagram, Faults, Port, joined

from shoal.collectives import graphs
from shoal.collectives.message_graph import exact_from
from shoal.transport import wire
from shoal.transport.endpoint import TransportConfig
from shoal.transport.tables import CLASSES
from shoal.wire.operation_log import (
    MOST_PEAKS,
    MOST_STRETCHES,
    BusyTime,
    OperationLog,
    SumAccount,
)
from shoal.wire.stats import (
    LoopStats,
    TransportStats,
    loss_by_tag,
    operation_stats,
    read_traffic,
)
from thoroughness import examples

if TYPE_CHECKING:
    from shoal.transport.endpoint import Endpoint

SEGMENT = 64


def stats_of(endpoint: Endpoint, log: OperationLog, seconds: float = 1.0) -> TransportStats:
    """Return what an engine with this endpoint and log would say."""
    entries = log.read()
    total, peers = read_traffic([endpoint.state], entries, rank=endpoint.rank, seconds=seconds)
    return TransportStats(
        rank=endpoint.rank,
        total=total,
        peers=peers,
        operations=operation_stats(entries.kinds),
        busy_s=entries.busy_s,
        loop=LoopStats(),
        budget_packets=float(endpoint.state.core[0]["budget"]),
        deadline_s=10.0,
        under_way=0,
        oldest_s=0.0,
    )


# ---- sums ---------------------------------------------------------------------------------------


@settings(max_examples=examples(60))
@given(
    size=st.sampled_from([2, 4, 6]),
    algorithm=st.sampled_from(graphs.ALGORITHMS),
    length=st.sampled_from([1, 17, 300, 1_001]),
    bound=st.sampled_from([0.05, 0.3, 0.9]),
    loss=st.floats(0, 0.4),
    stop_early=st.booleans(),
    exact=st.sampled_from([None, 0, 0.4, 0.999]),
    seed=st.integers(0, 1 << 30),
)
def test_the_effective_loss_is_the_deficit_of_the_sum_and_within_its_bound(
    size: int,
    algorithm: str,
    length: int,
    bound: float,
    loss: float,
    stop_early: bool,
    exact: float | None,
    seed: int,
) -> None:
    may_lose = length if exact is None else int(exact * length)
    config = TransportConfig(segment_bytes=SEGMENT, stop_early=stop_early)
    link, _ = joined(size, config, faults=Faults(loss=loss), seed=seed)
    per_host = 2 if algorithm == "hierarchical" else 1
    ranks = list(range(size))[::-1]
    hop_bound = bound / graphs.lossy_hops(algorithm, size)
    guards, logs = [], [OperationLog(size) for _ in ranks]
    members = []
    for me, rank in enumerate(ranks):
        graph = graphs.all_reduce(size, me, length, 64, algorithm=algorithm, per_host=per_host)
        graph = exact_from(graph, may_lose)
        tables = tables_of(graph, link, ranks, loss_bound=hop_bound)
        tables.gates["scale"] = 1.0
        guard = Guarded(4 * length)
        guard.bytes.view(np.float32)[:] = 1.0
        tables.place(guard.address)
        guards.append(guard)
        members.append((rank, tables, SumAccount.of(graph, ranks, ((0, 3),))))
        link.at(1, rank, lambda rank=rank, tables=tables: link.post(rank, tables))
    link.kept.append((guards, members))
    link.run()

    for rank, tables, account in members:
        logs[rank].note_messages(tables, since_us=0)
        logs[rank].note_sum(tables, account)
    everyone = [stats_of(link.endpoints[rank], logs[rank]) for rank in range(size)]
    due = sum(stats.total.sum_due_bytes[3] for stats in everyone)
    missing = sum(stats.total.sum_missing_bytes[3] for stats in everyone)
    allowed = sum(stats.total.sum_allowed_bytes[3] for stats in everyone)
    sums = guards[0].bytes.view(np.float32).astype(np.int64)
    deficit = 4 * int((size - sums).sum())

    assert due == 4 * may_lose * (size - per_host)  # within hosts nothing may get lost
    assert (sums[may_lose:] == size).all()
    assert deficit <= missing <= allowed <= bound * due
    if algorithm == "direct":  # nothing can be lost twice
        assert missing == deficit
        bits = [int(row) for _, tables, _ in members for row in _missing_bytes(tables)]
        assert missing == sum(bits)
    for stats in everyone:
        assert 0 <= stats.total.effective_loss <= stats.total.allowed_loss + 1e-12
        assert stats.total.effective_loss_by_class[3] == stats.total.effective_loss
        of_peers = [sum(peer.sum_missing_bytes) for peer in stats.peers.values()]
        assert sum(of_peers) == sum(stats.total.sum_missing_bytes)


def _missing_bytes(tables: Any) -> list[int]:
    rows = tables.incoming[tables.incoming["mode"] == 1]
    return [int(row["size"] - row["received"]) for row in rows]


# ---- packets ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_losses_by_importance_and_class_are_those_of_the_network(seed: int) -> None:
    random = Random(seed)
    sent, lost = {}, {}

    def drop(datagram: Datagram) -> bool:
        if not datagram.is_data:
            return False
        important = bool(datagram.header["flags"] & wire.IMPORTANT)
        key = (important, 7 - (datagram.tos >> 5))
        sent[key] = sent.get(key, 0) + 1
        goes = random.random() < (0.02 if important else 0.4)
        lost[key] = lost.get(key, 0) + goes
        return goes

    link, endpoints = joined(2, TransportConfig(segment_bytes=SEGMENT), drop=drop, seed=seed)
    for number, layer_class in enumerate((0, 2, 7)):
        values = np.arange(2_000, dtype=np.float32)
        segments = -(-values.nbytes // SEGMENT)
        Transfer(
            link, 0, 1, values, layer_class=layer_class, iteration=number,
            important=np.arange(segments) % 2 == 0,
        ).post()  # fmt: skip
    link.run()

    sender, receiver = (stats_of(each, OperationLog(2)) for each in endpoints)
    loss = loss_by_tag(sender, receiver)
    for share, wanted in ((loss.important, True), (loss.ordinary, False)):
        whole = sum(count for (important, _), count in sent.items() if important is wanted)
        gone = sum(count for (important, _), count in lost.items() if important is wanted)
        assert share == gone / whole
    for layer_class in range(CLASSES):
        whole = sum(count for (_, each), count in sent.items() if each == layer_class)
        gone = sum(count for (_, each), count in lost.items() if each == layer_class)
        assert loss.by_class[layer_class] == (gone / whole if whole else 0)
    from_sender = receiver.peers[0]
    assert from_sender.missing_packets == sum(lost.values())
    assert from_sender.lost_share == sum(lost.values()) / sum(sent.values())
    assert sender.peers[1].sent_packets == sum(sent.values()) == from_sender.known_packets
    again = sum(sent.values()) - 3 * segments - sender.peers[1].parity_packets
    assert sender.peers[1].sent_again_packets == again
    assert from_sender.placed_bytes == 3 * values.nbytes
    assert receiver.total.goodput_bytes_per_s == 3 * values.nbytes
    assert sender.peers[1].round_trip_s > 0


def test_a_difference_is_what_happened_in_between() -> None:
    link, endpoints = joined(3, TransportConfig(segment_bytes=SEGMENT), faults=Faults(loss=0.1))
    logs = [OperationLog(3) for _ in endpoints]
    snapshots = [stats_of(endpoints[0], logs[0], seconds=1.0)]
    for number, count in enumerate((500, 900)):
        for peer in (1, 2):
            values = np.ones(count * peer, np.float32)
            Transfer(link, peer, 0, values, iteration=number, stream=peer).post()
        link.run()
        snapshots.append(stats_of(endpoints[0], logs[0], seconds=2.0 + number))
    first, second = snapshots[1] - snapshots[0], snapshots[2] - snapshots[1]
    assert [first.peers[peer].placed_bytes for peer in (1, 2)] == [2_000, 4_000]
    assert [second.peers[peer].placed_bytes for peer in (1, 2)] == [3_600, 7_200]
    assert second.total.placed_bytes == 10_800
    assert second.seconds == second.peers[1].seconds == 1.0
    assert second.total.goodput_bytes_per_s == 10_800
    assert second.peers[1].round_trip_s == snapshots[2].peers[1].round_trip_s
    whole = snapshots[2] - snapshots[0]
    for name in ("received_packets", "known_packets", "stops", "received_packets_by_class"):
        parts = np.array(getattr(first.total, name)) + getattr(second.total, name)
        np.testing.assert_array_equal(parts, getattr(whole.total, name))
        peers = [np.array(getattr(peer, name)) for peer in whole.peers.values()]
        np.testing.assert_array_equal(sum(peers), getattr(whole.total, name))


def test_a_peer_that_comes_late_is_the_one_that_was_waited_for() -> None:
    link, endpoints = joined(3, TransportConfig(segment_bytes=SEGMENT))
    log = OperationLog(3)
    transfers = [Transfer(link, peer, 0, np.ones(300, np.float32), stream=peer) for peer in (1, 2)]
    transfers[0].post(sender_at=100_000)
    transfers[1].post()
    link.run()
    for transfer in transfers:
        log.note_messages(transfer.receiving, since_us=1)
    stats = stats_of(endpoints[0], log)
    assert 0.1 <= stats.peers[1].wait_s < 0.11
    assert 0 < stats.peers[2].wait_s < 0.01
    assert stats.total.moving_s < 0.01, "late, and then as fast as the other"
    assert stats.total.sum_due_bytes == (0,) * CLASSES  # nothing could be lost


def test_a_slow_way_shows_in_how_long_messages_take() -> None:
    took = []
    for bytes_per_us in (1.0, 0.1):
        port = Port(bytes_per_us)
        link, endpoints = joined(2, TransportConfig(segment_bytes=SEGMENT), port=port)
        log = OperationLog(2)
        transfer = Transfer(link, 1, 0, np.ones(3_000, np.float32), stream=1)
        transfer.post()
        link.run()
        log.note_messages(transfer.receiving, since_us=1)
        took.append(stats_of(endpoints[0], log).peers[1].moving_s)
    assert took[0] > 0.012, "12,000 bytes and their headers, at a byte per microsecond"
    assert 9 < took[1] / took[0] < 11


# ---- waits --------------------------------------------------------------------------------------


@settings(max_examples=examples(200))
@given(waits=st.lists(st.integers(0, 50), max_size=120), data=st.data())
def test_the_longest_wait_of_any_interval(waits: list[int], data: st.DataObject) -> None:
    split = data.draw(st.integers(0, len(waits)))
    log = OperationLog(1)
    log.note("other", 99.0, failed=False, ended_s=99.0)
    snapshots = []
    for number, wait in enumerate([*waits, None]):
        if number == split:
            snapshots.append(operation_stats(log.read().kinds))
        if wait is not None:
            log.note("sum", float(wait), failed=wait == 7, ended_s=99.0)
    later, earlier = operation_stats(log.read().kinds), snapshots[0]
    if not waits:
        assert "sum" not in later
        return
    between = later["sum"] - earlier["sum"] if "sum" in earlier else later["sum"]
    part = waits[split:]
    assert between.ended == len(part)
    assert between.failed == part.count(7)
    assert between.wait_s == sum(part)
    assert between.longest_wait_s == max(part, default=0)
    assert later["sum"].longest_wait_s == max(waits)


def test_what_is_remembered_of_waits_is_bounded_and_never_too_short() -> None:
    log = OperationLog(1)
    many = 5 * MOST_PEAKS
    snapshots = []
    for number in range(many):  # each shorter than the one before: the worst case
        log.note("sum", float(many - number), failed=False, ended_s=99.0)
        snapshots.append(operation_stats(log.read().kinds)["sum"])
    last = snapshots[-1]
    assert len(last.peaks) <= MOST_PEAKS
    for number, earlier in enumerate(snapshots[:-1]):
        assert (last - earlier).longest_wait_s >= many - number - 1
    assert last.longest_wait_s == many
    assert (last - snapshots[-5]).longest_wait_s == 4.0
    assert Fraction(last.wait_s) == Fraction(many * (many + 1), 2)


@settings(max_examples=examples(200))
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=40))
def test_time_in_which_operations_overlap_counts_once(spans: list[tuple[int, int]]) -> None:
    busy, covered = BusyTime(), set()
    for end, length in sorted(spans):
        busy.add(float(end - length), float(end))
        covered |= set(range(end - length, end))
    assert busy.seconds == len(covered)


def test_the_memory_of_pauses_is_bounded() -> None:
    busy = BusyTime()
    for number in range(10 * MOST_STRETCHES):
        busy.add(2.0 * number, 2.0 * number + 1)
    assert busy.seconds == 10 * MOST_STRETCHES
