"""Tensors that are not in host memory, over the transport: what tests without a GPU can show of it.

Their stand-ins lie in host memory after all, but the transport is told that it must copy them. That
copies keep to the order of a GPU's streams is for tests/gpu to show.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import shoal
from shoal.adapters import torch_host_copies, torch_process_group
from shoal.carriers import host_copy, transport_communicator
from shoal.carriers.transports import LossOptions
from shoal.errors import WorkerLost
from shoal.strategies import STRATEGIES, Averaged
from shoal.transport.endpoint import TransportConfig
from shoal.transport.holes import ERROR_FEEDBACK
from shoal.wire.engine import UdpEngine
from thoroughness import seldom

if TYPE_CHECKING:
    from worker_processes import RunWorkers


_elsewhere: dict[int, Tensor] = {}
"""By address of their memory, which so stays theirs."""


def elsewhere(tensor: Tensor) -> Tensor:
    """Return `tensor`, of another device from now on, as far as the transport can see."""
    _elsewhere[tensor.untyped_storage().data_ptr()] = tensor
    return tensor


def needs_host_copy(tensor: Tensor) -> bool:
    return not tensor.is_sparse and tensor.untyped_storage().data_ptr() in _elsewhere


def watch_copies() -> list[Tensor]:
    """Have the transport copy what is elsewhere; return the list of what it then copies."""
    copied: list[Tensor] = []

    class Watched(host_copy.HostCopy):
        def __init__(self, tensor: Tensor, *, filled: bool = True) -> None:
            super().__init__(tensor, filled=filled)
            copied.append(tensor)
            if not filled:  # as a GPU's copy would be
                self.values.fill_(77)

    for module in (torch_host_copies, torch_process_group, transport_communicator):
        module.needs_host_copy = needs_host_copy
        module.HostCopy = Watched  # type: ignore[misc]
    return copied


def call_everything() -> None:
    dist.init_process_group("shoal")
    rank, size = dist.get_rank(), dist.get_world_size()
    copied = watch_copies()

    def check(expected: int) -> None:
        assert len(copied) == expected, "so many tensors are copied, once each"
        copied.clear()

    total = elsewhere(torch.arange(12.0).view(3, 4).t())
    dist.all_reduce(total)
    assert torch.equal(total, size * torch.arange(12.0).view(3, 4).t())
    check(1)
    largest = elsewhere(torch.tensor([rank, -rank], dtype=torch.int16))
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    assert largest.tolist() == [size - 1, 0]
    check(1)
    told = elsewhere(torch.full((5000,), float(rank)))
    dist.broadcast(told, 1)
    assert (told == 1).all()
    check(1)
    rows = [elsewhere(torch.empty(3)) for _ in range(size)]
    dist.all_gather(rows, elsewhere(torch.full((3,), float(rank))))
    assert [row[2].item() for row in rows] == list(range(size))
    check(size + 1)
    whole = elsewhere(torch.empty(size, 4))
    whole[rank] = rank
    dist.all_gather_into_tensor(whole, whole[rank])
    assert whole[:, 3].tolist() == list(range(size))
    check(2)
    shard = elsewhere(torch.empty(5))
    parts = [elsewhere(torch.full((5,), float(rank + other))) for other in range(size)]
    dist.reduce_scatter(shard, parts)
    assert (shard == sum(range(size)) + size * rank).all()
    copied.clear()
    gathered = [elsewhere(torch.empty(2)) for _ in range(size)] if rank == 2 else None
    dist.gather(elsewhere(torch.full((2,), float(rank))), gathered, dst=2)
    assert [row[0].item() for row in gathered or []] == list(range(size) if rank == 2 else [])
    check(size + 1 if rank == 2 else 1)
    mine = elsewhere(torch.empty(4))
    sent = [elsewhere(torch.full((4,), 10.0 + other)) for other in range(size)]
    dist.scatter(mine, sent if rank == 0 else None, src=0)
    assert (mine == 10 + rank).all()
    swapped = elsewhere(torch.empty(size))
    dist.all_to_all_single(swapped, elsewhere(10 * rank + torch.arange(float(size))))
    assert swapped.tolist() == [10 * other + rank for other in range(size)]
    lists = [elsewhere(torch.empty(2)) for _ in range(size)]
    dist.all_to_all(lists, [elsewhere(torch.full((2,), float(rank))) for _ in range(size)])
    assert [each[1].item() for each in lists] == list(range(size))
    reduced = elsewhere(torch.ones(3) * (rank + 1))
    dist.reduce(reduced, 1)
    assert rank != 1 or (reduced == size * (size + 1) / 2).all()
    dist.destroy_process_group()


def test_every_collective(run_workers: RunWorkers) -> None:
    run_workers(call_everything, 3, initialize=False)


def mix_messages() -> None:
    """Messages of both kinds follow each other, and one is received from anyone."""
    dist.init_process_group("shoal")
    rank, size = dist.get_rank(), dist.get_world_size()
    watch_copies()
    if rank == 0:
        for value in range(6):
            tensor = torch.full((900,), float(value))
            dist.send(elsewhere(tensor) if value % 2 else tensor, 1)
        dist.send(elsewhere(torch.tensor([5.0])), 2, tag=1)
    elif rank == 1:
        for value in range(6):
            tensor = torch.empty(900)
            place = elsewhere(tensor) if value % 3 else tensor
            assert dist.recv(place, 0) == 0
            assert (place == value).all()
    else:
        heard = elsewhere(torch.empty(1))
        assert dist.recv(heard, tag=1) == 0
        assert heard.tolist() == [5.0]
    works = []
    for value in range(4):  # among collectives of host tensors, too
        tensor = torch.full((20_000,), float(value))
        here = elsewhere(tensor) if value % 2 else tensor
        works.append((here, dist.all_reduce(here, async_op=True)))
    for value, (here, work) in reversed(list(enumerate(works))):
        assert work is not None
        work.wait()
        assert (here == size * value).all()
    dist.barrier()
    dist.destroy_process_group()


def test_they_keep_their_order_among_tensors_of_the_host(run_workers: RunWorkers) -> None:
    run_workers(mix_messages, 3, initialize=False)


def reduce_on_some_ranks(copying: int) -> None:
    """Only one rank's tensors are elsewhere, and what follows is numbered alike on all."""
    dist.init_process_group("shoal")
    rank, size = dist.get_rank(), dist.get_world_size()
    watch_copies()
    place = elsewhere if rank == copying else lambda tensor: tensor
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.int16):
        for reduction, expected in ((dist.ReduceOp.SUM, 6), (dist.ReduceOp.MAX, 3)):
            found = place(torch.full((70,), rank + 1).to(dtype))
            work = dist.all_reduce(found, reduction, async_op=True)
            shard = place(torch.empty(2).to(dtype))
            whole = place(torch.full((2 * size,), rank + 1).to(dtype))
            dist.reduce_scatter_tensor(shard, whole, reduction)
            assert work is not None
            work.wait()
            assert (found == expected).all()
            assert (shard == expected).all()
    factor = dist.ReduceOp.PREMUL_SUM(0.5)
    halved = place(torch.full((70,), rank + 1.0))
    dist.all_reduce(halved, factor)
    assert (halved == 3).all()
    reduced = place(torch.ones(3) * (rank + 1))
    dist.reduce(reduced, 1)
    assert rank != 1 or (reduced == 6).all()
    rows = [place(torch.empty(3)) for _ in range(size)]
    dist.all_gather(rows, place(torch.full((3,), float(rank))))
    assert [row[2].item() for row in rows] == list(range(size))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("copying", [0, 2])
def test_ranks_without_a_gpu_meet_those_that_have_one(
    run_workers: RunWorkers, copying: int
) -> None:
    run_workers(reduce_on_some_ranks, 3, copying, initialize=False)


def lose_one() -> str:
    from shoal.adapters import torch_backend

    dist.init_process_group("shoal")
    watch_copies()
    dist.barrier()
    if dist.get_rank() == 1:
        torch_backend.current_engine().close()
        return "Rank 1 is gone"
    with pytest.raises(WorkerLost) as caught:
        dist.all_reduce(elsewhere(torch.ones(1000)))
    dist.destroy_process_group()
    return str(caught.value)


@pytest.mark.long  # test_transport_torch_backend.py has one that dies
def test_a_lost_rank_raises(run_workers: RunWorkers) -> None:
    assert all("Rank 1 is gone" in text for text in run_workers(lose_one, 3, initialize=False))


def sum_and_average() -> dict[str, Any]:
    rank, size = dist.get_rank(), dist.get_world_size()
    engine = UdpEngine(rank, size, TransportConfig(), deadline_s=20.0)
    cards: list[Any] = [None] * size
    dist.all_gather_object(cards, engine.card)
    engine.start(cards)
    communicator = transport_communicator.TransportCommunicator(engine)
    copied = watch_copies()
    sums = [elsewhere(torch.full((5_000,), float(number))) for number in range(5)]
    between = torch.ones(5_000)
    works = [communicator.all_reduce(each) for each in sums[:3]]
    works.append(communicator.all_reduce(between))  # starts at once, and yet keeps its place
    works += [communicator.all_reduce(each) for each in sums[3:]]
    for work in [*works, works[0]]:
        work.wait()
    told = elsewhere(torch.full((100,), float(rank)))
    communicator.broadcast(told, 2)
    mean = elsewhere(torch.full((3_000,), float(rank), dtype=torch.bfloat16))
    communicator.group_average(mean, range(size), sequence=0, weights=range(1, size + 1)).wait()
    communicator.loss = LossOptions(0.3, ERROR_FEEDBACK)
    place, fed = elsewhere(torch.empty(60_000)), torch.zeros(60_000)
    for _ in range(20):
        place.fill_(1.0)
        communicator.all_reduce(place, exact_from=50_000).wait()
        fed += place
    communicator.barrier()
    communicator.close()
    return {
        "sums": [each.unique().tolist() for each in (*sums, between, told, mean)],
        "fed": (float(fed.mean()), float(fed.max()), float(fed[50_000:].min())),
        "copied": len(copied),
    }


def test_sums_and_means_of_a_communicator(run_workers: RunWorkers) -> None:
    size = 3
    for outcome in run_workers(sum_and_average, size):
        assert outcome["sums"][:5] == [[size * float(number)] for number in range(5)]
        assert outcome["sums"][5:7] == [[float(size)], [2.0]]
        assert outcome["sums"][7] == [float(torch.tensor((0 * 1 + 1 * 2 + 2 * 3) / 6).bfloat16())]
        assert outcome["copied"] == 5 + 2 + 20
        mean, largest, exact = outcome["fed"]
        assert mean > 20 * size * (1 - 0.3 / 20), "what one sum loses comes with a later one"
        assert largest <= 20 * size
        assert exact == 20 * size


def train_with_another_default(transport: str) -> dict[str, list[float]]:
    """Train on the host while tensors that do not say where they lie have no memory at all.

    Every strategy does so in turn, each with a model of its own.
    """
    torch.manual_seed(0)
    made = {}
    for sync in STRATEGIES:
        model = nn.Linear(6, 3)
        made[sync] = model, torch.optim.SGD(model.parameters(), 0.1)
    batches = torch.randn(4, 5, 6)
    torch.set_default_device("meta")
    shoal.init(deadline_s=30)
    found: dict[str, list[float]] = {}
    for sync, (model, inner) in made.items():
        optimizer = shoal.DistributedOptimizer(inner, model, sync, transport=transport)
        for batch in batches:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        optimizer.finish()
        if optimizer.strategy.averaged is Averaged.PARAMETERS:
            optimizer.average_model()
        found[sync] = nn.utils.parameters_to_vector(model.parameters()).tolist()
    shoal.shutdown()
    return found


@pytest.mark.parametrize("transport", seldom(["gloo", "shoal"], often=["shoal"]))
def test_the_default_device_of_torch_is_nothing_to_us(
    run_workers: RunWorkers, transport: str
) -> None:
    first, second = run_workers(train_with_another_default, 2, transport)
    assert first.keys() == STRATEGIES.keys()
    for sync, values in first.items():
        assert values == second[sync], sync
        assert all(math.isfinite(value) for value in values), sync
