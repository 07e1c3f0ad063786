"""Jobs that go on without workers that are lost: what the living compute, in every family."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from worker_processes import RunWorkers

import shoal

DEADLINE_S = 20.0
STEPS = 24


def train(
    folder: str, sync: Any, victim: int, dies_at: int, phase: str
) -> tuple[list[float], float, tuple[int, ...], float]:
    """Train a small model; the victim kills itself. Return what is left of the job."""
    session = shoal.init(deadline_s=DEADLINE_S, min_workers=2)
    torch.manual_seed(1)
    model = nn.Linear(8, 4)
    optimizer = shoal.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05), model, sync=sync
    )
    generator = torch.Generator().manual_seed(session.rank)
    longest = 0.0
    for step in range(STEPS):
        began = time.monotonic()
        batch = torch.randn(16, 8, generator=generator)
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        if session.rank == victim and step == dies_at and phase == "before backward":
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        if session.rank == victim and step == dies_at and phase == "before step":
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        Path(folder, f"{session.rank}.{step}").touch()
        longest = max(longest, time.monotonic() - began)
    optimizer.finish()
    distance = optimizer.average_model()
    members = session.view.members
    weights = [float(p.detach().sum()) for p in model.parameters()]
    shoal.shutdown()
    return weights, distance, members, longest


@pytest.mark.parametrize("phase", ["before backward", "before step"])
@pytest.mark.parametrize("sync", ["local-sgd", "ds-sync", "ripples-static", "ripples"])
def test_the_living_go_on_without_a_worker_that_dies(
    run_workers: RunWorkers, tmp_path: Path, sync: str, phase: str
) -> None:
    results = run_workers(
        train, 4, str(tmp_path), sync, 2, 7, phase, may_die=(2,), initialize=False
    )
    assert results[2] is None, "the fault has fired"
    living = [results[rank] for rank in (0, 1, 3)]
    assert {result[2] for result in living} == {(0, 1, 3)}
    assert len({tuple(result[0]) for result in living}) == 1, "their mean is one model"
    for rank in (0, 1, 3):
        assert all(Path(tmp_path, f"{rank}.{step}").exists() for step in range(STEPS))
