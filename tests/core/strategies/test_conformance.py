"""The runtime and the simulator carry the same courses out: given the same answers, the same acts.

Workers have data of uneven length, and skip steps. What a generator answers depends on who comes
first, so there the simulated one repeats what the real one said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch
from recording import Log, Recorded
from thread_job import ThreadCommunicator, ThreadJob, replica_of

from shoal.scenario.cluster_spec import ClusterSpec
from shoal.scenario.training_spec import StrategySpec, TrainingSpec
from shoal.sim.training.all_strategies import EXECUTORS
from shoal.sim.training.means import MeansExecutor
from shoal.sim.training.simulation import make_world
from shoal.strategies import STRATEGIES
from shoal.strategies.acts import AskGroup, Group, Mean
from shoal.switching.settings import Link, Port
from shoal.switching.topology import Materials, host_names, star
from shoal.train.executors import make_executor

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

WORKERS = 4
SEED = 5
EVEN = (9, 9, 9, 9)
UNEVEN = (9, 12, 9, 4)
SKIPS = {0: {2}, 1: {2, 5}, 3: {0}}

CASES = [
    *((name, {}) for name in STRATEGIES),
    ("local-sgd", {"interval": 2}),
    ("local-sgd", {"interval": 2, "overlap": "next-steps"}),
    ("diloco", {"interval": 2}),
    ("diloco", {"interval": 2, "overlap": "next-steps"}),
    ("ds-sync", {"shuffle": "random", "interval": 2}),
    ("ds-sync", {"overlap": "next-steps"}),
    ("ripples", {"interval": 3, "overlap": "next-steps"}),
    ("ripples-random", {"group_size": 2}),
    ("ripples-static", {"overlap": "next-steps", "interval": 2}),
    ("all-reduce", {"overlap": "next-forward"}),
    ("ad-psgd", {"peers": "exponential"}),
]


class Real:
    """Trains `steps` by rank in threads, with torch; keeps acts, and means by communicator."""

    def __init__(self, name: str, options: dict[str, Any], steps: Sequence[int]) -> None:
        self.definition = Recorded(STRATEGIES[name](**options), SKIPS)
        self.job = ThreadJob(WORKERS, SEED)
        self.steps = steps
        self.updates = [0] * WORKERS
        self.communicators: list[Any] = [None] * WORKERS
        self.models: list[Any] = [None] * WORKERS
        self.job.run(self._work)

    def _work(self, rank: int) -> None:
        replica = replica_of(self.job, rank)
        executor = make_executor(self.definition, replica)  # type: ignore[arg-type]  # stands for one
        executor.begin()
        self.communicators[rank] = replica.communicator
        self.models[rank] = replica.model
        data = torch.randn(max(self.steps), 4, 3, generator=torch.Generator().manual_seed(rank))

        def update() -> None:
            self.updates[rank] += 1
            replica.optimizer.step()

        for step in range(self.steps[rank]):
            with executor.clearing(set_to_none=True):
                replica.optimizer.zero_grad()
            replica.model(data[step]).square().mean().backward()
            executor.step(update, skipped=step in SKIPS.get(rank, ()))
        executor.finish()

    @property
    def logs(self) -> list[Log]:
        return self.definition.logs


class Simulated:
    """Carries the same out in virtual time, until nothing is left to do."""

    def __init__(self, real: Real, name: str, options: dict[str, Any]) -> None:
        self.definition = Recorded(STRATEGIES[name](**options), SKIPS)
        topology = star(host_names(WORKERS // 2), Materials(Port(10**9), Port(10**9), Link()))
        cluster = ClusterSpec(topology, workers=2, spray=True, seed=SEED)
        job = TrainingSpec(
            parameters=1_000, compute_s=0.1, steps=max(real.steps), strategies=(), layers=1
        )
        self.means: list[tuple[int, ...]] = []
        world = make_world(cluster, job, StrategySpec(name, options))
        executor: Any = EXECUTORS[self.definition.family](self.definition)
        executor.prepare(world)
        executor.steps_of = lambda rank: real.steps[rank]
        if isinstance(executor, MeansExecutor):
            self._watch(executor, world)
            if executor._generator is not None:
                self._repeat(executor, real)
        for rank in range(WORKERS):
            world.time.begin(executor.worker(rank))
        world.time.run()

    def _watch(self, executor: Any, world: Any) -> None:
        average = world.average

        def watched(members: tuple[int, ...], *arguments: Any, **more: Any) -> Any:
            self.means.append(tuple(members))
            return average(members, *arguments, **more)

        world.average = watched
        executor._is_of_run = lambda _: True  # also what nobody needs any more

    def _repeat(self, executor: Any, real: Real) -> None:
        """Let workers ask the real run's answers instead of the generator."""
        said = [iter(_answers(log)) for log in real.logs]

        def ask(rank: int, *_: Any) -> Generator[int, Any, Group]:
            yield 1
            return next(said[rank])

        executor._ask = ask

    @property
    def logs(self) -> list[Log]:
        return self.definition.logs


def _answers(log: Log) -> list[Group]:
    found = []
    for act, answer in log:
        if act == "beside":
            found += _answers(answer)
        elif isinstance(act, AskGroup):
            found.append(answer)
    return found


def _acts(log: Log) -> list[Any]:
    """Return the acts alone: an answer says when something happened, as well."""
    return [("beside", _acts(answer)) if act == "beside" else act for act, answer in log]


def _means(log: Log) -> list[tuple[tuple[int, ...], tuple[int, int]]]:
    found = []
    for act, answer in log:
        if act == "beside":
            found += _means(answer)
        elif isinstance(act, Mean) and len(act.members) > 1:
            found.append((act.members, act.number))
    return found


@pytest.mark.parametrize("steps", [EVEN, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize(("name", "options"), CASES)
def test_both_executors_want_the_same_acts(
    name: str, options: dict[str, Any], steps: Sequence[int]
) -> None:
    real = Real(name, options, steps)
    simulated = Simulated(real, name, options)
    for rank in range(WORKERS):
        assert _acts(simulated.logs[rank]) == _acts(real.logs[rank]), f"rank {rank}"
        if STRATEGIES[name]().is_lock_step or name == "ps-bsp":
            assert simulated.logs[rank] == real.logs[rank], f"rank {rank}"


@pytest.mark.parametrize("steps", [EVEN, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize(("name", "options"), [c for c in CASES if "interval" in c[1]] + CASES[5:9])
def test_both_executors_do_what_the_acts_say(
    name: str, options: dict[str, Any], steps: Sequence[int]
) -> None:
    real = Real(name, options, steps)
    wanted = [_means(log) for log in real.logs]
    outer = getattr(real.definition, "outer", None)
    most = 1 if outer is None else 3  # an anchor and a velocity travel with some means
    for communicator, means in zip(real.communicators, wanted, strict=True):
        assert isinstance(communicator, ThreadCommunicator)
        assert communicator.means == [
            (members, epoch << 32 | number * most) for members, (epoch, number) in means
        ]
    assert real.updates == list(steps), "each step has one local update"
    together = sorted({(number, members) for means in wanted for members, number in means})
    simulated = Simulated(real, name, options)
    assert sorted(simulated.means) == sorted(members for _, members in together)


def test_the_comparison_sees_a_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody_trains(*_: object) -> Generator[int, Any, bool]:
        yield 1
        return False

    real = Real("ds-sync", {}, UNEVEN)
    monkeypatch.setattr("shoal.sim.training.facts.Facts.wait", nobody_trains)
    simulated = Simulated(real, "ds-sync", {})
    assert [_acts(log) for log in simulated.logs] != [_acts(log) for log in real.logs]


def test_replicas_are_equal_where_all_gradients_are_summed() -> None:
    """Workers that end early have nothing to give, and have the last model at the end."""
    for name in ("all-reduce", "ps-bsp"):
        real = Real(name, {}, UNEVEN)
        weights = [model.weight.detach() for model in real.models]
        assert all(torch.equal(weights[0], other) for other in weights[1:]), name
