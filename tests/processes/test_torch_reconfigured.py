"""Process groups whose members change, as torch's own tests of fault tolerance have it.

Those (test_c10d_fault_tolerance.py) are not in torch's wheel: their cases are written anew here,
for the group itself, with any torch, and for torch's functions, which 2.14 has.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

from shoal.adapters.ddp import register  # noqa: E402
from shoal.errors import DeadlineExceeded, ShoalError, UsageError, WorkerLost  # noqa: E402
from thoroughness import examples  # noqa: E402

if TYPE_CHECKING:
    from worker_processes import RunWorkers

SIZE = 3
LAST = SIZE - 1
needs_torch_functions = pytest.mark.skipif(
    not hasattr(dist, "_reconfigure"), reason="needs torch 2.14: make test-versions"
)
WAYS = ["group", pytest.param("torch", marks=needs_torch_functions)]


class Member:
    """One of three who may be members, of a group by itself or by way of torch's functions."""

    def __init__(self, way: str, case: str, timeout_s: float = 30.0, rank: int = -1) -> None:
        from shoal.adapters.torch_reconfigured_group import ReconfiguredGroup
        from shoal.wire import EXACT

        self.rank = int(os.environ["RANK"]) if rank < 0 else rank
        master = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self.board = dist.PrefixStore(case, dist.TCPStore(*master, is_master=False))
        store, self._is_torch = dist.PrefixStore("group", self.board), way == "torch"
        if self._is_torch:
            more: Any = {"enable_reconfigure": True, "timeout": timedelta(seconds=timeout_s)}
            dist.init_process_group("shoal", store=store, rank=self.rank, world_size=SIZE, **more)
            assert dist._supports_reconfigure()
            self.group: Any = dist.group.WORLD
        else:
            self.group = ReconfiguredGroup(store, self.rank, SIZE, deadline_s=timeout_s, sums=EXACT)

    @property
    def handle(self) -> str:
        return (
            dist._get_reconfigure_handle()
            if self._is_torch
            else self.group.get_reconfigure_handle()
        )

    def handles(self, moment: str) -> list[str]:
        """Return the handles of all three, in the order of their ranks."""
        self.board.set(f"{moment}/{self.rank}", self.handle)
        return [self.board.get(f"{moment}/{rank}").decode() for rank in range(SIZE)]

    def meet(self, moment: str) -> None:
        self.handles(moment)

    def reconfigure(self, uuid: int, handles: Any, timeout_s: float | None = 30.0) -> None:
        timeout = None if timeout_s is None else timedelta(seconds=timeout_s)
        if self._is_torch:
            work = dist._reconfigure(uuid, handles, timeout=timeout)
        else:
            options = SimpleNamespace(uuid=uuid, handles=handles, timeout=timeout, hints={})
            work = self.group.reconfigure(options)
        assert work.wait()

    def joined(self, uuid: int) -> list[str]:
        """Become one of all three; return their handles, collected again."""
        self.reconfigure(uuid, self.handles(f"joined-{uuid}"))
        self.check(self.rank, SIZE)
        return self.handles(f"joined-{uuid}-again")

    def check(self, rank: int, size: int) -> None:
        """This is `rank` of `size`, and a sum is that of all these."""
        assert (self.group.rank(), self.group.size()) == (rank, size)
        if self._is_torch:
            assert (dist.get_rank(), dist.get_world_size()) == (rank, size)
        tensor = torch.full((5,), rank + 1.0)
        self.group.allreduce([tensor], dist.AllreduceOptions()).wait()
        assert tensor.tolist() == [size * (size + 1) / 2] * 5

    def close(self) -> None:
        if self._is_torch:
            dist.destroy_process_group()
        else:
            self.group.shutdown()


def messages(it: Member) -> None:
    it.joined(300)
    came = torch.zeros(4)
    sent = it.group.send([torch.full((4,), it.rank + 1.0)], (it.rank + 1) % SIZE, 0)
    assert it.group.recv([came], (it.rank - 1) % SIZE, 0).wait()
    assert sent.wait()
    assert came.tolist() == [(it.rank - 1) % SIZE + 1.0] * 4


def without_the_last(it: Member) -> None:
    handles = it.joined(400)
    if it.rank != LAST:
        it.reconfigure(401, handles[:LAST])
        it.check(it.rank, LAST)
        tensor = torch.full((4,), 42.0 * (it.rank == 0))
        it.group.broadcast([tensor], dist.BroadcastOptions()).wait()
        assert tensor.tolist() == [42.0] * 4
    it.meet("done")


def without_one_in_the_middle(it: Member) -> None:
    handles = it.joined(500)
    if it.rank != 1:
        it.reconfigure(501, [handles[0], handles[2]])
        it.check(it.rank // 2, 2)
    it.meet("done")


def down_to_one_and_up(it: Member) -> None:
    for turn in range(2):
        it.reconfigure(600 + 4 * turn + it.rank, [it.handle])
        it.check(0, 1)
        it.joined(603 + 4 * turn)


def the_same_again(it: Member) -> None:
    it.reconfigure(801, it.joined(800))
    it.check(it.rank, SIZE)


def one_comes_late(it: Member) -> None:
    if it.rank == 0:
        it.reconfigure(900, [it.handle])
        it.check(0, 1)
    it.joined(901)


def two_parts_become_one(it: Member) -> None:
    handles = it.handles("begin")
    it.reconfigure(1000 + (it.rank > 0), handles[:1] if it.rank == 0 else handles[1:])
    it.check(max(0, it.rank - 1), 1 if it.rank == 0 else 2)
    it.joined(1002)


def each_leaves_and_comes_back(it: Member) -> None:
    handles = it.joined(1100)
    for away in range(SIZE):
        others = [rank for rank in range(SIZE) if rank != away]
        if it.rank != away:
            it.reconfigure(1101 + 2 * away, [handles[rank] for rank in others])
            it.check(others.index(it.rank), 2)
        order = [*others, away]  # who comes back has the last rank
        it.reconfigure(1102 + 2 * away, [handles[rank] for rank in order])
        it.check(order.index(it.rank), SIZE)


def a_set_of_handles(it: Member) -> None:
    handles = it.handles("begin")
    it.reconfigure(1200, set(handles))
    it.check(sorted(handles).index(it.handle), SIZE)


def after_an_abort(it: Member) -> None:
    it.joined(1300)
    waiting = None
    if it.rank == 0:
        waiting = it.group.recv([torch.zeros(4)], 1, 3)
    it.group.abort()
    if waiting is not None:
        with pytest.raises(ShoalError, match=r"aborted|Rank 1 is gone"):  # who aborts first
            waiting.wait()
    with pytest.raises(ShoalError):
        it.group.allreduce([torch.ones(4)], dist.AllreduceOptions()).wait()
    it.joined(1301)


def after_a_timeout(it: Member) -> None:
    it.joined(1400)
    it.group.set_timeout(timedelta(milliseconds=50))
    if it.rank == 1:
        with pytest.raises(DeadlineExceeded):
            it.group.allreduce([torch.ones(4)], dist.AllreduceOptions()).wait()
    it.group.set_timeout(timedelta(seconds=30))
    it.meet("noticed")
    it.joined(1401)


def a_number_twice(it: Member) -> None:
    it.reconfigure(1500 + it.rank, [it.handle])
    with pytest.raises(UsageError, match="already used"):
        it.reconfigure(1500 + it.rank, [it.handle])
    it.check(0, 1)
    handles = it.joined(1503)
    failure = UsageError if it.rank == 0 else DeadlineExceeded
    with pytest.raises(failure):
        it.reconfigure(1503, handles, 0.5)
    it.meet("refused")
    it.check(it.rank, SIZE)  # the members before have stayed


def nobody_comes(it: Member) -> None:
    """Who waits in vain is as before, and may try again with another number."""
    handles = it.handles("begin")
    if it.rank != LAST:
        with pytest.raises(DeadlineExceeded, match=r"Ranks \[1\] did not start within 0.5 s"):
            it.reconfigure(1600 + it.rank, [it.handle, handles[LAST]], 0.5)
    it.meet("noticed")
    it.joined(1603)


def what_cannot_be(it: Member) -> None:
    handles = it.handles("begin")
    with pytest.raises(UsageError, match="no members yet"):
        it.group.allreduce([torch.ones(4)], dist.AllreduceOptions())
    assert (it.group.rank(), it.group.size()) == (it.rank, SIZE)
    for wrong, sentence in {
        (): "not among the members",
        (handles[it.rank - 1],): "not among the members",
        (it.handle, it.handle): "given twice",
        (it.handle, "gloo:0:-1:0:"): "no handle of a process group of the backend 'shoal'",
    }.items():
        with pytest.raises(UsageError, match=sentence):
            it.reconfigure(1700, list(wrong))
    it.joined(1701)


CASES: list[Callable[[Member], None]] = [
    messages,
    without_the_last,
    without_one_in_the_middle,
    down_to_one_and_up,
    the_same_again,
    one_comes_late,
    two_parts_become_one,
    each_leaves_and_comes_back,
    a_set_of_handles,
    after_an_abort,
    after_a_timeout,
    a_number_twice,
    nobody_comes,
    what_cannot_be,
]


def every_case(way: str) -> None:
    for case in CASES:
        it = Member(way, case.__name__)
        try:
            case(it)
        except BaseException as error:
            error.add_note(f"in the case {case.__name__}")
            raise
        it.meet("over")
        it.close()


@pytest.mark.parametrize("way", WAYS)
def test_members_change_as_torch_wants_it(run_workers: RunWorkers, way: str) -> None:
    run_workers(every_case, SIZE, way, initialize=False)


def many_changes(way: str, rounds: int) -> int:
    """Return how many groups this process was a member of; all draw the same lots."""
    it, chance, taken_part = Member(way, "many"), random.Random(46), 0
    handles = it.handles("begin")
    for turn in range(rounds):
        members = chance.sample(range(SIZE), chance.randint(1, SIZE))
        if it.rank in members:
            it.reconfigure(turn, [handles[rank] for rank in members])
            it.check(members.index(it.rank), len(members))
            taken_part += 1
    it.close()
    return taken_part


@pytest.mark.parametrize("way", WAYS)
def test_a_sum_is_that_of_the_present_members_after_any_changes(
    run_workers: RunWorkers, way: str
) -> None:
    """Who is left out keeps the members that it had, and disturbs no others."""
    counts = run_workers(many_changes, SIZE, way, examples(100), initialize=False)
    assert min(counts) > 2


def mean_of_ddp(way: str, has_hook: bool) -> list[Any]:
    """Return the gradients of a replica among three, and among the two that are left."""
    it = Member(way, "ddp")
    handles = it.joined(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(1, 1, bias=False))
    if has_hook:
        register(model)
    found: list[Any] = []
    for members in ([0, 1, 2], [2, 0]):
        if it.rank not in members:
            break
        it.reconfigure(len(members), [handles[rank] for rank in members])
        model.zero_grad()
        try:
            model(torch.full((1, 1), it.rank + 1.0)).sum().backward()
            found += [parameter.grad.item() for parameter in model.parameters()]
        except UsageError as error:
            found.append(str(error))
    it.meet("done")
    it.close()
    return found


@needs_torch_functions
@pytest.mark.parametrize("has_hook", [True, False])
def test_ddp_has_the_mean_of_the_present_members_or_says_that_it_has_not(
    run_workers: RunWorkers, has_hook: bool
) -> None:
    means = run_workers(mean_of_ddp, SIZE, "torch", has_hook, initialize=False)
    if has_hook:
        assert means == [[2.0, 2.0], [2.0], [2.0, 2.0]]
    else:
        assert [each[0] for each in means] == [2.0] * SIZE
        assert all("divides by 3, and the group has 2 members" in means[rank][1] for rank in (0, 2))


def one_dies(way: str) -> str:
    if int(os.environ["RANK"]) == SIZE:  # it begins when the others have lost one, in its place
        it = Member(way, "dies", rank=1)
        it.board.wait(["lost/0"], timedelta(seconds=30))
        it.reconfigure(3, it.handles("again"))
        it.check(1, SIZE)
        return "came"
    it = Member(way, "dies", timeout_s=20)
    handles = it.joined(0)
    if it.rank == 1:
        os._exit(1)
    with pytest.raises(WorkerLost, match="Rank 1 is gone"):
        it.group.allreduce([torch.ones(4)], dist.AllreduceOptions()).wait()
    with pytest.raises(DeadlineExceeded, match=r"Ranks \[1\] did not start"):
        it.reconfigure(1, handles, 0.5)
    it.reconfigure(2, [handles[0], handles[2]])
    it.check(it.rank // 2, 2)
    it.board.set(f"lost/{it.rank}", "")
    it.reconfigure(3, it.handles("again"))
    it.check(it.rank, SIZE)
    return "went on"


@pytest.mark.parametrize("way", WAYS)
def test_the_others_go_on_without_one_that_has_died_and_with_another_in_its_place(
    run_workers: RunWorkers, way: str
) -> None:
    outcomes = run_workers(one_dies, SIZE, way, may_die=(1,), initialize=False, num_more=1)
    assert outcomes == ["went on", None, "went on", "came"]
