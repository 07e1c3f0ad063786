"""The torch backend's less common calls: from any source, sparse, refused, with a timeout."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from shoal.errors import DeadlineExceeded, UsageError

if TYPE_CHECKING:
    from worker_processes import RunWorkers


def multiplied(factor: Any) -> Any:
    """Return the sum of contributions times `factor`, however this torch lets it be asked for."""
    make: Any = dist.ReduceOp.PREMUL_SUM
    return make(factor) if callable(make) else dist._make_nccl_premul_sum(factor)


def join(timeout_s: float = 40.0) -> tuple[int, int]:
    dist.init_process_group("shoal", timeout=timedelta(seconds=timeout_s))
    return dist.get_rank(), dist.get_world_size()


def header_then_payload() -> list[tuple[int, int]]:
    """Rank 0 learns from a header, from anyone, how long the same rank's next message is."""
    rank, size = join()
    heard = []
    if rank == 0:
        for _ in range(3 * (size - 1)):
            header = torch.empty(1, dtype=torch.int64)
            source = dist.recv(header)
            payload = torch.empty(int(header))
            assert dist.recv(payload, source) == source
            assert (payload == 100 * source + len(payload)).all()
            heard.append((source, len(payload)))
    else:
        for turn in range(3):
            length = 1000 * (turn + 1) + rank
            dist.send(torch.tensor([length]), 0)
            dist.send(torch.full((length,), 100.0 * rank + length), 0)
    dist.barrier()
    dist.destroy_process_group()
    return heard


def test_any_source_then_the_same_source(run_workers: RunWorkers) -> None:
    heard = run_workers(header_then_payload, 4, initialize=False)[0]
    for source in (1, 2, 3):
        assert [length for other, length in heard if other == source] == [
            1000 * (turn + 1) + source for turn in range(3)
        ]


def what_was_left_open() -> None:
    """What stays open after a receive from anyone serves the named receives that follow."""
    rank, size = join()
    if rank == 0:
        word = torch.empty(2)
        first = dist.recv(word, tag=5)
        dist.barrier()  # only now do the others send
        for source in range(1, size):
            expected = 2 if source == first else 1
            for turn in range(1 if source == first else 0, expected):
                dist.recv(word, source, tag=5)
                assert word.tolist() == [source, turn]
        with pytest.raises(UsageError, match="not empty"):
            dist.recv(torch.empty(0))
        waiting = [dist.irecv(torch.empty(2), tag=6) for _ in range(2)]
        with pytest.raises(UsageError, match="another tag"):
            dist.recv(word, 1, tag=6)
        with pytest.raises(UsageError, match="left one of 8 bytes open"):
            dist.irecv(torch.empty(3), tag=6)
        dist.barrier()
        for work in waiting:
            assert work is not None
            work.wait()
        assert sorted(work._source_rank() for work in waiting) == [1, 2]  # type: ignore[union-attr]
    else:
        if rank == 1:
            dist.send(torch.tensor([1.0, 0.0]), 0, tag=5)
        dist.barrier()
        dist.send(torch.tensor([float(rank), 1.0 if rank == 1 else 0.0]), 0, tag=5)
        dist.barrier()
        dist.send(torch.ones(2), 0, tag=6)
    dist.barrier()
    dist.destroy_process_group()


def test_receives_left_open_serve_what_follows(run_workers: RunWorkers) -> None:
    run_workers(what_was_left_open, 3, initialize=False)


def sparse_part(rank: int, dtype: torch.dtype) -> Tensor:
    """Return entries that ranks share, that only one has, that are twice there, or none at all."""
    if rank == 2:
        return torch.sparse_coo_tensor(torch.empty((2, 0)), torch.empty((0, 3)), (5, 4, 3)).to(
            dtype
        )
    places = [[0, rank + 1, 0, 4], [1, rank, 1, 3]]
    values = torch.arange(12).view(4, 3) + 10 * rank
    return torch.sparse_coo_tensor(places, values.to(dtype), (5, 4, 3))


def sum_sparse_tensors() -> None:
    rank, size = join()
    for dtype in (torch.float32, torch.float64, torch.int64):
        expected = sum(sparse_part(other, dtype).to_dense() for other in range(size))
        total = sparse_part(rank, dtype)
        dist.all_reduce(total)
        assert torch.equal(total.to_dense(), expected)
    mean = sparse_part(rank, torch.float64)
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    expected = sum(sparse_part(other, torch.float64).to_dense() for other in range(size))
    torch.testing.assert_close(mean.to_dense(), expected / size)
    nothing = torch.sparse_coo_tensor((4, 4))
    dist.all_reduce(nothing)
    assert nothing._nnz() == 0
    with pytest.raises(UsageError, match="SUM only"):
        dist.all_reduce(sparse_part(rank, torch.float32), dist.ReduceOp.MAX)
    dist.destroy_process_group()


def test_sums_of_sparse_tensors(run_workers: RunWorkers) -> None:
    run_workers(sum_sparse_tensors, 4, initialize=False)


def train_embedding() -> Tensor:
    rank, _size = join()
    torch.manual_seed(0)
    model = nn.EmbeddingBag(20, 4, sparse=True, mode="sum")
    parallel = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    for step in range(3):
        optimizer.zero_grad()
        parallel(words(step)[rank]).square().sum().backward()
        assert model.weight.grad is not None
        assert model.weight.grad.is_sparse
        optimizer.step()
    dist.destroy_process_group()
    return model.weight.detach()


def words(step: int) -> Tensor:
    return torch.randint(20, (3, 2, 5), generator=torch.Generator().manual_seed(step))


def test_ddp_with_sparse_gradients_equals_one_process(run_workers: RunWorkers) -> None:
    torch.manual_seed(0)
    model = nn.EmbeddingBag(20, 4, sparse=True, mode="sum")
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    for step in range(3):
        optimizer.zero_grad()
        loss = torch.stack([model(each).square().sum() for each in words(step)]).mean()
        loss.backward()
        optimizer.step()
    for outcome in run_workers(train_embedding, 3, initialize=False):
        torch.testing.assert_close(outcome, model.weight.detach())


def ask_for_the_impossible() -> None:
    rank, size = join()
    with pytest.raises(UsageError, match=r"cannot reduce torch.float32 by BAND"):
        dist.all_reduce(torch.ones(4), dist.ReduceOp.BAND)
    with pytest.raises(UsageError, match="PREMUL_SUM multiplies floats"):
        dist.all_reduce(torch.ones(4, dtype=torch.int32), multiplied(2.0))
    total = torch.ones(4)
    dist.all_reduce(total)  # nothing has come to harm
    assert (total == size).all()
    flags = torch.tensor([rank == 0, True, False])
    dist.all_reduce(flags, dist.ReduceOp.MAX)
    assert flags.tolist() == [True, True, False]
    dist.destroy_process_group()


def test_impossible_reductions_are_refused_at_once(run_workers: RunWorkers) -> None:
    run_workers(ask_for_the_impossible, 2, initialize=False)


def multiply_first() -> None:
    rank, size = join()
    total = size * (size + 1) / 2
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        mine = torch.full((6,), rank + 1.0, dtype=dtype)
        for factor in (0.5, torch.tensor([0.5], dtype=dtype)):
            found, shard = mine.clone(), torch.empty(6 // size, dtype=dtype)
            dist.all_reduce(found, multiplied(factor))
            assert (found == total / 2).all()
            dist.reduce_scatter_tensor(shard, mine, multiplied(factor))
            assert (shard == total / 2).all()
        assert (mine == rank + 1).all()
    dist.destroy_process_group()


def test_sums_of_multiplied_contributions(run_workers: RunWorkers) -> None:
    run_workers(multiply_first, 3, initialize=False)


def barrier_within(timeout: timedelta) -> None:
    """As `dist.barrier(timeout=)` does it, which older torches do not have."""
    options = dist.BarrierOptions()
    options.timeout = timeout
    group: Any = dist.group.WORLD
    group.barrier(options).wait()


def wait_for_absent_ranks() -> list[str]:
    """Rank 0 alone does things; the other stays until it has seen them fail."""
    rank, _size = join()
    hasty = dist.new_group(timeout=timedelta(seconds=0.3))
    told = []
    if rank == 0:
        for act in (
            lambda: dist.barrier(hasty),
            lambda: dist.all_reduce(torch.ones(9), group=hasty),
            lambda: dist.recv(torch.ones(9), group=hasty),
            lambda: barrier_within(timedelta(seconds=0.2)),
            lambda: dist.broadcast(torch.ones(9), 0, group=hasty),
            lambda: dist.gather(torch.ones(9), [torch.ones(9) for _ in range(2)], group=hasty),
            lambda: dist.send(torch.ones(9), 1, group=hasty),
        ):
            with pytest.raises(DeadlineExceeded) as caught:
                act()
            told.append(str(caught.value))
    store = dist.distributed_c10d._get_default_store()
    store.set("seen", "") if rank == 0 else store.wait(["seen"])
    dist.destroy_process_group()
    return told


def test_a_group_has_its_own_timeout(run_workers: RunWorkers) -> None:
    told = run_workers(wait_for_absent_ranks, 2, initialize=False)[0]
    assert "within the timeout of 0.3 s; it waits for rank 1" in told[0]
    assert "within the timeout of 0.3 s; it waits for rank 1" in told[1]
    assert "No rank sent with tag 0 within the timeout of 0.3 s" in told[2]
    assert "within the timeout of 0.2 s" in told[3]
    told.pop(2)
    for text, beginning in zip(
        told,
        (
            "The barrier among ranks (0, 1) was",
            "The all-reduce of 9 elements among ranks (0, 1) was",
            "The barrier among ranks (0, 1) was",
            "The broadcast of 36 bytes among ranks (0, 1) was",
            "The gather of 72 bytes among ranks (0, 1) was",
            "The send of 36 bytes to rank 1 was",
        ),
        strict=True,
    ):
        assert text.startswith(beginning)


def make_model() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 2)


def inputs(rank: int, step: int) -> Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(10 * step + rank))


def train_with_our_optimizer(steps: int) -> tuple[str, Tensor]:
    import shoal

    rank, _size = join()
    shoal.init(deadline_s=30.0)
    model = make_model()
    optimizer = shoal.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model)
    for step in range(steps):
        optimizer.zero_grad()
        model(inputs(rank, step)).square().mean().backward()
        optimizer.step()
    optimizer.finish()
    over = type(optimizer.replica.communicator).__name__
    shoal.shutdown()
    return over, nn.utils.parameters_to_vector(model.parameters()).detach()


def test_our_optimizer_goes_over_the_backend_that_is_there(run_workers: RunWorkers) -> None:
    alone, steps, size = make_model(), 3, 2
    optimizer = torch.optim.SGD(alone.parameters(), 0.1)
    for step in range(steps):
        optimizer.zero_grad()
        losses = [alone(inputs(rank, step)).square().mean() for rank in range(size)]
        torch.stack(losses).mean().backward()
        optimizer.step()
    expected = nn.utils.parameters_to_vector(alone.parameters()).detach()
    for over, found in run_workers(train_with_our_optimizer, size, steps, initialize=False):
        assert over == "TransportCommunicator"
        torch.testing.assert_close(found, expected)
