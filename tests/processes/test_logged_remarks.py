"""What a script and its log are told of a slow worker for which nobody waits."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import shoal
from shoal.train import remark_log

if TYPE_CHECKING:
    from worker_processes import RunWorkers


def train_beside_a_slow_worker(slow_rank: int) -> tuple[list[Any], list[str], list[str]]:
    session = shoal.init(deadline_s=30)
    logged, remark_log.INTERVAL_S = log_of_remarks(), 0.05
    torch.manual_seed(1)
    model = nn.Linear(5, 3)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = shoal.DistributedOptimizer(inner, model, sync="ripples")
    is_slow = session.rank == slow_rank
    for _ in range(8 if is_slow else 60):
        optimizer.zero_grad()
        cross_entropy(model(torch.randn(8, 5)), torch.randint(0, 3, (8,))).backward()
        time.sleep(0.04 if is_slow else 0.005)
        optimizer.step()
    named = [(remark.rank, remark.kind) for remark in optimizer.remarks()]
    said = len(logged)
    optimizer.finish()
    return named, logged[:said], logged[said:]


def log_of_remarks() -> list[str]:
    """Return a list that takes what is logged about slow workers in this process."""
    logger, lines = logging.getLogger(remark_log.__name__), []
    logger.setLevel(logging.INFO)
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    return lines


def test_ripples_names_the_slow_worker_over_gloo_too(run_workers: RunWorkers) -> None:
    found = run_workers(train_beside_a_slow_worker, 4, 2)
    for rank in (0, 1, 3):
        named, while_training, at_the_end = found[rank]
        assert named == [(2, "slow worker")]
        for lines in (while_training, at_the_end):
            # on a busy machine a look may find another worker slow for a moment, too
            assert any("Rank 2 is slow: it asked for" in line for line in lines)
