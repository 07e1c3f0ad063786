"""Nobody is in two groups, nobody waits for ever: any calls in any order, and all orders of a few.

`Ledger` is an independent account of what the generator promised. The state machine feeds it random
sequences of calls; the exploration feeds it every interleaving, every random choice and a departure
at every point of small runs.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shoal.groups.generator import GroupGenerator
from shoal.groups.generator_config import GeneratorConfig
from shoal.groups.generator_events import Assignment, AssignmentReason
from thoroughness import examples, seldom

COMPUTING, WAITING, MUST_ASK_AGAIN = "computing", "waiting", "must ask again"


class Ledger:
    """What every live worker does, by the answers alone; refuses an answer that breaks a rule."""

    def __init__(self, config: GeneratorConfig) -> None:
        self.config = config
        self.doing: dict[int, str] = {}
        self.running: dict[int, int] = {}
        self.last_group: dict[int, int] = {}
        self.answers: dict[int, int] = {}

    def join(self, rank: int) -> None:
        self.doing[rank] = COMPUTING
        self.answers[rank] = 0

    def request(self, rank: int, answer: list[Assignment]) -> None:
        assert self.doing[rank] != WAITING
        self.doing[rank] = WAITING
        self.running.pop(rank, None)
        assert len(answer) <= 1
        assert all(rank in assignment.members for assignment in answer)
        self.take(answer)

    def leave(self, rank: int, answer: list[Assignment]) -> None:
        del self.doing[rank]
        self.running.pop(rank, None)
        self.take(answer)

    def take(self, answer: list[Assignment]) -> None:
        for group in answer:
            assert list(group.members) == sorted(set(group.members))
            assert set(group.more) <= set(group.members)
            assert (len(group.members) == 1) == (
                group.reason in (AssignmentReason.ALONE, AssignmentReason.SHRUNK)
            )
            for rank in group.members:
                self.start(rank, group)

    def start(self, rank: int, group: Assignment) -> None:
        assert self.doing[rank] == WAITING
        assert rank not in self.running, "a worker is in two running groups"
        assert self.last_group.get(rank, -1) < group.group_id, "not the one order of all groups"
        self.last_group[rank] = self.running[rank] = group.group_id
        if self.config.group_buffer:
            assert rank not in group.more
        elif rank not in group.more:
            assert group.requested_by == rank or self.config.global_division
        self.answers[rank] += 1
        self.doing[rank] = MUST_ASK_AGAIN if rank in group.more else COMPUTING

    def able(self) -> list[int]:
        """Return who can call `request` next, ascending."""
        return [rank for rank in sorted(self.doing) if self.doing[rank] != WAITING]

    def waiting(self) -> list[int]:
        return [rank for rank in sorted(self.doing) if self.doing[rank] == WAITING]


def check_state(generator: GroupGenerator, ledger: Ledger) -> None:
    """Compare the generator's own account with the ledger's, and check it for stranded groups."""
    state = generator.dump()
    workers = {worker.rank: worker for worker in state.workers}
    assert sorted(workers) == sorted(ledger.doing)
    arrived = dict.fromkeys((group.group_id for group in state.groups), 0)
    for rank, worker in workers.items():
        assert (worker.waiting_since_ns is not None) == (ledger.doing[rank] == WAITING)
        assert worker.running == ledger.running.get(rank)
        assert list(worker.queue) == sorted(set(worker.queue))
        assert worker.queue[:1] > (ledger.last_group.get(rank, -1),) or not worker.queue
        assert (worker.owed is not None) == (
            ledger.doing[rank] == MUST_ASK_AGAIN
            or (not state.config.group_buffer and ledger.doing[rank] == WAITING)
        )
        assert worker.owed is None or worker.owed in worker.queue
        if worker.waiting_since_ns is not None:
            arrived[worker.queue[0]] += 1
    for group in state.groups:
        assert set(group.members) <= set(workers)
        assert group.members == tuple(
            r for r in sorted(workers) if group.group_id in workers[r].queue
        )
        assert group.arrived == arrived[group.group_id]
        assert group.arrived < len(group.members), "a group all of whose members wait is stranded"
    counters = state.counters
    assert counters.groups_started <= counters.groups_formed
    assert sum(counters.requests_by_rank.values()) == counters.requests
    assert sum(counters.group_sizes.values()) == counters.groups_started
    assert counters.serializations <= counters.conflicts


switches = st.builds(
    GeneratorConfig,
    group_size=st.integers(2, 4),
    group_buffer=st.booleans(),
    global_division=st.booleans(),
    inter_intra=st.booleans(),
    slowdown_threshold=st.sampled_from([None, 1, 2, 5]),
    refined_filter=st.booleans(),
)


class GeneratorMachine(RuleBasedStateMachine):
    """Workers that join, ask and leave in any order, under any combination of switches."""

    @initialize(config=switches, seed=st.integers(0, 2**32), workers=st.integers(2, 8))
    def start(self, config: GeneratorConfig, seed: int, workers: int) -> None:
        self.generator = GroupGenerator(config, Random(seed))
        self.ledger = Ledger(config)
        self.now_ns = 0
        for rank in range(workers):
            self.join_as(rank)

    def join_as(self, rank: int) -> None:
        self.generator.join(rank, host=rank // 3)
        self.ledger.join(rank)

    def ask(self, rank: int) -> None:
        self.ledger.request(rank, self.generator.request(rank, self.now_ns))

    @precondition(lambda self: len(self.ledger.doing) < 10)
    @rule(rank=st.integers(0, 9))
    def join(self, rank: int) -> None:
        if rank not in self.ledger.doing:
            self.join_as(rank)

    @rule(order=st.permutations(range(10)), count=st.integers(1, 10), pause_ns=st.integers(0, 99))
    def request(self, order: list[int], count: int, pause_ns: int) -> None:
        for rank in [rank for rank in order if rank in self.ledger.able()][:count]:
            self.now_ns += pause_ns
            self.ask(rank)
            check_state(self.generator, self.ledger)

    @precondition(lambda self: len(self.ledger.doing) > 1)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        rank = data.draw(st.sampled_from(sorted(self.ledger.doing)))
        self.ledger.leave(rank, self.generator.leave(rank, self.now_ns))

    @rule()
    def everyone_else_keeps_asking(self) -> None:
        """Each time that all who can ask do ask, the oldest group is finished, at the least."""
        before = {rank: self.ledger.answers[rank] for rank in self.ledger.waiting()}
        for _ in self.generator.dump().groups:
            for rank in self.ledger.able():
                if self.ledger.doing[rank] != WAITING:
                    self.ask(rank)
        assert all(self.ledger.answers[rank] > count for rank, count in before.items())

    @invariant()
    def accounts_agree(self) -> None:
        if hasattr(self, "ledger"):
            check_state(self.generator, self.ledger)


TestGeneratorMachine = GeneratorMachine.TestCase
TestGeneratorMachine.settings = settings(max_examples=examples(120), stateful_step_count=30)


class ScriptedRandom:
    """Takes the choices it is told, then the first of each; remembers how many there were."""

    def __init__(self) -> None:
        self.script: list[int] = []
        self.taken: list[tuple[int, int]] = []

    def pick(self, options: list[Any]) -> Any:
        position = len(self.taken)
        choice = self.script[position] if position < len(self.script) else 0
        self.taken.append((choice, len(options)))
        return options[choice]

    def shuffle(self, items: list[Any]) -> None:
        items[:] = self.pick(list(itertools.permutations(items)))

    def sample(self, population: list[Any], k: int) -> list[Any]:
        return list(self.pick(list(itertools.combinations(population, k))))


class World:
    """A few workers with a few steps to go, of whom some may die at any moment."""

    def __init__(self, config: GeneratorConfig, workers: int, steps: int, deaths: int) -> None:
        self.random = ScriptedRandom()
        self.generator = GroupGenerator(config, self.random)  # type: ignore[arg-type]
        self.ledger = Ledger(config)
        self.steps = dict.fromkeys(range(workers), steps)
        self.deaths = deaths
        for rank in range(workers):
            self.generator.join(rank, host=rank // 2)
            self.ledger.join(rank)

    def actions(self) -> list[tuple[str, int]]:
        able = self.ledger.able()
        finished = [r for r in able if self.ledger.doing[r] == COMPUTING and not self.steps[r]]
        actions = [("leave", r) if r in finished else ("ask", r) for r in able]
        if self.deaths:
            actions += [("die", rank) for rank in sorted(self.ledger.doing) if rank not in finished]
        return actions

    def apply(self, action: str, rank: int) -> None:
        if action == "ask":
            self.steps[rank] -= self.ledger.doing[rank] == COMPUTING
            self.ledger.request(rank, self.generator.request(rank, 0))
        else:
            self.deaths -= action == "die"
            self.ledger.leave(rank, self.generator.leave(rank, 0))
        check_state(self.generator, self.ledger)

    def key(self) -> tuple[object, ...]:
        """Return all that the future depends on; group ids count by their order alone."""
        state = self.generator.dump()
        place = {group.group_id: place for place, group in enumerate(state.groups)}
        workers = tuple(
            (
                worker.rank,
                self.ledger.doing[worker.rank],
                self.steps[worker.rank],
                tuple(place[group_id] for group_id in worker.queue),
                place.get(worker.owed, -1) if worker.owed is not None else None,
                worker.progress if state.config.slowdown_threshold else 0,
            )
            for worker in state.workers
        )
        return (*workers, self.deaths)


def outcomes(frozen: bytes, action: tuple[str, int]) -> Iterator[World]:
    """Apply `action` to copies of a world, once for every possible choice of the random numbers."""
    scripts: list[list[int]] = [[]]
    while scripts:
        world: World = pickle.loads(frozen)
        world.random.script, world.random.taken = scripts.pop(), []
        told = len(world.random.script)
        world.apply(*action)
        choices = [choice for choice, _ in world.random.taken]
        for position in range(told, len(choices)):
            alternatives = range(1, world.random.taken[position][1])
            scripts += [[*choices[:position], other] for other in alternatives]
        world.random.script, world.random.taken = [], []
        yield world


def explore(world: World) -> tuple[int, int]:
    """Visit every state that can be reached; return how many there are and how many are ends.

    Every answer and state on the way is checked. An end has no worker left: anything else in which
    nobody can act is a deadlock.
    """
    seen = {world.key()}
    stack = [pickle.dumps(world)]
    ends = 0
    while stack:
        frozen = stack.pop()
        here: World = pickle.loads(frozen)
        actions = here.actions()
        assert actions or not here.ledger.doing, "deadlock: everyone waits"
        ends += not actions
        for action in actions:
            for world in outcomes(frozen, action):
                if (key := world.key()) not in seen:
                    seen.add(key)
                    stack.append(pickle.dumps(world))
    return len(seen), ends


SWITCHES = [
    pytest.param(
        *on, id="-".join(name for name, flag in zip(names, on, strict=True) if flag) or "none"
    )
    for names in [("buffer", "division", "inter_intra")]
    for on in itertools.product((False, True), repeat=3)
    if on[1] or not on[2]  # inter-intra rounds exist only within divisions
]


@pytest.mark.parametrize(("buffer", "division", "inter_intra"), SWITCHES)
@pytest.mark.parametrize(
    ("workers", "steps", "deaths", "group_size", "threshold"),
    seldom(
        [
            (2, 4, 1, 2, 2),
            (3, 2, 1, 2, 1),
            (3, 2, 1, 3, None),
            (3, 2, 0, 2, None),
            (4, 1, 0, 2, None),
        ],
        often=[(2, 4, 1, 2, 2), (3, 2, 1, 2, 1), (3, 2, 1, 3, None)],
    ),
)
def test_every_interleaving_of_a_few_workers_ends_with_nobody_left_waiting(
    buffer: bool,
    division: bool,
    inter_intra: bool,
    workers: int,
    steps: int,
    deaths: int,
    group_size: int,
    threshold: int | None,
) -> None:
    config = GeneratorConfig(group_size, buffer, division, inter_intra, threshold)
    states, ends = explore(World(config, workers, steps, deaths))
    assert states > workers * steps
    assert ends == 1 + deaths


@pytest.mark.parametrize(
    ("config", "steps", "deaths"),
    [
        pytest.param(GeneratorConfig.smart_mode(2), 3, 1, id="smart"),
        pytest.param(GeneratorConfig.smart_mode(2, slowdown_threshold=1), 1, 2, id="filter"),
        pytest.param(
            GeneratorConfig(2, inter_intra=False), 2, 1, id="one-host", marks=pytest.mark.long
        ),
    ],
)
def test_every_interleaving_of_four_smart_workers_with_deaths(
    config: GeneratorConfig, steps: int, deaths: int
) -> None:
    _, ends = explore(World(config, 4, steps, deaths))
    assert ends == 1 + deaths


class NewestFirst(GroupGenerator):
    """A generator without the one order: workers that compute serve their newest group first."""

    def _enqueue(self, members: Any, requester: Any, reason: Any) -> None:
        super()._enqueue(members, requester, reason)
        for worker in members:
            if worker.arrived_ns is None:
                worker.queue.insert(0, worker.queue.pop())


def test_the_exploration_finds_a_deadlock_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(GeneratorConfig.random_mode(2), workers=3, steps=2, deaths=0)
    world.generator.__class__ = NewestFirst
    monkeypatch.setitem(globals(), "check_state", lambda *_: None)
    monkeypatch.setattr(Ledger, "start", _start_without_order)
    with pytest.raises(AssertionError, match="deadlock"):
        explore(world)


def _start_without_order(ledger: Ledger, rank: int, group: Assignment) -> None:
    ledger.answers[rank] += 1
    ledger.doing[rank] = MUST_ASK_AGAIN if rank in group.more else COMPUTING
