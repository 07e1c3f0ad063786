"""TorchCommunicator between real processes: right averages, honest errors, no hangs."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import pytest
import torch
from worker_processes import RunWorkers, context

from shoal.carriers.subgroup_cache import SubgroupCache
from shoal.carriers.torch_communicator import TorchCommunicator
from shoal.errors import DeadlineExceeded, ShoalError, UsageError, WorkerLost
from thoroughness import seldom

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def connect(deadline_s: float = 20.0, **options: Any) -> TorchCommunicator:
    return TorchCommunicator(deadline_s=deadline_s, **options)


def values_of(rank: int, case: int, length: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * case + rank)
    period = 10_007  # prime, so that it falls in with no piece
    values = torch.randn(min(length, period), generator=generator, dtype=torch.float64).to(dtype)
    return values.repeat(-(-length // period))[:length].clone()


def oracle(
    members: tuple[int, ...], weights: tuple[int, ...], case: int, length: int, dtype: torch.dtype
) -> torch.Tensor:
    factors = weights or (1,) * len(members)
    rows = [
        values_of(rank, case, length, dtype).double() * factor
        for rank, factor in zip(members, factors, strict=True)
    ]
    return torch.stack(rows).sum(0) / sum(factors)


def raised_by(operation: Callable[[], object]) -> ShoalError:
    """Return the error of `operation`, which must be one of Shoal's."""
    with pytest.raises(ShoalError) as caught:
        operation()
    return caught.value


# --- averages -------------------------------------------------------------------------------------


def random_cases(world_size: int, count: int, seed: int) -> list[Any]:
    """(members, weights, length, dtype) of overlapping groups, in one order for all workers."""
    rng = random.Random(seed)
    cases: list[Any] = []
    for _ in range(count):
        members = tuple(sorted(rng.sample(range(world_size), rng.randint(1, world_size))))
        weights = tuple(rng.randint(1, 5) for _ in members) if rng.random() < 0.4 else ()
        length = rng.choice((0, 1, 2, 3, 7, 64, 1000, 4099, 70_001))
        cases.append((members, weights, length, rng.choice(DTYPES)))
    return cases


Average: TypeAlias = "tuple[str, torch.Tensor] | None"
"""A digest of all bits of a mean, and every so many of its elements; None from outsiders."""

STRIDE = 3


def average_cases(cases: list[Any], options: dict[str, Any]) -> list[Average]:
    communicator = connect(**options)
    results: list[Average] = []
    for case, (members, weights, length, dtype) in enumerate(cases):
        if communicator.rank not in members:
            results.append(None)
            continue
        buffer = values_of(communicator.rank, case, length, dtype)
        communicator.group_average(buffer, members, sequence=case, weights=weights).wait()
        digest = hashlib.sha256(buffer.view(torch.uint8).numpy()).hexdigest()
        results.append((digest, buffer[::STRIDE].clone()))
    return results


def check_averages(cases: list[Any], results: list[list[Average]]) -> None:
    for case, (members, weights, length, dtype) in enumerate(cases):
        averages = [results[rank][case] for rank in members]
        digest, sample = averages[0] or ("", torch.empty(0))
        tolerance = 8 * torch.finfo(dtype).eps
        expected = oracle(members, weights, case, length, dtype)[::STRIDE]
        torch.testing.assert_close(sample.double(), expected, rtol=tolerance, atol=tolerance)
        for average in averages:
            assert average is not None
            assert average[0] == digest, f"members differ in case {case}: {cases[case]}"


@pytest.mark.parametrize("world_size", seldom([5, 8], often=[5]))
def test_overlapping_groups_average_right_and_bitwise_equal(
    run_workers: RunWorkers, world_size: int
) -> None:
    cases = random_cases(world_size, 80, seed=world_size)
    check_averages(cases, run_workers(average_cases, world_size, cases, {}))


def in_pieces(size: int, cuts: list[int], dtype: torch.dtype, weights: tuple[int, ...]) -> Any:
    """Return the bits of a mean made at once, and of one made in pieces that end at `cuts`."""
    communicator = connect()
    whole = values_of(communicator.rank, 0, cuts[-1], dtype)
    parts = whole.clone()
    assert communicator.cuts_freely(whole)
    members = range(size)
    communicator.group_average(whole, members, sequence=0, weights=weights).wait()
    works = [
        communicator.group_average(part, members, sequence=1 + number, weights=weights)
        for number, part in enumerate(parts.tensor_split(cuts[:-1]))
    ]
    for work in reversed(works):  # whoever waits makes the last one first
        work.wait()
    return whole.view(torch.uint8).tolist(), parts.view(torch.uint8).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weights", [(), (3, 1, 2, 5)])
def test_a_mean_has_the_same_bits_in_whatever_pieces_it_is_made(
    run_workers: RunWorkers, dtype: torch.dtype, weights: tuple[int, ...]
) -> None:
    cuts = [*sorted(random.Random(3).sample(range(1, 4099), 5)), 4099]
    results = run_workers(in_pieces, 4, 4, cuts, dtype, weights)
    assert all(whole == parts == results[0][0] for whole, parts in results)


@pytest.mark.long  # test_transport_communicator.py has large ones, too
def test_large_buffers_take_several_rounds(run_workers: RunWorkers) -> None:
    everyone, long = tuple(range(8)), 2_100_007
    cases = [
        (everyone, (), long, torch.float32),
        (everyone, (1, 2, 3, 4, 5, 6, 7, 8), long, torch.float32),
        ((2, 5, 7), (), long, torch.float32),
        ((1, 2), (), long, torch.float64),
        ((0, 3), (), long // 2, torch.float32),
    ]
    check_averages(cases, run_workers(average_cases, 8, cases, {}))


def test_subgroups_serve_backends_without_tags(run_workers: RunWorkers) -> None:
    cases = [
        (members, weights, length, torch.float32)
        for members, weights, length, _ in random_cases(5, 40, seed=1)
    ]
    check_averages(cases, run_workers(average_cases, 5, cases, {"always_subgroups": True}))


def average_while_outsiders_sleep(released: Any) -> Any:
    communicator = connect()
    if communicator.rank not in (1, 3):
        released.wait()  # no call of any kind until the members are done
        return None
    buffer = torch.full((1000,), float(communicator.rank))
    communicator.group_average(buffer, (1, 3), sequence=0).wait()
    if communicator.rank == 1:
        communicator.send(torch.ones(1), 3, channel=0).wait()
        released.set()
    else:
        communicator.receive(torch.ones(1), 1, channel=0).wait()
    return buffer.unique().tolist()


def test_nobody_outside_the_group_takes_part(run_workers: RunWorkers) -> None:
    results = run_workers(average_while_outsiders_sleep, 5, context.Event())
    assert results == [None, [2.0], None, [2.0], None]


# --- errors ---------------------------------------------------------------------------------------


def die_while_averaging(length: int) -> Any:
    reported: list[int | None] = []
    communicator = connect(15.0, grace_s=0.2, on_peer_error=lambda rank, _: reported.append(rank))
    members = tuple(range(len(communicator.view)))
    victim = members[-1]
    buffer = torch.ones(length)
    communicator.group_average(buffer, members, sequence=0).wait()
    if communicator.rank == victim:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
    start = time.monotonic()
    sequence = 0

    def keep_averaging() -> None:
        nonlocal sequence
        while True:
            sequence += 1
            communicator.group_average(buffer, members, sequence=sequence).wait()

    error = raised_by(keep_averaging)
    assert time.monotonic() - start < 15
    assert isinstance(error, WorkerLost)
    assert reported[0] == error.rank
    assert (buffer == 1).all(), "nothing of the mean that failed is left in it"
    return error.rank, str(error)


@pytest.mark.parametrize(
    ("size", "length"),
    seldom([(2, 1_000_000), (3, 1_000_000), (4, 4_000_000)], often=[(4, 4_000_000)]),
)
def test_a_killed_member_is_named_to_the_others(
    run_workers: RunWorkers, size: int, length: int
) -> None:
    results = run_workers(die_while_averaging, size, length, may_die=(size - 1,))
    assert results[-1] is None
    blamed = [rank for rank, _ in results[:-1]]
    assert size - 1 in blamed  # who talks to it names it; others name who told them
    assert all("its connection broke while averaging" in text for _, text in results[:-1])


def name_the_culprit() -> Any:
    def on_peer_error(rank: int | None, text: str) -> None:
        named = WorkerLost("Rank 7 ran out of memory.", 7)
        threading.Thread(target=communicator.abort, args=(named,)).start()

    communicator = connect(on_peer_error=on_peer_error)
    communicator.barrier()
    if communicator.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    error = raised_by(communicator.receive(torch.ones(4), 1, channel=0).wait)
    assert raised_by(communicator.barrier) is error
    return str(error)


def test_the_control_plane_may_name_another_culprit(run_workers: RunWorkers) -> None:
    results = run_workers(name_the_culprit, 2, may_die=(1,))
    assert results == ["Rank 7 ran out of memory.", None]


BLOCKED: dict[str, Callable[[TorchCommunicator], object]] = {
    "all_reduce": lambda communicator: communicator.all_reduce(torch.ones(4)).wait(),
    "barrier": lambda communicator: communicator.barrier(),
    "broadcast": lambda communicator: communicator.broadcast(torch.ones(4), 1),
    "group_average": lambda communicator: communicator.group_average(
        torch.ones(9), (0, 1, 2), sequence=0
    ).wait(),
    "receive": lambda communicator: communicator.receive(torch.ones(4), 2, channel=1).wait(),
    "receive_any": lambda communicator: communicator.receive_any(torch.ones(4), channel=1),
    "send": lambda communicator: communicator.send(torch.ones(1 << 24), 2, channel=1).wait(),
}


def abort_while_blocked(name: str, options: dict[str, Any], finished: Any) -> Any:
    communicator = connect(**options)
    if communicator.rank != 0:
        finished.wait()
        return None
    mark = ShoalError("The test said stop.")
    threading.Timer(0.3, communicator.abort, (mark,)).start()
    start = time.monotonic()
    error = raised_by(lambda: BLOCKED[name](communicator))
    took_s = time.monotonic() - start
    later = [raised_by(partial(operation, communicator)) for operation in BLOCKED.values()]
    finished.set()
    return error is mark, all(other is mark for other in later), took_s < 10


@pytest.mark.parametrize("name", seldom(BLOCKED, often=["group_average", "receive_any"]))
def test_abort_ends_blocked_and_later_operations(run_workers: RunWorkers, name: str) -> None:
    results = run_workers(abort_while_blocked, 3, name, {}, context.Event())
    assert results == [(True, True, True), None, None]


def abort_several_threads(finished: Any) -> Any:
    communicator = connect()
    if communicator.rank != 0:
        finished.wait()
        return None
    mark = ShoalError("The test said stop.")
    errors: list[ShoalError] = []
    threads = [
        threading.Thread(
            target=lambda operation=operation: errors.append(
                raised_by(lambda: operation(communicator))
            )
        )
        for operation in BLOCKED.values()
    ]
    for thread in threads:
        thread.start()
    communicator.abort(mark)
    for thread in threads:
        thread.join(15)
    finished.set()
    return len(errors), all(error is mark for error in errors)


def test_abort_ends_all_threads_at_once(run_workers: RunWorkers) -> None:
    results = run_workers(abort_several_threads, 3, context.Event())
    assert results == [(len(BLOCKED), True), None, None]


def wait_for_nobody(name: str, finished: Any) -> Any:
    communicator = connect(0.5)
    if communicator.rank != 0:
        finished.wait()
        return None
    error = raised_by(lambda: BLOCKED[name](communicator))
    assert raised_by(communicator.barrier) is error
    finished.set()
    return type(error), str(error)


# receive_any has none: an idle server is not a late one
@pytest.mark.parametrize(
    "name",
    seldom(sorted(BLOCKED.keys() - {"receive_any"}), often=["barrier", "receive"]),
)
def test_every_wait_has_a_deadline(run_workers: RunWorkers, name: str) -> None:
    kind, text = run_workers(wait_for_nobody, 3, name, context.Event())[0]
    assert kind is DeadlineExceeded
    assert "did not answer within 0.5 s while" in text
    assert text.startswith("Rank" if name in ("send", "receive", "group_average") else "The other")


def disagree(change: str) -> Any:
    communicator = connect(0.5)
    buffer = torch.full((100,), 1.0 + communicator.rank)
    odd = communicator.rank == 1
    error = raised_by(
        lambda: communicator.group_average(
            buffer[:99] if odd and change == "length" else buffer,
            (0, 1),
            sequence=4 if odd and change == "sequence" else 3,
            weights=(2, 1) if odd and change == "weights" else (),
            channel=1 if odd and change == "channel" else 0,
        ).wait()
    )
    return type(error), buffer.unique().tolist()


@pytest.mark.parametrize(
    "change", seldom(["sequence", "length", "weights", "channel"], often=["sequence"])
)
def test_members_that_disagree_get_an_error_and_no_sum(
    run_workers: RunWorkers, change: str
) -> None:
    results = run_workers(disagree, 2, change)
    assert DeadlineExceeded in [kind for kind, _ in results]
    assert {kind for kind, _ in results} <= {DeadlineExceeded, WorkerLost}
    assert [values for _, values in results] == [[1.0], [2.0]]


def misuse() -> None:
    communicator = connect()
    average = communicator.group_average
    wrong: list[tuple[str, Callable[[], object]]] = [
        ("contiguous", lambda: average(torch.ones(4, 4).t(), (0, 1), sequence=0).wait()),
        (
            "float tensors",
            lambda: average(torch.ones(4, dtype=torch.int64), (0, 1), sequence=0).wait(),
        ),
        ("ascending", lambda: average(torch.ones(4), (1, 0), sequence=0).wait()),
        (
            "weight of a member must be a whole number of at least 1",
            lambda: average(torch.ones(4), (0,), sequence=0, weights=(0,)).wait(),
        ),
        ("does not exist", lambda: average(torch.ones(4), (0, 1, 2), sequence=0).wait()),
        (
            "is not in the group",
            lambda: average(torch.ones(4), (1 - communicator.rank,), sequence=0).wait(),
        ),
        (
            "channel is a number",
            lambda: average(torch.ones(4), (0, 1), sequence=0, channel=512).wait(),
        ),
        ("to itself", lambda: communicator.send(torch.ones(4), communicator.rank, channel=0)),
        ("does not exist", lambda: communicator.broadcast(torch.ones(4), 2)),
    ]
    for text, operation in wrong:
        with pytest.raises(UsageError, match=text):
            operation()
    communicator.barrier()  # none of this did any harm


def test_misuse_is_refused(run_workers: RunWorkers) -> None:
    run_workers(misuse, 2)


# --- everything else in the protocol --------------------------------------------------------------


def use_everything() -> Any:
    communicator = connect()
    rank, world_size = communicator.rank, len(communicator.view)
    first, second = torch.full((5,), rank + 1.0), torch.full((2, 3), float(rank))
    works = [communicator.all_reduce(first), communicator.all_reduce(second)]
    for work in works:
        work.wait()
        work.wait()  # a second time returns at once
    shared = torch.tensor([7.0 if rank == 2 else 0.0])
    communicator.broadcast(shared, 2)
    communicator.barrier()

    heard = []
    if rank == 0:
        for _ in range(2 * (world_size - 1)):
            message = torch.zeros(2, dtype=torch.int64)
            source = communicator.receive_any(message, channel=3)
            heard.append((source, *message.tolist()))
    else:
        for number in (1, 2):
            communicator.send(torch.tensor([rank, number]), 0, channel=3).wait()
    return first.tolist(), second.unique().tolist(), shared.item(), heard


def test_the_rest_of_the_protocol(run_workers: RunWorkers) -> None:
    results = run_workers(use_everything, 4)
    assert all(result[:3] == ([10.0] * 5, [6.0], 7.0) for result in results)
    heard = results[0][3]
    assert sorted(heard) == [(rank, rank, number) for rank in (1, 2, 3) for number in (1, 2)]
    for rank in (1, 2, 3):
        assert [number for source, _, number in heard if source == rank] == [1, 2]


def talk_on_two_channels(rounds: int) -> list[bool]:
    communicator = connect()
    right: list[bool] = []

    def talk(channel: int) -> None:
        for step in range(rounds):
            mine = torch.full((1000,), 100.0 * channel + communicator.rank)
            communicator.group_average(mine, (0, 1, 2), sequence=step, channel=channel).wait()
            peer = (communicator.rank + 1) % 3
            sent = communicator.send(mine + step, peer, channel=channel)
            got = torch.empty(1000)
            communicator.receive(got, (communicator.rank - 1) % 3, channel=channel).wait()
            sent.wait()
            mean = 100.0 * channel + 1
            right.append(bool((mine == mean).all() and (got == mean + step).all()))

    threads = [threading.Thread(target=talk, args=(channel,)) for channel in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return right


def test_channels_of_two_threads_do_not_mix(run_workers: RunWorkers) -> None:
    assert run_workers(talk_on_two_channels, 3, 50) == [[True] * 100] * 3


def alone() -> Any:
    communicator = connect()
    buffer = torch.ones(3)
    communicator.group_average(buffer, (0,), sequence=0).wait()
    communicator.all_reduce(buffer).wait()
    communicator.barrier()
    mark = ShoalError("The test said stop.")
    communicator.abort(mark)
    return buffer.tolist(), raised_by(communicator.barrier) is mark


def test_a_single_worker(run_workers: RunWorkers) -> None:
    assert run_workers(alone, 1) == [([1.0, 1.0, 1.0], True)]


# --- the memory of subgroups ----------------------------------------------------------------------


class Workers:
    """Workers with a cache each, in one process; a subgroup is its name."""

    def __init__(self, count: int, capacity: int) -> None:
        self.made: list[tuple[int, str]] = []
        self.open: list[set[str]] = [set() for _ in range(count)]
        self.caches = [self.cache_of(rank, capacity) for rank in range(count)]

    def cache_of(self, rank: int, capacity: int) -> SubgroupCache:
        def make(members: tuple[int, ...], name: str) -> str:
            assert name not in {made for maker, made in self.made if maker == rank}
            self.made.append((rank, name))
            self.open[rank].add(name)
            return name

        return SubgroupCache(make, self.open[rank].remove, capacity)

    def meet(self, members: tuple[int, ...]) -> list[str]:
        proposals: list[tuple[int, int]] = []
        for rank in members:  # first hear all, as messages among members would
            with pytest.raises(InterruptedError):
                self.caches[rank].get(members, lambda mine: self.note(proposals, mine))
        return [self.caches[rank].get(members, lambda _: proposals) for rank in members]

    @staticmethod
    def note(proposals: list[tuple[int, int]], mine: tuple[int, int]) -> list[tuple[int, int]]:
        proposals.append(mine)
        raise InterruptedError


def test_members_always_hold_the_same_subgroup() -> None:
    rng = random.Random(3)
    workers = Workers(6, capacity=3)
    reused = 0
    for _ in range(500):
        members = tuple(sorted(rng.sample(range(6), rng.choice((2, 2, 3, 6)))))
        made = len(workers.made)
        names = workers.meet(members)
        assert len(set(names)) == 1
        assert all(names[0] in workers.open[rank] for rank in members)
        assert len(workers.made) - made in (0, len(members))
        reused += len(workers.made) == made
        assert all(len(held) <= 3 for held in workers.open)
    assert reused > 20


def test_the_least_recently_used_subgroup_goes_first() -> None:
    workers = Workers(4, capacity=2)
    for members in ((0, 1), (0, 2), (0, 1), (0, 3)):
        workers.meet(members)
    made = len(workers.made)
    workers.meet((0, 1))
    assert len(workers.made) == made
    workers.meet((0, 2))
    assert len(workers.made) == made + 2
