"""Works that C++ alone holds: torch must keep their Python half, which says when they are done.

Until 2.6 it did not. A work that was done before torch's C++ asked it for anything was collected,
and what was asked then was an abstract one: DDP failed, or waited for ever.
"""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from worker_processes import RunWorkers


def ask_late() -> tuple[bool, list[float]]:
    """Ask a work that was done, and held by C++ alone, before it was asked."""
    dist.init_process_group("shoal")
    group: Any = dist.group.WORLD
    tensor = torch.ones(3)
    called_by_torch: Any = dist.ProcessGroup.allreduce  # not ours, which C++ calls
    work = called_by_torch(group, [tensor], dist.AllreduceOptions())
    gc.collect()
    found = work.wait(), work.get_future().wait()[0].tolist()
    dist.destroy_process_group()
    return found


def train() -> float:
    """Train with DDP, whose C++ asks works of which some are done at once."""
    dist.init_process_group("shoal")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(3, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(30):
        optimizer.zero_grad()
        model(torch.ones(2, 3) * (dist.get_rank() + 1)).sum().backward()
        optimizer.step()
    found = model.module.weight.sum().item()
    dist.destroy_process_group()
    return found


def test_a_work_that_was_done_before_torch_asked(run_workers: RunWorkers) -> None:
    for size in (1, 2):
        found = run_workers(ask_late, size, initialize=False)
        assert found == [(True, [float(size)] * 3)] * size


def test_ddp_trains_on_works_that_are_done_at_once(run_workers: RunWorkers) -> None:
    for size in (1, 2):
        assert len(set(run_workers(train, size, initialize=False))) == 1


@pytest.mark.long  # an interpreter of its own that loads torch
def test_a_torch_that_is_too_old_is_refused_in_a_sentence() -> None:
    program = (
        "import torch; from torch.torch_version import TorchVersion\n"
        "torch.__version__ = TorchVersion('2.6.0+cpu')\n"
        "from shoal.errors import UsageError\n"
        "try:\n"
        "    import shoal; shoal.init()\n"
        "except UsageError as error:\n"
        "    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=True
    )
    assert done.stdout.startswith("This is torch 2.6.0+cpu, and Shoal needs 2.7 or newer: ")
