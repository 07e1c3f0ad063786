"""One simulated run in which real models learn: what it took to a target, and what was learnt.

The scenario's job sets the clock; a smaller model on data that is there stands in for the paper's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import torch

from shoal.diverged import Figure, restore
from shoal.errors import UsageError
from shoal.sim import Replicas, simulate
from shoal.workloads import default_recipe, is_here, load_dataset, meets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.scenario import ClusterSpec, StrategySpec, TrainingSpec
    from shoal.workloads import Recipe


CIFAR10: Final = ("cifar10", "cifar10-jpeg")
"""The papers' pictures, as published and as pictures that were compressed anew."""

_WORDS: Final = {
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "cifar10-jpeg": "CIFAR-10 compressed anew",
}


def data_words(dataset: str) -> str:
    """Return how tables call a data set."""
    return _WORDS.get(dataset, dataset)


def choose_data(asked: str | None, usual: Sequence[str]) -> str:
    """Return the data set to learn where the paper has CIFAR-10.

    That is what was `asked` for; else the first of the `usual` ones that the cache has, else the
    last of them. Raises `UsageError` for one that no model here was tried on.
    """
    known = ("digits", "fashion-mnist", *CIFAR10)
    if asked is not None and asked not in known:
        message = f"--dataset takes {', '.join(known[:-1])} or {known[-1]}, not {asked!r}."
        raise UsageError(message)
    return asked or next((each for each in usual if is_here(each)), usual[-1])


@dataclass(frozen=True, slots=True)
class Learnt:
    """The real model that stands in for the paper's, and when a run is over."""

    dataset: str
    model: str
    target: float
    """The target in the data set's metric."""
    steps: int
    """The most steps that each worker makes."""
    looks_per_step: float
    """How often the models are evaluated, by the time that a step of the job computes."""
    samples: int
    """Test samples of each look."""
    until_target: bool = True
    """Whether a run is over at the target, or after all its steps."""
    rate: int = 1
    """How many times the recipe's learning rate is used."""

    @property
    def recipe(self) -> Recipe:
        """How the model is trained."""
        usual = default_recipe(self.dataset, self.model)
        return replace(usual, learning_rate=self.rate * usual.learning_rate)


@dataclass(frozen=True, slots=True)
class Learned:
    """What a run came to. Times are virtual."""

    step_ms: float
    """Mean over workers of their time per step."""
    seconds_to_target: float | None
    """The time until the mean of all models met the target; None: not within the steps."""
    steps_to_target: float | None
    """Mean steps of a worker until then."""
    final: Figure
    """Metric of the mean of all models at the end, on all test samples."""
    final_rank0: Figure
    """Metric of rank 0's model at the end, on all test samples."""
    consensus_distance: Figure
    """The root mean square distance of the models from their mean at the end."""
    wait_share: float
    exchange_share: float
    digest: str
    """A digest of every worker's times: the same scenario and seed give the same."""

    def __post_init__(self) -> None:
        """Read null as what was written so."""
        restore(self, "final", "final_rank0", "consensus_distance")


def learn(
    cluster: ClusterSpec,
    training: TrainingSpec,
    strategy: StrategySpec,
    learnt: Learnt,
    *,
    tick: Callable[[float], None] | None = None,
) -> Learned:
    """Make one run."""
    torch.set_num_threads(1)  # of models this small, sharing one out takes longer than computing it
    dataset = load_dataset(learnt.dataset)
    replicas = Replicas(
        dataset,
        learnt.model,
        learnt.recipe,
        cluster.topology.hosts * cluster.workers,
        seed=cluster.seed,
        look_s=training.compute_s / learnt.looks_per_step,
        samples=learnt.samples,
        stop_at=learnt.target if learnt.until_target else None,
    )
    outcome = simulate(
        cluster, replace(training, steps=learnt.steps), strategy, learner=replicas, tick=tick
    )
    met = next((p for p in replicas.curve if meets(dataset.task, p.averaged, learnt.target)), None)
    last = replicas.look(0)
    return Learned(
        step_ms=outcome.step_ms,
        seconds_to_target=None if met is None else met.seconds,
        steps_to_target=None if met is None else met.mean_step,
        final=last.averaged,
        final_rank0=last.rank0,
        consensus_distance=last.consensus_distance,
        wait_share=outcome.wait_share,
        exchange_share=outcome.exchange_share,
        digest=outcome.digest,
    )
