"""CUDA tensors are averaged over cached NCCL subgroups, a GPU per worker."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist

from shoal.carriers.torch_communicator import TorchCommunicator
from shoal.errors import UsageError

if TYPE_CHECKING:
    from worker_processes import RunWorkers

GPUS = torch.cuda.device_count()

pytestmark = pytest.mark.timeout(120)


def average_on_gpus(dtype: torch.dtype) -> list[list[float]]:
    dist.init_process_group("cpu:gloo,cuda:nccl", timeout=timedelta(seconds=30))
    torch.cuda.set_device(dist.get_rank())
    communicator = TorchCommunicator(deadline_s=30)
    means = []
    for sequence, weights in enumerate([(), (1, 3), (), (1, 3)]):
        buffer = torch.full((1000,), float(communicator.rank), dtype=dtype, device="cuda")
        communicator.group_average(buffer, (0, 1), sequence=sequence, weights=weights).wait()
        means.append(buffer.unique().tolist())
    return means


@pytest.mark.skipif(GPUS < 2, reason="needs two GPUs: NCCL wants one per worker")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_members_get_the_mean(run_workers: RunWorkers, dtype: torch.dtype) -> None:
    results = run_workers(average_on_gpus, 2, dtype, initialize=False)
    assert results == [[[0.5], [0.75], [0.5], [0.75]]] * 2


def share_a_gpu() -> str:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    communicator = TorchCommunicator(deadline_s=30)
    with pytest.raises(UsageError) as refusal:
        communicator.group_average(torch.ones(1000, device="cuda:0"), (0, 1), sequence=0).wait()
    return str(refusal.value)


@pytest.mark.skipif(GPUS < 1, reason="needs a CUDA GPU")
def test_members_that_share_a_gpu_are_told_what_to_do(run_workers: RunWorkers) -> None:
    for said in run_workers(share_a_gpu, 2, initialize=False):
        assert "Ranks (0, 1) do not have a GPU each" in said
        assert "transport='shoal'" in said
