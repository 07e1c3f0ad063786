"""Jobs that go on without workers that are lost: what the living compute, in every phase."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import shoal

if TYPE_CHECKING:
    from worker_processes import RunWorkers

DEADLINE_S = 20.0
STEPS = 24
VICTIM, DIES_AT = 2, 7
IN_A_STEP = ("before backward", "before step")
AT_THE_END = ("before finish", "after finish", "in average_model", "after average_model")


def train(folder: str, sync: Any, phase: str) -> tuple[list[float], tuple[int, ...]]:
    """Train a small model; the victim kills itself in its phase. Return what is left of the job."""
    session = shoal.init(deadline_s=DEADLINE_S, min_workers=2)
    torch.manual_seed(1)
    model = nn.Linear(8, 4)
    optimizer = shoal.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05), model, sync=sync
    )
    generator = torch.Generator().manual_seed(session.rank)

    def come_to(place: str, step: int = DIES_AT) -> None:
        if session.rank == VICTIM and step == DIES_AT and place == phase:
            os.kill(os.getpid(), signal.SIGKILL)

    for step in range(STEPS):
        batch = torch.randn(16, 8, generator=generator)
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        come_to("before backward", step)
        loss.backward()
        come_to("before step", step)
        optimizer.step()
        Path(folder, f"{session.rank}.{step}").touch()
    come_to("before finish")
    optimizer.finish()
    come_to("after finish")
    if phase == "in average_model":
        of_it = optimizer.replica.communicator
        all_reduce = type(of_it).all_reduce

        def dying(*arguments: Any, **options: Any) -> Any:
            work = all_reduce(*arguments, **options)
            come_to("in average_model")
            return work

        type(of_it).all_reduce = dying  # type: ignore[method-assign, assignment]
    optimizer.average_model()
    come_to("after average_model")
    weights = [float(p.detach().sum()) for p in model.parameters()]
    members = session.view.members
    shoal.shutdown()
    return weights, members


@pytest.mark.parametrize("phase", [*IN_A_STEP, *AT_THE_END])
@pytest.mark.parametrize(
    "sync", ["all-reduce", "local-sgd", "ds-sync", "ripples-static", "ripples"]
)
def test_the_living_go_on_without_a_worker_that_dies(
    run_workers: RunWorkers, tmp_path: Path, sync: str, phase: str
) -> None:
    results = run_workers(train, 4, str(tmp_path), sync, phase, may_die=(VICTIM,), initialize=False)
    assert results[VICTIM] is None, "the fault has fired"
    living = [results[rank] for rank in (0, 1, 3)]
    if phase != "after average_model":
        assert all(VICTIM not in members for _, members in living)
    assert len({tuple(weights) for weights, _ in living}) == 1, "their mean is one model"
    for rank in (0, 1, 3):
        assert all(Path(tmp_path, f"{rank}.{step}").exists() for step in range(STEPS))
