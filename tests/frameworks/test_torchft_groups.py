"""torchft's process group over Shoal's transport: replicas that are threads of one process."""

from __future__ import annotations

import gc
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch
from torch import distributed as dist
from torch.distributed import distributed_c10d as c10d

from shoal.errors import DeadlineExceeded, UsageError, WorkerLost
from thoroughness import examples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

needs_torchft = pytest.mark.skipif(
    find_spec("torchft") is None, reason="needs torchft: make test-frameworks"
)
TIMEOUT = timedelta(seconds=20)


class Replicas:
    """`size` replicas of torchft's, and the store at which each quorum of them meets."""

    def __init__(self, size: int) -> None:
        from shoal.adapters.torchft import ProcessGroupShoal

        self.groups = [ProcessGroupShoal(TIMEOUT) for _ in range(size)]
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._quorums = count()
        self._threads = ThreadPoolExecutor(size)

    def configure(self, members: Sequence[int], *, absent: int = 0) -> None:
        """Let `members` form a group, in this order; as many more are `absent` from it."""
        address = f"127.0.0.1:{self._store.port}/torchft/{next(self._quorums)}/0"
        size = len(members) + absent

        def form(rank: int, group: Any) -> None:
            group.configure(address, f"replica-{members[rank]}", rank, size, 1, 0, 1, [])

        self.each(members, form)

    def each(self, members: Sequence[int], act: Callable[[int, Any], Any]) -> list[Any]:
        """Return what `act`, which is given a rank and a group, returns for each of `members`."""
        groups = [self.groups[member] for member in members]
        return list(self._threads.map(act, range(len(groups)), groups))

    def summed(self, members: Sequence[int]) -> list[float]:
        """Return what each of `members` gets for the sum of powers of two, one for each."""

        def add(rank: int, group: Any) -> float:
            tensor = torch.full((1000,), float(1 << members[rank]))
            assert group.allreduce([tensor], dist.ReduceOp.SUM).wait()
            assert (tensor == tensor[0]).all()
            return float(tensor[0])

        return self.each(members, add)

    def close(self) -> None:
        self.each(range(len(self.groups)), lambda _, group: group.shutdown())
        self._threads.shutdown()


@pytest.fixture
def three() -> Iterator[Replicas]:
    replicas = Replicas(3)
    yield replicas
    replicas.close()


def collectives(rank: int, group: Any) -> dict[str, list[float]]:
    """Return the outcome of everything that torchft asks a group of three for, at one of them."""
    found: dict[str, list[float]] = {}

    def done(name: str, work: Any, *tensors: torch.Tensor) -> None:
        assert work.wait()
        found[name] = [float(value) for tensor in tensors for value in tensor.reshape(-1)]

    def mine(length: int = 1) -> torch.Tensor:
        return torch.arange(length, dtype=torch.float32) + 10 * rank

    options = c10d.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MAX
    tensor = mine()
    done("all-reduce", group.allreduce([tensor], options), tensor)
    pair = [mine(), mine(2)]
    coalesced = c10d.AllreduceCoalescedOptions()
    done("coalesced", group.allreduce_coalesced(pair, coalesced), *pair)
    places = [torch.zeros(2) for _ in range(3)]
    done("all-gather", group.allgather([places], [mine(2)], c10d.AllgatherOptions()), *places)
    whole = torch.zeros(6)
    gathered = group.allgather_into_tensor_coalesced([whole], [mine(2)], c10d.AllgatherOptions())
    done("all-gather into one", gathered, whole)
    rows = torch.zeros(3)
    done("all-to-all", group.alltoall_base(rows, mine(3), [], [], c10d.AllToAllOptions()), rows)
    done("barrier", group.barrier(c10d.BarrierOptions()))
    root = c10d.BroadcastOptions()
    root.rootRank = 2
    tensor = mine(2)
    done("broadcast", group.broadcast([tensor], root), tensor)
    tensor = mine()
    done("broadcast of one", group.broadcast_one(tensor, 1), tensor)
    shard, scatter = torch.zeros(1), c10d.ReduceScatterOptions()
    done("shard of parts", group.reduce_scatter([shard], [[*mine(3).split(1)]], scatter), shard)
    shard = torch.zeros(1)
    scattered = group.reduce_scatter_tensor_coalesced([shard], [mine(3)], scatter)
    done("shard", scattered, shard)
    tensor = torch.zeros(2)
    sent = group.send([mine(2)], (rank + 1) % 3, 7)
    done("message", group.recv([tensor], (rank - 1) % 3, 7), tensor)
    assert sent.wait()
    assert group.size() == 3
    return found


@needs_torchft
def test_replicas_have_all_of_torchft_s_collectives(three: Replicas) -> None:
    three.configure([2, 0, 1])
    for rank, found in enumerate(three.each([2, 0, 1], collectives)):
        everyone = [0.0, 1.0, 10.0, 11.0, 20.0, 21.0]
        assert found == {
            "all-reduce": [20.0],
            "coalesced": [30.0, 30.0, 33.0],
            "all-gather": everyone,
            "all-gather into one": everyone,
            "all-to-all": [rank, rank + 10.0, rank + 20.0],
            "barrier": [],
            "broadcast": [20.0, 21.0],
            "broadcast of one": [10.0],
            "shard of parts": [30.0 + 3 * rank],
            "shard": [30.0 + 3 * rank],
            "message": [(rank - 1) % 3 * 10.0, (rank - 1) % 3 * 10.0 + 1],
        }
    assert [group.getBackendName() for group in three.groups] == ["torchft-shoal"] * 3


@needs_torchft
def test_a_sum_is_that_of_the_latest_quorum_whoever_was_in_those_before() -> None:
    """Replicas that a quorum leaves out keep their old group, and disturb no later one."""
    replicas, chance = Replicas(4), random.Random(46)
    sizes = set()
    for _ in range(examples(48, share=4)):
        members = chance.sample(range(4), chance.randint(1, 4))
        replicas.configure(members)
        sizes.add(len(members))
        assert replicas.summed(members) == [sum(1 << each for each in members)] * len(members)
        assert [replicas.groups[each].errored() for each in members] == [None] * len(members)
    assert sizes == {1, 2, 3, 4}
    replicas.close()


def held() -> tuple[int, int]:
    """Return how many descriptors, and threads of transports, this process has."""
    gc.collect()  # of earlier tests, stores that nobody holds any more
    moving = [
        each for each in threading.enumerate() if each.name.startswith(("shoal-l", "shoal-b"))
    ]
    return len(list(Path("/proc/self/fd").iterdir())), len(moving)


@needs_torchft
def test_a_group_that_is_formed_again_leaves_nothing_of_the_one_before() -> None:
    replicas = Replicas(2)
    replicas.configure([0, 1])
    assert replicas.summed([0, 1]) == [3.0, 3.0]
    before = held()
    for _ in range(examples(100, share=5)):
        replicas.configure([0, 1])
    assert replicas.summed([0, 1]) == [3.0, 3.0]
    end = time.monotonic() + 30  # groups that were left answer the others for a while
    while held() != before and time.monotonic() < end:
        time.sleep(0.05)
    assert held() == before
    replicas.close()


@needs_torchft
def test_a_sum_without_a_member_is_over_and_the_group_says_why(three: Replicas) -> None:
    three.configure([0, 1, 2])
    tensor, message = torch.ones(1000), torch.zeros(4)
    two = three.groups[:2]
    waiting = [group.allreduce([tensor.clone()], dist.ReduceOp.SUM) for group in two]
    receiving = two[0].recv([message], 2, 0)
    assert not any(work.is_completed() for work in waiting)
    engine = three.groups[2].parent.engine.engine
    engine._links.close()  # as the end of its process does
    engine._links = None
    for group, work in zip(two, waiting, strict=True):
        assert work.wait()
        assert len(work.get_future().wait()) == 1
        assert isinstance(group.errored(), WorkerLost)
        assert "Rank 2 is gone" in str(group.errored())
        later = group.allreduce([tensor.clone()], dist.ReduceOp.SUM)
        assert later.is_success()
    with pytest.raises(WorkerLost):  # a message that did not come must not be taken for one
        receiving.wait()
    three.configure([1, 0])
    assert [group.errored() for group in two] == [None, None]
    assert three.summed([1, 0]) == [3.0, 3.0]


@needs_torchft
def test_aborting_ends_what_is_under_way_and_a_later_group_is_not_blamed(three: Replicas) -> None:
    three.configure([0, 1, 2])
    group = three.groups[0]
    work = group.allreduce([torch.ones(4)], dist.ReduceOp.SUM)
    group.abort()
    assert work.wait()
    assert "aborted" in str(group.errored())
    assert group.allreduce([torch.ones(4)], dist.ReduceOp.SUM).is_success()
    with pytest.raises(UsageError, match="aborted"):
        group.broadcast_one(torch.ones(4), 0)
    three.configure([0, 1, 2])
    assert group.errored() is None
    left = group.recv([torch.zeros(4)], 1, 0)
    three.configure([0, 1, 2])
    with pytest.raises((UsageError, WorkerLost)):  # who leaves first is another's loss
        left.wait()
    assert group.errored() is None  # that was of the group before
    assert three.summed([0, 1, 2]) == [7.0] * 3


@needs_torchft
def test_a_group_that_nobody_comes_to_raises_nothing_and_the_next_one_works(
    three: Replicas, caplog: pytest.LogCaptureFixture
) -> None:
    group = three.groups[0]
    with pytest.raises(UsageError, match=r"configure\(\) first"):
        group.size()
    group.set_timeout(timedelta(seconds=0.2))
    three.configure([0], absent=1)
    assert isinstance(group.errored(), DeadlineExceeded)
    assert caplog.messages == ["No group was formed: Ranks [1] did not start within 0.2 s."]
    assert group.allreduce([torch.ones(4)], dist.ReduceOp.SUM).is_success()
    with pytest.raises(DeadlineExceeded):
        group.broadcast_one(torch.ones(4), 0)
    group.set_timeout(TIMEOUT)
    three.configure([0, 1, 2])
    assert three.summed([0, 1, 2]) == [7.0] * 3
    for each in three.groups:
        each.set_timeout(timedelta(seconds=0.2))
    assert group.allreduce([torch.ones(4)], dist.ReduceOp.SUM).wait()  # which nobody joins
    assert isinstance(group.errored(), DeadlineExceeded)


@needs_torchft
def test_what_the_environment_says_wrong_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_LOSS_BOUND", "most")
    with pytest.raises(UsageError, match="SHOAL_LOSS_BOUND"):
        Replicas(1)


def test_without_torchft_importing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchft", None)
    monkeypatch.delitem(sys.modules, "torchft.process_group", raising=False)
    monkeypatch.delitem(sys.modules, "shoal.adapters.torchft", raising=False)
    sentence = r"^shoal.adapters.torchft needs torchft: pip install .*torchft"
    with pytest.raises(ImportError, match=sentence):
        import_module("shoal.adapters.torchft")
