"""The description of one training run, sent to every worker.

Owns the fields and their checks against each other; opens no file and starts nothing.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from shoal.carriers import ALL_LAYERS, DEFAULT_HOLES, check_ablation, check_transport
from shoal.errors import UsageError
from shoal.scenario import Slowness, check_probability
from shoal.transport import LARGE
from shoal.watch import LARGEST_PORT, WatchAddress, require_client
from shoal.workloads import default_recipe

if TYPE_CHECKING:
    from shoal.workloads import Recipe


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One model, one data set, one strategy, a number of workers."""

    strategy: str
    strategy_options: dict[str, str | int | float | bool | None] = {}
    """Keyword arguments of the strategy's constructor."""

    dataset: str
    model: str
    workers: int
    batch_size: int | None = None
    """The number of samples per worker and step; null for the recipe's."""

    learning_rate: float | None = None
    """The learning rate; null for the recipe's."""

    decay: bool = False
    """Lower the learning rate evenly, to a hundredth by the last step; needs `max_steps`."""

    compute_ms: float | None = None
    """Pad each step's compute to this length by sleeping; null for no padding."""

    slow: dict[int, float] = {}
    """Rank to the factor by which its compute is made longer."""

    slow_probability: dict[int, float] = {}
    """Rank to the share of its steps, drawn at random, in which it is; others: all of them."""

    max_steps: int | None = None
    """Steps after which a worker finishes."""

    max_seconds: float | None = None
    """Time after which every worker finishes."""

    target: float | None = None
    """Metric at which the clock of time-to-target stops."""

    stop_at_target: bool = True
    """Whether the run ends once the averaged model has met the target."""

    seed: int = 0
    snapshot_seconds: float = 0.5
    """Time between two looks at the models."""

    snapshot_steps: int | None = None
    """Steps between two looks at the models, the first one before training; null: by time."""

    evaluation_samples: int | None = None
    """Test samples behind the final figures; null for all, 0 for a run that is not evaluated."""

    transport: str = "gloo"
    """What the workers communicate over: "gloo", or "shoal", our own transport over UDP."""

    loss_bound: float = 0.0
    """Share of each contribution to a sum that the network may lose; only over "shoal"."""

    holes: str = DEFAULT_HOLES
    """What a lost part of a sum counts as; see `shoal.transport.holes`."""

    wire: str | None = None
    """What gradients are sent as, "float32", "float16" or "bfloat16"; null for what they are."""

    metrics_port: int | None = None
    """The port on which rank 0's metrics are served to Prometheus, and rank r's on this port plus
    r; only over "shoal"."""

    is_traced: bool = False
    """Whether the trace is wanted, with a sample of the transport's figures per step."""

    lossy_layers: str = ALL_LAYERS
    """The layers whose gradients may get lost: all, or the "front" or "back" half."""

    importance: str = LARGE
    """The kind of packets that are lost last: those of large gradients, of small ones, or none."""

    workers_per_host: int | None = None
    """The number of workers that pretend to share a host; null for all on one."""

    def recipe(self) -> Recipe:
        """Return the model's recipe with what this run overrides."""
        recipe = default_recipe(self.dataset, self.model)
        return dataclasses.replace(
            recipe,
            batch_size=self.batch_size or recipe.batch_size,
            learning_rate=self.learning_rate or recipe.learning_rate,
        )

    def slowness(self) -> Slowness:
        """Return who is slower than the others, and in which steps."""
        return Slowness(self.slow, self.slow_probability, self.seed)

    def validate(self) -> None:
        """Raise `UsageError` with one sentence for the first thing that cannot be."""
        if self.workers < 1:
            raise UsageError(f"A run needs at least 1 worker, not {self.workers}.")
        for rank, factor in self.slow.items():
            if not 0 <= rank < self.workers:
                message = (
                    f"There is no rank {rank} to slow down among {self.workers} workers;"
                    f" ranks go from 0 to {self.workers - 1}."
                )
                raise UsageError(message)
            if factor < 1:
                message = f"A slow rank's factor must be at least 1, not {factor:g}."
                raise UsageError(message)
        for probability in self.slow_probability.values():
            check_probability(probability)
        check_transport(self.transport, self.loss_bound, self.holes, self.wire)
        check_ablation(self.lossy_layers, self.importance)
        if self.metrics_port is not None:
            self._check_metrics(self.metrics_port)
        if self.compute_ms is not None and self.compute_ms <= 0:
            message = f"--compute-ms must be positive, not {self.compute_ms:g}."
            raise UsageError(message)
        if self.decay and not self.max_steps:
            raise UsageError("A learning rate that decays needs to know the end: give --max-steps.")
        if not self.max_steps and not self.max_seconds:
            raise UsageError("A run needs an end: give --max-steps or --max-seconds.")
        for name in ("max_steps", "max_seconds", "batch_size", "learning_rate", "snapshot_steps"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                message = f"--{name.replace('_', '-')} must be positive, not {value:g}."
                raise UsageError(message)

    def _check_metrics(self, port: int) -> None:
        if self.transport != "shoal":
            raise UsageError("--metrics-port needs --transport shoal: gloo has no metrics to show.")
        if not 1 <= port <= LARGEST_PORT + 1 - self.workers:
            message = (
                f"--metrics-port must be at least 1, and with {self.workers} workers at most"
                f" {LARGEST_PORT + 1 - self.workers}, not {port}."
            )
            raise UsageError(message)
        require_client()


class PoolSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a pool of worker processes needs to know for all of its runs."""

    workers: int
    store_port: int
    directory: str
    """The folder in which the workers share progress and snapshots."""

    cache_directory: str | None
    """The folder in which data sets are cached; null for the user's cache."""

    job_key: str
    control_port: int = 0
    deadline_s: float = 60.0
    watch: WatchAddress | None = None
    """The address at which the jobs are shown; null: nowhere."""
    variables: dict[str, str] = {}
    """The variables that are added to the workers' environment."""

    @property
    def path(self) -> Path:
        """The shared directory."""
        return Path(self.directory)
