"""What other programs' loggers get of a sample: every figure under its name, at its step."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.watch import scalars, to_mlflow, to_tensorboard, to_wandb
from told import told


class Logger:
    """Stands in for a writer, a run or a module."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, int], float] = {}

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.found[name, step] = value

    def log(self, values: dict[str, float], *, step: int) -> None:
        self.found |= {(name, step): value for name, value in values.items()}

    log_metrics = log


@pytest.mark.parametrize("make", [to_tensorboard, to_wandb, to_mlflow])
def test_each_gets_all_figures(make: Any) -> None:
    logger = Logger()
    take = make(logger)
    take(told(40.0, 10.0, step=7, loss=0.5))
    take(told(40.0, 10.0, step=9, effective_loss=0.25, hidden_s=0.1))
    common = {"shoal/step_ms": 50.0, "shoal/own_ms": 40.0, "shoal/wait_ms": 0.0}
    common["shoal/exchange_ms"] = 10.0
    wanted = {(name, step): value for name, value in common.items() for step in (7, 9)}
    wanted |= {("shoal/loss", 7): 0.5, ("shoal/effective_loss", 9): 0.25}
    wanted["shoal/hidden_ms", 9] = 5.0
    assert logger.found == pytest.approx(wanted)
    assert "shoal/loss" not in scalars(told(1.0))
