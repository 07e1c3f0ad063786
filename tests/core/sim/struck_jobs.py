"""Simulated jobs in which workers die, stand still and come, and a learner that notes it all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from shoal.scenario.cluster_spec import ClusterSpec, WorkerEvent
from shoal.scenario.training_spec import StrategySpec, TrainingSpec
from shoal.sim.training.learning import AbstractLearner
from shoal.sim.training.served_part import AbstractServedPart
from shoal.sim.training.simulation import simulate
from shoal.switching.settings import Link, Port
from shoal.switching.topology import Materials, host_names, star

if TYPE_CHECKING:
    from shoal.sim.training.outcome import Outcome


RATE = 1_000_000_000
PLAIN = Materials(Port(RATE), Port(RATE), Link(delay_s=10e-6))
STEPS = 40
STEP_S = 0.1
ANSWER_S = 100e-6


def kill(at_s: float, rank: int) -> WorkerEvent:
    return WorkerEvent(at_s, "kill", rank)


def freeze(at_s: float, rank: int, lasts_s: float) -> WorkerEvent:
    return WorkerEvent(at_s, "freeze", rank, lasts_s=lasts_s)


def come(at_s: float, rank: int, host: int | None = None) -> WorkerEvent:
    return WorkerEvent(at_s, "join", rank, host)


def cluster(hosts: int, *events: WorkerEvent, seed: int = 1) -> ClusterSpec:
    return ClusterSpec(star(host_names(hosts), PLAIN), spray=True, events=events, seed=seed)


def training(**changes: object) -> TrainingSpec:
    usual = TrainingSpec(
        parameters=1_000_000,
        compute_s=STEP_S,
        steps=STEPS,
        strategies=(),
        layers=1,
        control_delay_s=ANSWER_S,
    )
    return replace(usual, **changes)  # type: ignore[arg-type]


def run(
    name: str, where: ClusterSpec, job: TrainingSpec | None = None, **options: object
) -> Outcome:
    return simulate(where, job or training(), StrategySpec(name, options))


Weights: TypeAlias = "tuple[tuple[tuple[int, int], ...], ...]"
"""The updates in a part of the weights: the workers of each, with their gradients' numbers."""


class Told(AbstractLearner):
    """Learns nothing, and writes down what it is told."""

    def __init__(self) -> None:
        self.gradients: Counter[int] = Counter()
        self.sums: list[tuple[int, ...]] = []
        self.means: list[tuple[int, ...]] = []
        self.updates: Counter[int] = Counter()
        self.handed_on: list[tuple[int, int]] = []
        self.members: list[tuple[int, ...]] = []
        self.pushes: list[tuple[int, ...]] = []
        """The workers in each update of the first server."""
        self.parts: list[ToldPart] = []
        self.models: dict[tuple[int, int], Weights] = {}
        """What each worker has pulled of each part."""
        self.aside: dict[tuple[int, int], Weights] = {}

    def attend(self, members: Sequence[int]) -> None:
        self.members.append(tuple(members))

    def hand_on(self, rank: int, taker: int) -> None:
        self.handed_on.append((rank, taker))
        for number in {number for holder, number in self.models if holder == rank}:
            self.models[taker, number] = self.models[rank, number]

    def update(self, rank: int, scale_for: int = 1) -> None:
        self.updates[rank] += 1

    def compute_gradient(self, rank: int) -> None:
        self.gradients[rank] += 1

    def update_by_mean(self, members: Sequence[int], gradients: Sequence[Any] = ()) -> None:
        self.sums.append(tuple(members))
        self.updates.update(members)

    def average(
        self, members: Sequence[int], shares: Sequence[float], *, copies: bool = False
    ) -> None:
        self.means.append(tuple(members))

    def average_state(self, *_: object) -> None: ...
    def copy(self, *_: object) -> None: ...
    def add_changes(self, *_: object) -> None: ...

    def served_part(self, part: int, of: int) -> ToldPart:
        del of
        self.parts.append(ToldPart(self, part))
        return self.parts[-1]

    def pull(self, rank: int) -> None:
        for holder, number in self.aside:
            if holder == rank:
                self.models[rank, number] = self.aside[rank, number]

    def note_step(self, *_: object) -> None: ...


class ToldPart(AbstractServedPart):
    """Weights that say which gradients are in them, and momenta of how many updates."""

    def __init__(self, learner: Told, number: int) -> None:
        self._learner, self.number = learner, number
        self.weights: Weights = ()
        self.momenta = 0
        """The number of updates that the momenta are of."""

    @property
    def state_bytes(self) -> float:
        return 1_000.0 if self.momenta else 0.0

    def update(self, ranks: Sequence[int], scale: float, share: float) -> None:
        made = self._learner.gradients
        self.weights += (tuple((rank, made[rank]) for rank in ranks),)
        self.momenta += 1
        if self.number == 0:
            self._learner.pushes.append(tuple(ranks))
            self._learner.updates.update(ranks)

    def set_aside(self, rank: int) -> None:
        self._learner.aside[rank, self.number] = self.weights

    def go_on_from_model(self, rank: int) -> None:
        self.weights = self._learner.models.get((rank, self.number), ())

    def go_on_from(self, other: AbstractServedPart) -> None:
        assert isinstance(other, ToldPart)
        self.weights = other.weights

    def state(self) -> object:
        return self.momenta

    def load_state(self, state: object) -> None:
        assert isinstance(state, int)
        self.momenta = state


def told(name: str, where: ClusterSpec, **options: object) -> tuple[Told, Outcome]:
    learner = Told()
    return learner, simulate(where, training(), StrategySpec(name, options), learner=learner)
