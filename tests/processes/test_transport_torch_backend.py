"""The torch.distributed backend "shoal" between real processes: torch's calls over datagrams."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from shoal.errors import MismatchError, UsageError, WorkerLost
from thoroughness import seldom

if TYPE_CHECKING:
    from worker_processes import RunWorkers

Op = dist.ReduceOp


def join() -> tuple[int, int]:
    dist.init_process_group("shoal")
    return dist.get_rank(), dist.get_world_size()


def values(rank: int, dtype: torch.dtype) -> Tensor:
    return (torch.arange(37) % 5 + rank + 1).to(dtype)


def expected(size: int, dtype: torch.dtype, name: str) -> Tensor:
    rows = torch.stack([values(rank, dtype) for rank in range(size)])
    if name in {"BAND", "BOR", "BXOR"}:
        function = getattr(
            torch, {"BAND": "bitwise_and", "BOR": "bitwise_or"}.get(name, "bitwise_xor")
        )
        total = rows[0]
        for row in rows[1:]:
            total = function(total, row)
        return total
    wide = rows.double()
    return {
        "SUM": wide.sum(0),
        "AVG": wide.mean(0),
        "PRODUCT": wide.prod(0),
        "MIN": wide.min(0).values,
        "MAX": wide.max(0).values,
    }[name].to(dtype)


FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
WHOLES = (torch.int64, torch.int32, torch.int8, torch.uint8)


def reduce_everything() -> None:
    rank, size = join()
    for dtype in (*FLOATS, *WHOLES):
        names = ["SUM", "PRODUCT", "MIN", "MAX"]
        names += ["AVG"] if dtype in FLOATS else ["BAND", "BOR", "BXOR"]
        for name in names:
            found = values(rank, dtype)
            dist.all_reduce(found, getattr(Op, name))
            torch.testing.assert_close(found, expected(size, dtype, name), rtol=0.02, atol=0)
            every = [torch.empty_like(found) for _ in range(size)]
            dist.all_gather(every, found)
            assert all(torch.equal(each, found) for each in every), "replicas differ"
    turned = torch.arange(12.0).view(3, 4).t()
    dist.all_reduce(turned)
    assert torch.equal(turned, size * torch.arange(12.0).view(3, 4).t())
    empty = torch.empty(0)
    dist.all_reduce(empty)
    dist.destroy_process_group()


def test_every_type_and_reduction(run_workers: RunWorkers) -> None:
    run_workers(reduce_everything, 3, initialize=False)


def sum_with_a_wire_type(wire: str) -> None:
    os.environ["SHOAL_WIRE"] = wire
    rank, size = join()
    rounded = getattr(torch, wire)
    for dtype in (*FLOATS, *WHOLES):
        # 1 + 2^-10 takes 11 bits, so bfloat16 rounds it and float16 does not
        found = torch.full((1000,), 1 + 2**-10).to(dtype)
        dist.all_reduce(found)
        if dtype.is_floating_point:  # one's own part of a sum is not rounded before the sum is
            mine = torch.tensor(1 + 2**-10).to(dtype).float()
            total = (mine + mine.to(rounded)).to(rounded).to(dtype)
            assert torch.equal(found, total.expand(1000)), dtype
        else:
            assert (found == size).all()
        smallest = values(rank, dtype)
        dist.all_reduce(smallest, Op.MIN)
        assert torch.equal(smallest, expected(size, dtype, "MIN"))
    part, whole = torch.empty(3), torch.full((6,), 1 + 2**-10)
    dist.reduce_scatter_tensor(part, whole)
    total = torch.full((6,), 1 + 2**-10)
    dist.all_reduce(total)
    assert torch.equal(part, total[3 * rank : 3 * rank + 3])
    exact = torch.full((2, 1000), 1 + 2**-10)
    dist.all_gather_into_tensor(exact, exact[rank].clone())
    dist.broadcast(exact[0], 1)
    assert (exact == 1 + 2**-10).all(), "what is not summed is not rounded"
    dist.destroy_process_group()


@pytest.mark.parametrize(
    "wire", seldom(["float32", "float16", "bfloat16"], often=["float32", "float16"])
)
def test_sums_of_floats_are_sent_as_the_environment_says(
    run_workers: RunWorkers, wire: str
) -> None:
    run_workers(sum_with_a_wire_type, 2, wire, initialize=False)


def disagree(name: str, values: tuple[str, str]) -> str:
    os.environ[name] = values[int(os.environ["RANK"])]
    with pytest.raises(MismatchError) as caught:
        join()
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "values"),
    [("SHOAL_WIRE", ("", "float16")), ("SHOAL_ALL_REDUCE", ("direct", "ring"))],
)
def test_ranks_whose_messages_would_not_fit_say_so(
    run_workers: RunWorkers, name: str, values: tuple[str, str]
) -> None:
    for text in run_workers(disagree, 2, name, values, initialize=False):
        assert f"{name}={values[1]}" in text
        assert text.startswith("Rank 1 has ")
        assert text.endswith(": set them alike on every rank.")


def misfits() -> list[str]:
    _, size = join()
    said = []
    for wrong in (
        lambda: dist.all_gather_into_tensor(torch.zeros(size * 4), torch.zeros(4).double()),
        lambda: dist.all_gather_into_tensor(torch.zeros(size * 4), torch.zeros(1)),
        lambda: dist.reduce_scatter_tensor(torch.zeros(4).double(), torch.zeros(size * 4)),
        lambda: dist.reduce_scatter_tensor(torch.zeros(4).int(), torch.zeros(size * 4)),
        lambda: dist.all_to_all_single(torch.zeros(4), torch.zeros(4), [3, 3], [2, 2]),
        lambda: dist.all_to_all_single(torch.zeros(4), torch.zeros(4), [2, 2], [4]),
    ):
        with pytest.raises(UsageError) as caught:
            wrong()
        said.append(str(caught.value))
    dist.barrier()
    return said


def test_tensors_and_splits_that_do_not_fit_are_refused(run_workers: RunWorkers) -> None:
    for said in run_workers(misfits, 2, initialize=False):
        assert [text.split(" ")[0] for text in said] == ["Shards"] * 4 + ["The"] * 2


def move_everything() -> None:
    rank, size = join()
    told = torch.full((5000,), float(rank))
    dist.broadcast(told, 1)
    assert (told == 1).all()
    parts = [torch.empty(3, 2) for _ in range(size)] if rank == 2 else None
    dist.gather(torch.full((3, 2), float(rank)), parts, dst=2)
    for other, part in enumerate(parts or []):
        assert (part == other).all()
    mine = torch.empty(4)
    rows = [torch.full((4,), 10.0 + other) for other in range(size)] if rank == 0 else None
    dist.scatter(mine, rows, src=0)
    assert (mine == 10 + rank).all()
    shard = torch.empty(5)
    dist.reduce_scatter(shard, [torch.full((5,), float(rank + other)) for other in range(size)])
    assert (shard == sum(range(size)) + size * rank).all()
    reduced = torch.ones(3) * (rank + 1)
    dist.reduce(reduced, 1)
    assert rank != 1 or (reduced == size * (size + 1) / 2).all()
    uneven = torch.arange(sum(range(1, size + 1)), dtype=torch.int64) + 100 * rank
    arrived = torch.empty((rank + 1) * size, dtype=torch.int64)
    dist.all_to_all_single(arrived, uneven, [rank + 1] * size, list(range(1, size + 1)))
    start = sum(range(1, rank + 1))
    row = torch.arange(start, start + rank + 1)
    assert torch.equal(arrived, torch.cat([row + 100 * other for other in range(size)]))
    lists = [torch.empty(2) for _ in range(size)]
    dist.all_to_all(lists, [torch.full((2,), 10.0 * rank + other) for other in range(size)])
    assert [each[0].item() for each in lists] == [10.0 * other + rank for other in range(size)]
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": other} for other in range(size)]
    if rank == 0:
        dist.send(torch.arange(10.0), 1, tag=3)
    elif rank == 1:
        received = torch.empty(10)
        assert dist.recv(received, 0, tag=3) == 0
        assert torch.equal(received, torch.arange(10.0))
    dist.barrier()
    dist.destroy_process_group()


def test_every_collective(run_workers: RunWorkers) -> None:
    run_workers(move_everything, 3, initialize=False)


def move_rows_of_different_sizes() -> None:
    rank, size = join()
    lengths = [0, 700_000, 3][:size]
    for dtype in (torch.float32, torch.int16):
        rows = [torch.empty(length, dtype=dtype) for length in lengths]
        dist.all_gather(rows, torch.full((lengths[rank],), rank + 1, dtype=dtype))
        assert [row.unique().tolist() for row in rows] == [[], [2], [3]]
        for reduction, result in ((Op.SUM, 6), (Op.MAX, 3)):
            parts = [torch.full((length,), rank + 1, dtype=dtype) for length in lengths]
            out = torch.empty(lengths[rank], dtype=dtype)
            dist.reduce_scatter(out, parts, op=reduction)
            assert (out == result).all()
            assert all((part == rank + 1).all() for part in parts)
    with pytest.raises(UsageError, match="5 elements got a place of"):
        dist.all_gather(rows, torch.zeros(5, dtype=torch.int16))
    dist.barrier()
    dist.destroy_process_group()


def test_rows_may_have_a_size_each(run_workers: RunWorkers) -> None:
    run_workers(move_rows_of_different_sizes, 3, initialize=False)


def say_what_is_supported() -> None:
    """Torch asks this on `init_process_group(device_id=...)`, which takes a GPU to call."""
    join()
    assert dist.group.WORLD is not None
    backend: Any = dist.group.WORLD._get_backend(torch.device("cuda", 0))
    assert not backend.supports_splitting
    dist.destroy_process_group()


def test_a_group_says_what_it_supports_on_any_device(run_workers: RunWorkers) -> None:
    run_workers(say_what_is_supported, 2, initialize=False)


def several_groups() -> None:
    rank, size = join()
    pairs = [dist.new_group([first, (first + 1) % size]) for first in range(size)]
    mine = [(rank - 1) % size, rank]
    tensors = {first: torch.full((30_000,), float(rank + 1)) for first in mine}
    order = mine if rank % 2 else mine[::-1]  # in different orders on different ranks
    works = [dist.all_reduce(tensors[first], group=pairs[first], async_op=True) for first in order]
    world = torch.ones(1000)
    works.append(dist.all_reduce(world, async_op=True))
    for work in works:
        work.wait()
    for first, tensor in tensors.items():
        assert (tensor == first + 1 + (first + 1) % size + 1).all()
    assert (world == size).all()
    dist.barrier()
    dist.destroy_process_group()


def test_several_groups_at_once(run_workers: RunWorkers) -> None:
    run_workers(several_groups, 4, initialize=False)


def out_of_order() -> None:
    """Works are waited for in another order on every rank than that in which they were started."""
    rank, size = join()
    tensors = [torch.full((20_000 // (number + 1),), 1.0 + number) for number in range(12)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    told = torch.full((3000,), float(rank))
    works.append(dist.broadcast(told, 1, async_op=True))
    order = torch.randperm(len(works), generator=torch.Generator().manual_seed(rank)).tolist()
    for number in order:
        work = works[number]
        assert work is not None
        work.wait()
        assert work.is_completed()
        if number < len(tensors):
            assert (tensors[number] == size * (1.0 + number)).all()
    assert (told == 1).all()
    dist.destroy_process_group()


def test_works_may_be_waited_for_in_any_order(run_workers: RunWorkers) -> None:
    run_workers(out_of_order, 3, initialize=False)


def batches() -> None:
    """A ring in both directions, and two messages of other sizes between the same ranks."""
    rank, size = join()
    after, before = (rank + 1) % size, (rank - 1) % size
    from_before, from_after = torch.empty(4000), torch.empty(50)
    short, long = torch.empty(3), torch.empty(9000)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.irecv, from_after, after, tag=2),
            dist.P2POp(dist.isend, torch.full((4000,), float(rank)), after),
            dist.P2POp(dist.irecv, from_before, before),
            dist.P2POp(dist.isend, torch.full((50,), 10.0 * rank), before, tag=2),
            dist.P2POp(dist.isend, torch.full((3,), 100.0 * rank), after),
            dist.P2POp(dist.isend, torch.full((9000,), 1000.0 * rank), after),
            dist.P2POp(dist.irecv, short, before),
            dist.P2POp(dist.irecv, long, before),
        ]
    )
    for work in reversed(works):
        work.wait()
    assert (from_before == before).all()
    assert (from_after == 10 * after).all()
    assert (short == 100 * before).all()
    assert (long == 1000 * before).all()
    dist.destroy_process_group()


def test_batches_of_messages(run_workers: RunWorkers) -> None:
    run_workers(batches, 4, initialize=False)


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 10))


def batch(step: int, size: int) -> Tensor:
    return torch.randn(size, 8, 64, generator=torch.Generator().manual_seed(step))


def train_ddp(steps: int) -> Tensor:
    rank, size = join()
    model = nn.parallel.DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(steps):
        optimizer.zero_grad()
        model(batch(step, size)[rank]).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def train_fsdp(steps: int) -> Tensor:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    rank, size = join()
    model = make_model()
    fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(steps):
        optimizer.zero_grad()
        model(batch(step, size)[rank]).square().mean().backward()
        optimizer.step()
    whole = [p.full_tensor().reshape(-1) for p in model.parameters()]  # type: ignore[attr-defined]
    dist.destroy_process_group()
    return torch.cat(whole).detach()


def train_alone(steps: int, size: int) -> Tensor:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(steps):
        optimizer.zero_grad()
        inputs = batch(step, size)
        (sum(model(each).square().mean() for each in inputs) / size).backward()  # type: ignore[union-attr]
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


@pytest.mark.parametrize("train", [train_ddp, train_fsdp])
def test_training_equals_one_process(run_workers: RunWorkers, train: Any) -> None:
    alone = train_alone(4, 3)
    for outcome in run_workers(train, 3, 4, initialize=False):
        torch.testing.assert_close(outcome, alone, rtol=1e-4, atol=1e-6)


def lose_one() -> str:
    from shoal.adapters import torch_backend

    rank, _ = join()
    dist.barrier()
    if rank == 1:
        torch_backend.current_engine().close()
        return "gone"
    with pytest.raises(WorkerLost) as caught:
        dist.all_reduce(torch.ones(1000))
    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 3), init_sync=False)
    with pytest.raises(WorkerLost, match="Rank 1 is gone"):
        model(torch.ones(1, 3)).sum().backward()
    dist.destroy_process_group()
    return str(caught.value)


@pytest.mark.long  # one that dies under DDP comes below
def test_a_lost_rank_raises_and_ddp_does_too(run_workers: RunWorkers) -> None:
    outcomes = run_workers(lose_one, 3, initialize=False)
    assert "Rank 1 is gone" in outcomes[0]
    assert "Rank 1 is gone" in outcomes[2]


def die_while_training() -> tuple[int | None, int]:
    """Rank 1 ends without a word, as a killed process does."""
    rank, size = join()
    model = nn.parallel.DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def train_for_ever() -> None:
        for step in itertools.count():
            if rank == 1 and step == 3:
                os._exit(1)
            optimizer.zero_grad()
            model(batch(step, size)[rank]).square().mean().backward()
            optimizer.step()

    with pytest.raises(WorkerLost) as caught:
        train_for_ever()
    dist.destroy_process_group()
    names = [thread.name for thread in threading.enumerate()]
    return caught.value.rank, names.count("shoal-transport")


def test_a_rank_that_dies_under_ddp_is_named_and_all_can_leave(run_workers: RunWorkers) -> None:
    """The limit on the run is far below the group's timeout of half an hour."""
    outcomes = run_workers(die_while_training, 4, may_die=(1,), initialize=False)
    assert outcomes == [(1, 0), None, (1, 0), (1, 0)]


def test_torch_knows_the_backend_without_an_import_of_shoal() -> None:
    code = (
        "import sys, torch.distributed as dist\n"
        "assert dist.Backend('shoal') == 'shoal'\n"
        "assert 'SHOAL' in dist.Backend._plugins\n"
        "assert 'numba' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=50)
