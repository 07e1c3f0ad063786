"""A worker's samples of its training, passed to TensorBoard, Weights & Biases or MLflow.

Each function returns a callback for `DistributedOptimizer.on_sample`. None of these packages is
needed, or imported: the user passes its writer, run or module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.watch.worker_sample import WorkerSample


def scalars(sample: WorkerSample) -> dict[str, float]:
    """Return the figures of a sample by name; times are means over a step, in milliseconds."""
    per_step_ms = 1000 / sample.num_steps
    found = {
        "shoal/step_ms": sample.seconds * per_step_ms,
        "shoal/own_ms": sample.own_s * per_step_ms,
        "shoal/wait_ms": sample.wait_s * per_step_ms,
        "shoal/exchange_ms": sample.exchange_s * per_step_ms,
        "shoal/hidden_ms": None if sample.hidden_s is None else sample.hidden_s * per_step_ms,
        "shoal/loss": sample.loss,
        "shoal/effective_loss": sample.effective_loss,
    }
    return {name: value for name, value in found.items() if value is not None}


def to_tensorboard(writer: Any) -> Callable[[WorkerSample], None]:
    """Return a callback that writes to a `torch.utils.tensorboard.SummaryWriter`."""

    def take(sample: WorkerSample) -> None:
        for name, value in scalars(sample).items():
            writer.add_scalar(name, value, sample.step)

    return take


def to_wandb(run: Any) -> Callable[[WorkerSample], None]:
    """Return a callback that logs to a run of Weights & Biases, or to the module `wandb`."""

    def take(sample: WorkerSample) -> None:
        run.log(scalars(sample), step=sample.step)

    return take


def to_mlflow(mlflow: Any) -> Callable[[WorkerSample], None]:
    """Return a callback that logs to the active run of the module `mlflow`."""

    def take(sample: WorkerSample) -> None:
        mlflow.log_metrics(scalars(sample), step=sample.step)

    return take
