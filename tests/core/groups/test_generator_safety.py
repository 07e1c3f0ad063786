"""Nobody is in two groups, nobody waits for ever: any calls in any order, and all orders of a few.

The state machine feeds a `Ledger` random sequences of calls; the exploration feeds it every
interleaving, every random choice and a departure at every point of small runs.
"""

from __future__ import annotations

import itertools
from random import Random
from typing import TYPE_CHECKING, Any

import generator_worlds
import pytest
from generator_worlds import COMPUTING, MUST_ASK_AGAIN, WAITING, Ledger, World, check_state, explore
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shoal.groups.generator import GroupGenerator
from shoal.groups.generator_config import GeneratorConfig
from thoroughness import examples, seldom

if TYPE_CHECKING:
    from shoal.groups.generator_events import Assignment

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
        here = sorted(self.ledger.doing)
        most = len(here) - 1
        gone = data.draw(st.lists(st.sampled_from(here), min_size=1, max_size=most, unique=True))
        self.ledger.leave(gone, self.generator.leave_together(gone, self.now_ns))

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


SWITCHES = [
    pytest.param(
        *on,
        id="-".join(name for name, flag in zip(names, on, strict=True) if flag) or "none",
        marks=[pytest.mark.long] * (on[1] and not on[2]),
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
        often=[(2, 4, 1, 2, 2), (3, 2, 1, 2, 1)],
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
        pytest.param(GeneratorConfig.smart_mode(2), 3, 1, id="smart", marks=pytest.mark.long),
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
    monkeypatch.setattr(generator_worlds, "check_state", lambda *_: None)
    monkeypatch.setattr(Ledger, "start", _start_without_order)
    with pytest.raises(AssertionError, match="deadlock"):
        explore(world)


def _start_without_order(ledger: Ledger, rank: int, group: Assignment) -> None:
    ledger.answers[rank] += 1
    ledger.doing[rank] = MUST_ASK_AGAIN if rank in group.more else COMPUTING
