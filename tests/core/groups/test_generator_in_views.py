"""Workers that a generator serves, while members are lost and come: every interleaving of a few.

The generator and the membership are real. A loss is proposed, reported by all, and decided; nothing
of a view completes after its member has reported. What the generator answers before a view and a
worker hears in it is dropped, and so is a mean under way; a request that is not answered stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from generator_worlds import (
    COMPUTING,
    MUST_ASK_AGAIN,
    WAITING,
    Ledger,
    ScriptedRandom,
    check_state,
    explore,
)

from shoal.errors import ProtocolError
from shoal.groups.generator import GroupGenerator
from shoal.groups.generator_config import GeneratorConfig
from shoal.membership import Decision, Membership, Proposal, Refusal, Report, Stage, View
from thoroughness import seldom

if TYPE_CHECKING:
    from shoal.groups.generator_events import Assignment

MEETING, DONE = "meeting", "done"


@dataclass
class Worker:
    """What one worker does, by what it has heard."""

    steps: int
    doing: str = COMPUTING
    epoch: int = 0
    is_frozen: bool = False
    """Whether it has reported, and waits for the decision."""
    is_alive: bool = True
    asked: int = 0
    """Which generator it has asked."""
    letter: tuple[int, Assignment] | None = None
    """The epoch of an answer on its way, and the answer."""
    group: Assignment | None = None
    """The workers whose mean is under way."""


@dataclass
class Rules:
    """What may be left out, to see that the exploration finds it out."""

    drops_old_answers: bool = True
    keeps_requests: bool = True
    leaves_for_the_dead: bool = True
    drops_the_dead_together: bool = True
    """Whether the generator drops all that are lost at once: one after another, it may answer with
    the second as it drops the first."""


@dataclass
class Odds:
    """What may happen in a history."""

    workers: int
    steps: int
    deaths: int = 1
    joins: int = 0
    is_hosted: bool = False
    """Whether the generator dies with the first member."""


class WorldInViews:
    """A few workers with a few steps to go, of whom some may die, and to whom some may come.

    What changes only its own worker comes at once, as later it would come to the same: a loss is
    noticed, those who do nothing report, members install, and a mean to which all have come is over
    (one that is dropped leaves a worker where one that is over does).
    """

    def __init__(self, config: GeneratorConfig, odds: Odds, rules: Rules | None = None) -> None:
        self.random = ScriptedRandom()
        self.config, self.rules = config, rules or Rules()
        self.deaths, self.joins, self.is_hosted = odds.deaths, odds.joins, odds.is_hosted
        ranks = tuple(range(odds.workers))
        self.workers = {rank: Worker(odds.steps) for rank in ranks}
        self.membership = Membership(View(0, ranks, tuple(rank // 2 for rank in ranks)), 1)
        self.reported: set[int] = set()
        self.met: dict[tuple[int, int], set[int]] = {}
        """By epoch and group, who has come to its mean and has not gone on since."""
        self.num_generators = 0
        self._serve()

    def _serve(self) -> None:
        """Begin with a new generator, for those who still take part."""
        self.host = self.membership.view.members[0]
        self.num_generators += 1
        self.generator = GroupGenerator(self.config, self.random)  # type: ignore[arg-type]
        self.ledger = Ledger(self.config)
        for rank in self.membership.view.members:
            worker = self.workers[rank]
            worker.asked = 0
            if worker.doing != DONE and worker.epoch >= 0:
                self._join(rank)

    def _join(self, rank: int) -> None:
        self.generator.join(rank, host=rank // 2)
        self.ledger.join(rank)

    @property
    def is_served(self) -> bool:
        return not self.is_hosted or self.workers[self.host].is_alive

    def unfinished(self) -> list[int]:
        return [r for r, worker in self.workers.items() if worker.is_alive and worker.doing != DONE]

    # ---- what may happen -------------------------------------------------------------------------

    def actions(self) -> list[tuple[str, int]]:
        found = self._actions_of_membership()
        for rank in self.unfinished():
            worker = self.workers[rank]
            if not worker.is_frozen:
                found += [(action, rank) for action in self._acts_of(rank, worker)]
        if self.deaths:
            needed = [r for r, w in self.workers.items() if w.is_alive]
            found += [("die", rank) for rank in needed if set(self.unfinished()) - {rank}]
        if self.joins and any(w.steps for w in self.workers.values() if w.is_alive):
            found.append(("start", max(self.workers) + 1))
        return found

    def _acts_of(self, rank: int, worker: Worker) -> list[str]:
        match worker.doing:
            case "computing":
                return ["ask"] if worker.steps else ["finish"]
            case "must ask again":
                return ["ask"]
            case "waiting" if worker.letter:
                return ["hear"]
        return []

    def _actions_of_membership(self) -> list[tuple[str, int]]:
        proposal, view = self.membership.proposal, self.membership.view
        if proposal is not None:
            return [("report", rank) for rank in proposal.members if rank not in self.reported]
        fresh = [r for r in view.members if self.workers[r].epoch < 0]
        return [("install", rank) for rank in fresh if self.workers[rank].is_alive]

    def apply(self, action: str, rank: int) -> None:
        getattr(self, action)(rank, self.workers.get(rank))
        self._check()

    def _check(self) -> None:
        check_state(self.generator, self.ledger)
        for rank in self.unfinished():
            worker = self.workers[rank]
            if worker.doing == WAITING and worker.asked == self.num_generators and self.is_served:
                is_noted = self.ledger.doing[rank] == WAITING
                assert is_noted != (worker.letter is not None), "a request survives"

    # ---- workers ---------------------------------------------------------------------------------

    def ask(self, rank: int, worker: Worker) -> None:
        worker.steps -= worker.doing == COMPUTING
        worker.doing, worker.asked = WAITING, self.num_generators
        if self.is_served:
            answer = self.generator.request(rank, 0)
            self.ledger.request(rank, answer)
            self._hand_out(answer)

    def _hand_out(self, answer: list[Assignment]) -> None:
        for group in answer:
            for rank in group.members:
                self.workers[rank].letter = self.membership.view.epoch, group

    def hear(self, rank: int, worker: Worker) -> None:
        assert worker.letter is not None
        (epoch, group), worker.letter = worker.letter, None
        if epoch != worker.epoch and self.rules.drops_old_answers:
            worker.doing = COMPUTING
            return
        worker.doing, worker.group = MEETING, group
        met = self.met.setdefault((worker.epoch, group.group_id), set())
        met.add(rank)
        if met == set(group.members):
            for each in [r for r in group.members if self.workers[r].group == group]:
                if self.workers[each].is_alive and not self.workers[each].is_frozen:
                    self._go_on(each, self.workers[each])

    def _go_on(self, rank: int, worker: Worker) -> None:
        assert worker.group is not None
        worker.doing = MUST_ASK_AGAIN if rank in worker.group.more else COMPUTING
        worker.group = None

    def finish(self, rank: int, worker: Worker) -> None:
        worker.doing = DONE
        if self.is_served:
            self._depart([rank])

    def _depart(self, ranks: list[int]) -> None:
        gone = [rank for rank in ranks if rank in self.generator]
        answer = self.generator.leave_together(gone, 0)
        self.ledger.leave(gone, answer)
        self._hand_out(answer)

    # ---- membership ------------------------------------------------------------------------------

    def die(self, rank: int, worker: Worker) -> None:
        self.deaths -= 1
        worker.is_alive, worker.letter = False, None
        self._heed(self.membership.lose(rank, "dead", 0))

    def start(self, rank: int, _: None) -> None:
        self.joins -= 1
        self.workers[rank] = Worker(1, epoch=-1, is_frozen=True)
        self._heed(self.membership.join(rank, rank // 2, "new", 0))

    def report(self, rank: int, worker: Worker) -> None:
        worker.is_frozen = True
        self.reported.add(rank)
        stage = Stage(0, worker.steps == 0, worker.doing == DONE)
        said = Report({"run": stage}) if worker.epoch >= 0 else None
        proposal = self.membership.proposal
        assert proposal is not None
        self._heed(self.membership.report(rank, proposal.number, said, 0))

    def _heed(self, events: list[Any]) -> None:
        for event in events:
            match event:
                case Proposal():
                    self.reported = set()
                    for rank in event.members:
                        worker = self.workers[rank]
                        if self.membership.proposal is event and (
                            worker.is_frozen or worker.doing == DONE
                        ):
                            self.report(rank, worker)
                case Refusal():
                    self.workers[event.rank].doing = DONE
                case Decision():
                    self._decided(event)

    def _decided(self, decision: Decision) -> None:
        if self.is_hosted and self.host not in decision.view.members:
            self._serve()
        elif self.rules.leaves_for_the_dead:
            gone = [rank for rank in self.workers if rank not in decision.view.members]
            together = self.rules.drops_the_dead_together
            for ranks in [gone] if together else [[rank] for rank in gone]:
                self._depart(ranks)
        for rank in decision.reports:
            self.install(rank, self.workers[rank])

    def install(self, rank: int, worker: Worker) -> None:
        is_fresh, worker.epoch = worker.epoch < 0, self.membership.view.epoch
        worker.is_frozen = False
        if is_fresh:
            self._join(rank)
        elif worker.doing == MEETING:
            self._go_on(rank, worker)
        elif worker.doing == WAITING:
            is_lost = worker.asked != self.num_generators
            if is_lost or not self.rules.keeps_requests:
                worker.doing, worker.letter = COMPUTING, None

    # ---- what the future depends on --------------------------------------------------------------

    def key(self) -> tuple[object, ...]:
        """Return it, with groups by their order; nothing depends on what a dead worker has done."""
        state = self.generator.dump()
        living = {rank: worker for rank, worker in self.workers.items() if worker.is_alive}
        known = {each.group_id for each in state.groups}
        known |= {worker.letter[1].group_id for worker in living.values() if worker.letter}
        known |= {worker.group.group_id for worker in living.values() if worker.group}
        place = {each: place for place, each in enumerate(sorted(known))}
        served = tuple(
            (w.rank, tuple(place[g] for g in w.queue), place.get(w.owed, -1), w.waiting_since_ns)
            for w in state.workers
        )
        workers = tuple((rank, *self._state_of(w, place)) for rank, w in living.items())
        proposed = self.membership.proposal is not None
        members = self.membership.view.members
        return served, workers, members, proposed, frozenset(self.reported), self.deaths, self.joins

    def _state_of(self, worker: Worker, place: dict[int, int]) -> tuple[object, ...]:
        letter: object = None
        if worker.letter is not None:
            epoch, group = worker.letter
            is_old = epoch < self.membership.view.epoch and self.rules.drops_old_answers
            letter = is_old or (place[group.group_id], group.members, group.more)
        meeting: object = None
        if worker.group is not None:
            met = self.met[worker.epoch, worker.group.group_id]
            group = worker.group
            meeting = place[group.group_id], group.members, group.more, frozenset(met)
        is_asked = worker.doing == WAITING and worker.asked == self.num_generators
        age = worker.epoch < 0, worker.is_frozen
        return worker.doing, worker.steps, *age, is_asked, letter, meeting


MODES = {
    "random": GeneratorConfig.random_mode(2),
    "division": GeneratorConfig(2, global_division=True, group_buffer=False, inter_intra=False),
    "smart": GeneratorConfig.smart_mode(2),
}
OFTEN = [
    ("random", Odds(2, 3)),
    ("random", Odds(2, 2, is_hosted=True)),
    ("division", Odds(3, 1)),
    ("smart", Odds(3, 2)),
    ("smart", Odds(3, 1, deaths=2)),
    ("smart", Odds(3, 2, is_hosted=True)),
    ("smart", Odds(2, 1, joins=1)),
]
SELDOM = [
    ("random", Odds(3, 1)),
    ("random", Odds(2, 1, joins=1)),
    ("smart", Odds(2, 2, joins=1)),
    ("smart", Odds(4, 1)),
]


@pytest.mark.parametrize(("mode", "odds"), seldom([*OFTEN, *SELDOM], often=OFTEN))
def test_every_interleaving_with_losses_ends_with_everybody_answered(mode: str, odds: Odds) -> None:
    states, ends = explore(WorldInViews(MODES[mode], odds))
    assert states > 100
    assert ends >= 1 + odds.deaths


@pytest.mark.parametrize(
    ("rule", "odds", "found"),
    [
        ("drops_old_answers", Odds(3, 2), "deadlock"),
        ("leaves_for_the_dead", Odds(3, 2), "deadlock"),
        ("keeps_requests", Odds(3, 2), "asked again before it was answered"),
        ("drops_the_dead_together", Odds(3, 1, deaths=2), "deadlock"),
    ],
)
def test_a_rule_that_is_left_out_is_found_out(rule: str, odds: Odds, found: str) -> None:
    with pytest.raises((AssertionError, ProtocolError), match=found):
        explore(WorldInViews(MODES["smart"], odds, Rules(**{rule: False})))
