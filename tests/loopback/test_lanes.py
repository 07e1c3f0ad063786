"""Several lanes over real sockets: collectives come out right, and end as those of one lane do."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from shoal.errors import DeadlineExceeded, ShoalError, WorkerLost
from shoal.transport.endpoint import TransportConfig
from shoal.transport.forms import FLOAT32
from shoal.transport.holes import ERROR_FEEDBACK
from shoal.transport.last_means import STRIDE, LastMeans
from shoal.transport.tables import Counter
from shoal.wire import lane as lanes
from shoal.wire.engine import UdpEngine
from shoal.wire.group import DIVIDED_BYTES, Memory, TransportGroup
from shoal.wire.interfaces import link_bits_per_s
from shoal.wire.sum_options import SumOptions, mean_options
from shoal.wire.transfer import Transfer

LARGE = 500_000
"""Elements: enough to be divided."""

Started = Callable[[TransportGroup, Any], Transfer | None]


@contextlib.contextmanager
def engines(lane_counts: Sequence[int], *, deadline_s: float = 20.0) -> Iterator[list[UdpEngine]]:
    """Yield started engines of this process, with as many lanes each."""
    size = len(lane_counts)
    made = [
        UdpEngine(
            rank,
            size,
            TransportConfig(stop_early=True),  # so something is missing where nothing gets lost
            deadline_s=deadline_s,
            lane_count=count,
        )
        for rank, count in enumerate(lane_counts)
    ]
    with ThreadPoolExecutor(size) as threads:  # each waits for the others, to begin and to end
        try:
            cards = [each.card for each in made]
            list(threads.map(lambda engine: engine.start(cards), made))
            yield made
        finally:
            list(threads.map(lambda engine: engine.close(), made))


def groups_of(made: Sequence[UdpEngine]) -> list[TransportGroup]:
    return [TransportGroup(engine, tuple(range(len(made))), stream=9) for engine in made]


def memory_of(array: Any) -> Memory:
    return Memory(array.ctypes.data, array.size, FLOAT32, array)


def run(groups: Sequence[TransportGroup], arrays: Sequence[Any], start: Started) -> None:
    started = [start(group, array) for group, array in zip(groups, arrays, strict=True)]
    for transfer in started:
        if transfer is not None:
            transfer.wait()


def sent_by_lane(engine: UdpEngine) -> list[int]:
    return [lane.endpoint.counts()[Counter.SENT] for lane in engine.lanes]


@pytest.mark.parametrize("algorithm", ["direct", "ring", "hierarchical"])
def test_a_sum_is_divided_among_all_lanes(algorithm: str) -> None:
    with engines([3] * 4) as made:
        options = SumOptions(algorithm=algorithm, per_host=2)
        arrays = [np.arange(LARGE, dtype=np.float32) % 100 + rank for rank in range(4)]
        run(groups_of(made), arrays, lambda g, a: g.all_reduce(memory_of(a), options))
        expected = 4 * (np.arange(LARGE) % 100) + 6
        assert all((array == expected).all() for array in arrays)
        for engine in made:
            assert min(sent_by_lane(engine)) > 0.25 * max(sent_by_lane(engine)) > 0


def test_after_a_mean_of_parameters_all_groups_know_what_it_was() -> None:
    options = mean_options(2, is_weighted=False, loss_bound=0.1, tensor="weights")
    with engines([2] * 3) as made:
        means = [LastMeans() for _ in made]
        arrays = [np.random.default_rng(rank).random(LARGE, np.float32) for rank in range(3)]
        for pair in ((0, 1), (1, 2)):
            groups = [
                TransportGroup(made[rank], pair, stream=10 + pair[0], means=means[rank])
                for rank in pair
            ]
            there = [arrays[rank] for rank in pair]
            run(groups, there, lambda g, a: g.all_reduce(memory_of(a), options))
            for rank, array in zip(pair, there, strict=True):
                assert (means[rank].sample("weights") == array[::STRIDE]).all()
        assert means[0].sample("weights").size > 0
        assert (means[0].sample("weights") != means[1].sample("weights")).any()


def test_every_other_collective_is_right_too() -> None:
    size = 4
    with engines([2] * size) as made:
        groups = groups_of(made)
        whole = np.arange(size * LARGE, dtype=np.float32) % 1000
        shards = [whole[rank * LARGE :][:LARGE] for rank in range(size)]

        gathered = [np.zeros_like(whole) for _ in groups]
        for rank, array in enumerate(gathered):
            array[rank * LARGE :][:LARGE] = shards[rank]
        counts = [LARGE] * size
        run(groups, gathered, lambda g, a: g.all_gather(memory_of(a), counts))
        assert all((array == whole).all() for array in gathered)

        sources, targets = [whole.copy() for _ in groups], [each.copy() for each in shards]
        run(
            groups,
            list(zip(sources, targets, strict=True)),
            lambda g, pair: g.reduce_scatter(memory_of(pair[0]), memory_of(pair[1])),
        )
        assert all((t == size * s).all() for t, s in zip(targets, shards, strict=True))

        copies = [whole.copy() if rank == 2 else np.zeros_like(whole) for rank in range(size)]
        run(groups, copies, lambda g, a: g.broadcast(memory_of(a), 2))
        assert all((array == whole).all() for array in copies)

        sums = [whole.copy() for _ in groups]
        run(groups, sums, lambda g, a: g.reduce(memory_of(a), 1))
        assert (sums[1] == size * whole).all()

        received = np.zeros_like(whole)
        run(
            groups[:2],
            [whole, received],
            lambda g, a: g.send(memory_of(a), 1) if g.me == 0 else g.receive(memory_of(a), 0),
        )
        assert (received == whole).all()
        assert all(min(sent_by_lane(engine)) > 0 for engine in made)


def test_ranks_use_as_many_lanes_as_the_one_with_fewest_has() -> None:
    with engines([3, 1, 2]) as made:
        assert [engine.lane_count for engine in made] == [1, 1, 1]
        arrays = [np.ones(LARGE, np.float32) for _ in made]
        run(groups_of(made), arrays, lambda g, a: g.all_reduce(memory_of(a)))
        assert all((array == 3).all() for array in arrays)


@pytest.mark.parametrize(("lane_counts", "share"), [((2, 4), 0.5), ((1, 4), 1.0)])
def test_lanes_share_the_rate_that_a_rank_may_send_at(
    lane_counts: tuple[int, int], share: float
) -> None:
    with engines(lane_counts) as made:
        for engine in made:
            rate = engine.endpoint.config.rate_bytes_per_us
            for lane in engine.lanes:
                assert lane.endpoint.state.core["fixed_rate"] == share * rate


def test_what_is_small_goes_by_one_lane() -> None:
    with engines([2, 2]) as made:
        arrays = [np.ones(DIVIDED_BYTES // 4 - 1, np.float32) for _ in made]
        run(groups_of(made), arrays, lambda g, a: g.all_reduce(memory_of(a)))
        assert all((array == 2).all() for array in arrays)
        assert [sent_by_lane(engine)[1] for engine in made] == [0, 0]


def test_statistics_are_of_all_lanes_together_and_count_an_operation_once() -> None:
    with engines([2, 2]) as made:
        arrays = [np.ones(LARGE, np.float32) for _ in made]
        options = SumOptions(loss_bound=0.25)
        run(groups_of(made), arrays, lambda g, a: g.all_reduce(memory_of(a), options))
        for engine, array in zip(made, arrays, strict=True):
            stats = engine.stats()
            assert stats.total.sent_packets == sum(sent_by_lane(engine)) > max(sent_by_lane(engine))
            assert stats.operations["all-reduce"].ended == 1
            assert stats.under_way == 0
            assert 0 < stats.peers[1 - engine.endpoint.rank].wait_s <= stats.wait_s
            assert sum(stats.total.sum_due_bytes) == 4 * LARGE // 2
            mine = array[: LARGE // 2] if engine.endpoint.rank == 0 else array[LARGE // 2 :]
            assert sum(stats.total.sum_missing_bytes) == 4 * int((2 - mine).sum())


def test_what_any_lane_loses_is_added_to_the_next_contribution() -> None:
    with engines([2, 2]) as made:
        groups = groups_of(made)
        options = SumOptions(loss_bound=0.25, policy=ERROR_FEEDBACK, tensor="gradient")
        arrays = [np.ones(LARGE, np.float32) for _ in made]
        run(groups, arrays, lambda g, a: g.all_reduce(memory_of(a), options))
        missing = 2 - arrays[0]
        assert (arrays[0] == arrays[1]).all()
        assert 0 < missing.sum() <= 0.25 * LARGE
        again = [np.zeros(LARGE, np.float32) for _ in made]
        for group, array in zip(groups, again, strict=True):
            memory = memory_of(array)
            group.feedback.add_back(("gradient", memory.form, memory.count), memory.address)
        assert (again[0] + again[1] == missing).all()


def test_a_transfer_fails_on_all_lanes_when_its_time_is_up_and_the_next_one_succeeds() -> None:
    with engines([2, 2], deadline_s=0.5) as made:
        groups = groups_of(made)
        arrays = [np.ones(LARGE, np.float32) for _ in made]
        alone = groups[0].all_reduce(memory_of(arrays[0]))
        assert alone is not None
        with pytest.raises(DeadlineExceeded, match="it waits for rank 1"):
            alone.wait()
        assert all(not lane.transfers() for lane in made[0].lanes)
        assert made[0].stats().operations["all-reduce"].failed == 1
        late = groups[1].all_reduce(memory_of(arrays[1]))
        assert late is not None
        with pytest.raises(DeadlineExceeded):
            late.wait()
        run(groups, arrays, lambda g, a: g.broadcast(memory_of(a), 0))


def test_waiting_for_a_rank_that_is_gone_ends_once() -> None:
    with engines([2, 2]) as made:
        array = np.ones(LARGE, np.float32)
        transfer = groups_of(made)[0].all_reduce(memory_of(array))
        assert transfer is not None
        told: list[ShoalError | None] = []
        transfer.tell(told.append)
        assert made[1]._links is not None
        made[1]._links.close()
        with pytest.raises(WorkerLost, match="Rank 1 is gone"):
            transfer.wait()
        assert len(told) == 1
        made[1]._links = None


def test_closing_ends_every_lanes_thread() -> None:
    before = set(threading.enumerate())
    with engines([3, 3]) as made:
        names = {each.name for each in set(threading.enumerate()) - before}
        assert {f"shoal-lane-{number}" for number in range(3)} <= names
        array = np.ones(LARGE, np.float32)
        unmatched = groups_of(made)[0].all_reduce(memory_of(array))
    assert unmatched is not None
    with pytest.raises(ShoalError):
        unmatched.wait()
    assert all(lane._thread is None for engine in made for lane in engine.lanes)
    assert not [each for each in threading.enumerate() if each.name.startswith("shoal-lane")]


def test_a_number_used_twice_is_refused_on_all_lanes_alike() -> None:
    with engines([2, 2]) as made:
        groups = groups_of(made)
        arrays = [np.ones(LARGE, np.float32) for _ in made]
        run(groups, arrays, lambda g, a: g.all_reduce(memory_of(a), iteration=5))
        again = groups[0].all_reduce(memory_of(arrays[0]), iteration=5)
        assert again is not None
        with pytest.raises(ShoalError, match="has been used"):
            again.wait()


def test_a_broken_socket_of_one_lane_ends_the_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    with engines([2, 2]) as made:
        pump = made[0].lanes[1]._pump
        broken = threading.Event()

        def fails(until: int) -> int:
            return lanes.FAILED if broken.is_set() else pump(until)

        monkeypatch.setattr(made[0].lanes[1], "_pump", fails)
        array = np.ones(LARGE, np.float32)
        transfer = groups_of(made)[0].all_reduce(memory_of(array))
        assert transfer is not None
        broken.set()
        with pytest.raises(ShoalError, match="receive socket failed"):
            transfer.wait()


def test_only_a_link_that_says_so_is_known_to_be_fast() -> None:
    assert link_bits_per_s("127.0.0.1") == link_bits_per_s("::1") == math.inf
    assert link_bits_per_s("192.0.2.77") is None
    assert link_bits_per_s("localhost") is None


def test_what_is_submitted_after_its_owner_was_ended_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with engines([1, 1]) as made:
        before = groups_of(made)[0].all_reduce(memory_of(np.ones(LARGE, np.float32)))
        owner = before.owner = object()
        while not made[0].lanes[0]._running:
            time.sleep(0.001)
        with monkeypatch.context() as asleep:  # the loop hears of all at once, later
            asleep.setattr(made[0].lanes[0], "_wake", lambda: None)
            made[0].end_transfers(owner, ShoalError("The workers that take part change."))
            groups = [TransportGroup(engine, (0, 1), stream=10) for engine in made]
            arrays = [np.ones(LARGE, np.float32) for _ in made]
            after = groups[0].all_reduce(memory_of(arrays[0]))
            after.owner = owner
        made[0].lanes[0]._wake()
        with pytest.raises(ShoalError, match="take part change"):
            before.wait()
        groups[1].all_reduce(memory_of(arrays[1])).wait()
        after.wait()
        assert all((array == 2).all() for array in arrays)
