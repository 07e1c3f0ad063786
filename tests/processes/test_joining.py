"""Workers that join a job while the others train, and what all of them compute then."""

from __future__ import annotations

import os
import signal
import time
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import shoal
from shoal.session import current_session

if TYPE_CHECKING:
    from collections.abc import Iterable

    from worker_processes import RunWorkers

DEADLINE_S = 12.0
SIZE, VICTIM = 3, 2
DIES_AT = 5
STEPS_TOGETHER = 12
"""Steps that everybody makes in a view with the newcomer."""
SYNCS = ("all-reduce", "ds-sync", "ripples")


def named(sync: str) -> dict[str, Any]:
    """Return the strategy and what it hides behind, if that is named after a comma."""
    word, *overlap = sync.split(", ")
    return {"sync": word, "overlap": overlap[0] if overlap else None}


def await_file(path: Path) -> None:
    """Wait until somebody has made a file."""
    end = time.monotonic() + DEADLINE_S
    while not path.exists():
        assert time.monotonic() < end, path
        time.sleep(0.005)


def state_of(model: nn.Module) -> str:
    """Return what tells a model's parameters and buffers from others."""
    return hash_of(model.state_dict().values())


def hash_of(tensors: Iterable[torch.Tensor]) -> str:
    values = [each.detach().numpy().tobytes() for each in tensors]
    return blake2b(b"".join(values), digest_size=8).hexdigest()


def training(sync: str) -> tuple[nn.Module, shoal.DistributedOptimizer]:
    """Return a model with statistics, and an optimizer with state."""
    torch.manual_seed(current_session().rank)
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    inner = torch.optim.Adam(model.parameters(), lr=0.01)
    return model, shoal.DistributedOptimizer(inner, model, **named(sync))


def step(model: nn.Module, optimizer: shoal.DistributedOptimizer, generator: Any) -> None:
    optimizer.zero_grad()
    model(torch.randn(16, 8, generator=generator)).square().mean().backward()
    optimizer.step()


def die_and_come_back(folder: str, sync: str) -> dict[str, Any]:
    """Train; rank 2 kills itself, and another process takes its place while the others go on."""
    is_late = int(os.environ["RANK"]) >= SIZE
    if is_late:
        await_file(Path(folder, "died"))
        os.environ["RANK"] = str(VICTIM)
    session = shoal.init(deadline_s=DEADLINE_S, min_workers=2)
    model, optimizer = training(sync)
    first, at_first = optimizer.num_steps, state_of(model)
    generator = torch.Generator().manual_seed(session.rank)
    together = 0
    states = {}
    while together < STEPS_TOGETHER:
        if session.rank == VICTIM and not is_late and optimizer.num_steps == DIES_AT:
            Path(folder, "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        step(model, optimizer, generator)
        states[optimizer.num_steps] = state_of(model)
        together += session.view.epoch > 0 and VICTIM in session.view.members
    view = session.view
    optimizer.finish()
    optimizer.average_model()
    after = hash_of(model.parameters())
    shoal.shutdown()
    return {
        "first": first,
        "at first": at_first,
        "states": states,
        "view": view,
        "after": after,
    }


@pytest.mark.parametrize("sync", SYNCS)
def test_a_worker_that_died_comes_back(run_workers: RunWorkers, tmp_path: Path, sync: str) -> None:
    results = run_workers(
        die_and_come_back,
        SIZE,
        str(tmp_path),
        sync,
        may_die=(VICTIM,),
        initialize=False,
        num_more=1,
    )
    assert results[VICTIM] is None, "the fault has fired"
    living = [result for result in results if result is not None]
    assert len(living) == SIZE
    newcomer = results[SIZE]
    assert newcomer["first"] >= DIES_AT
    for result in living:
        assert result["view"].members == (0, 1, 2)
        assert result["view"].why == "Rank 2 has joined."
    assert len({result["after"] for result in living}) == 1
    if sync == "all-reduce":
        assert newcomer["at first"] == results[0]["states"][newcomer["first"]]
        for number, state in newcomer["states"].items():
            assert state == results[0]["states"].get(number, state)
            assert state == results[1]["states"].get(number, state)
