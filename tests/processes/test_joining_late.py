"""Workers that begin at different times: nobody averages alone before the others have joined."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

import shoal  # noqa: E402

if TYPE_CHECKING:
    from worker_processes import RunWorkers


def train_when_one_joins_late() -> list[float]:
    session = shoal.init(deadline_s=30)
    join = session.control.join

    def join_late(*arguments: Any) -> None:
        time.sleep(0.3 * session.rank)
        join(*arguments)

    session.control.join = join_late  # type: ignore[method-assign]  # only its time changes
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    # without the filter, which leaves out who is slow for a moment
    how = shoal.Ripples(slowdown_threshold=None)
    optimizer = shoal.DistributedOptimizer(inner, model, sync=how)
    for step in range(2):
        optimizer.zero_grad()
        model(torch.full((1, 4), float(session.rank + step + 1))).sum().backward()
        optimizer.step()
    found: list[float] = model.weight.detach().flatten().tolist()
    optimizer.finish()
    return found


def test_nobody_trains_alone_before_the_others_have_joined(run_workers: RunWorkers) -> None:
    first, second = run_workers(train_when_one_joins_late, 2)
    assert first == second
