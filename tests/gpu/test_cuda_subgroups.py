"""CUDA tensors are averaged over cached NCCL subgroups, a GPU per worker."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist

from shoal.runtime.torch_communicator import TorchCommunicator

if TYPE_CHECKING:
    from worker_processes import RunWorkers

GPUS = torch.cuda.device_count()

pytestmark = pytest.mark.skipif(GPUS < 2, reason="needs two GPUs: NCCL wants one per worker")


def average_on_gpus(dtype: torch.dtype) -> list[list[float]]:
    dist.init_process_group("cpu:gloo,cuda:nccl", timeout=timedelta(seconds=30))
    torch.cuda.set_device(dist.get_rank())
    communicator = TorchCommunicator(deadline_s=30)
    means = []
    for sequence, weights in enumerate([(), (1, 3), (), (1, 3)]):
        buffer = torch.full((1000,), float(communicator.rank), dtype=dtype, device="cuda")
        communicator.group_average(buffer, (0, 1), sequence=sequence, weights=weights)
        means.append(buffer.unique().tolist())
    return means


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_members_get_the_mean(run_workers: RunWorkers, dtype: torch.dtype) -> None:
    results = run_workers(average_on_gpus, 2, dtype, initialize=False)
    assert results == [[[0.5], [0.75], [0.5], [0.75]]] * 2
