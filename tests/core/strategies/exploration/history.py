"""Random histories of a job whose members die, are cut off, and join, whatever a course wants then.

Workers, courses, membership and group generator are real and pure; what carries acts out here is a
fake executor, in which every event may come at any time that it could: the seed chooses. A history
is bad if nothing can happen any more though somebody living is not done, or if workers end with
different models where models are exact. `WITHOUT` names rules of an executor that may be left out,
to see that histories find that out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from shoal.membership import (
    Decision,
    Membership,
    Position,
    Proposal,
    Refusal,
    Report,
    Stage,
    View,
)
from shoal.strategies import AbstractDefinition, Setting
from shoal.strategies.acts import (
    CHANGED,
    AnswerPairs,
    Await,
    AwaitGoodbyes,
    Begin,
    Goodbye,
    JoinGroups,
    LeaveGroups,
    Mean,
    TakeIn,
    Tell,
    Update,
)

WITHOUT = (
    "",
    "settling",
    "an agreed round",
    "telling who waits",
    "leaving out who has ended",
    "the epoch of an assignment",
    "throwing half a sum away",
    "what weights hold",
    "what members have pulled",
    "a clock from the reports",
    "saying that one lacks all",
    "telling anew",
)
COMPUTE = "compute"
TRAINING = "training"
MOST_EVENTS = 4000
Event = tuple[Any, ...]


@dataclass
class Running:
    """A generator of acts, and the act for whose answer it waits."""

    acts: Generator[Any, Any, None]
    pending: Any = None
    asked: object = None
    """The generator of groups that was asked."""


@dataclass
class Worker:
    rank: int
    steps_left: int = 0
    course: Any = None
    running: dict[str, Running] = field(default_factory=dict)
    epoch: int = -1
    """The epoch of the view that it has installed."""
    has_begun: bool = False
    """Whether it has what a view goes on from; a member hands that on to a newcomer."""
    is_alive: bool = True
    is_cut_off: bool = False
    """Declared lost, but going on in its old view."""
    is_frozen: bool = False
    is_done: bool = False
    has_ended: bool = False
    has_left: bool = False
    # what sums need
    model: tuple[Any, ...] = ()
    has: dict[int, Any] = field(default_factory=dict)
    """By bucket, the sum that is here of the number under way."""
    kept: dict[tuple[int, int], Any] = field(default_factory=dict)
    """The last whole sum, by number and bucket."""
    has_adopted: bool = False

    @property
    def is_well(self) -> bool:
        return self.is_alive and not self.is_cut_off


class History:
    """One job from its beginning to its end, under one seed."""

    hands_on_later = True
    """Whether a newcomer gets what it lacks some time after the view with it begins."""

    def __init__(self, definition: AbstractDefinition, seed: int, without: str = "") -> None:
        assert without in WITHOUT
        self.random, self.without = Random(seed), without
        self.definition = definition
        size = self.random.choice((3, 4))
        self.deaths_left = self.random.choice((0, 1, 2, 3))
        self.joins_left = self.random.choice((0, 0, 1, 2))
        self.successions_left = self.random.choice((0, 0, 1, 2))
        self.is_control_new = False
        """Whether another control plane serves than the last view was decided by."""
        view = View(0, tuple(range(size)), tuple(rank // 2 for rank in range(size)))
        self.membership = Membership(view, 1)
        self.noticed: set[int] = set()
        self.told: set[Any] = set()
        self.mail: list[tuple[int, Any]] = []
        """Facts on their way, in the order in which each worker told its own."""
        self.met: dict[Any, dict[int, Any]] = defaultdict(dict)
        """Who has come to what, with what it brought."""
        self.view = view
        self.decision = Decision(view, (), {})
        self.deaths = self.views = 0
        self.reported: set[int] = set()
        """Who has answered the proposal."""
        self.workers = {rank: Worker(rank) for rank in view.members}
        course_of = definition.courses(Setting(view, seed=seed))
        self.prepare(view)
        for worker in self.workers.values():
            worker.epoch = 0
            self.enter(worker, course_of(worker.rank), self.random.randrange(2, 7))

    # ---- what families add -----------------------------------------------------------------------

    def prepare(self, view: View) -> None:
        """Make what workers share."""

    def begin(self, worker: Worker, name: str, running: Running) -> None:
        """Come to the pending act."""

    def step_of(self, worker: Worker) -> Generator[Any, Any, None]:
        """Return the acts of a worker's next step."""
        return worker.course.step()

    def events_of(self, worker: Worker, name: str, running: Running) -> list[Event]:
        """Return what may happen to the pending act now."""
        raise NotImplementedError

    def decided(self) -> None:
        """Carry over what the new view goes on from."""

    def installed(self, worker: Worker, *, is_fresh: bool) -> None:
        """Give a member what it needs in the new view."""

    def verdict(self) -> str:
        """Return what is wrong at the end; "" if nothing is."""
        return ""

    # ---- one history -----------------------------------------------------------------------------

    def run(self) -> str:
        """Return "" for a good history."""
        for _ in range(MOST_EVENTS):
            events = self.events()
            if not events:
                stuck = [w for w in self.workers.values() if w.is_well and not w.is_done]
                stuck = [w for w in stuck if not w.has_left]
                return f"hang: {stuck}" if stuck else self.verdict()
            name, *arguments = self.random.choice(events)
            getattr(self, name)(*arguments)
        return "no end"

    def enter(self, worker: Worker, course: Any, steps: int) -> None:
        worker.course, worker.steps_left, worker.has_begun = course, steps, True
        worker.running = {"main": Running(self.program(worker))}
        for act in course.begin():
            assert isinstance(act, AnswerPairs | JoinGroups)
            if isinstance(act, AnswerPairs):
                self.said(worker, act)

    def program(self, worker: Worker) -> Generator[Any, Any, None]:
        while worker.steps_left > 0:
            yield COMPUTE
            yield from self.step_of(worker)
            worker.steps_left -= 1
        yield from worker.course.finish()

    def events(self) -> list[Event]:
        found: list[Event] = []
        living = [w for w in self.workers.values() if w.is_alive]
        for worker in living:
            if worker.is_frozen or worker.has_left:
                continue
            for name, running in worker.running.items():
                if running.pending is None:
                    found.append(("go_on", worker, name, None))
                else:
                    found += self.events_of(worker, name, running)
        if self.mail:
            found.append(("deliver",))
        found += self._events_of_membership(living)
        if self.deaths_left and sum(w.is_well for w in living) > 1:
            found += [("die", w) for w in living if w.is_well and self.random.random() < 0.08]
        if self.successions_left and self.random.random() < 0.05:
            found.append(("lose_control",))
        if self.joins_left and self.random.random() < 0.05 and not all(w.is_done for w in living):
            found.append(("start",))
        return found

    def _events_of_membership(self, living: list[Worker]) -> list[Event]:
        found: list[Event] = [
            ("notice", worker)
            for worker in self.workers.values()
            if not worker.is_well and worker.rank not in self.noticed
        ]
        proposal = self.membership.proposal
        if proposal is not None:
            found += [
                ("report", self.workers[rank], proposal.number)
                for rank in proposal.members
                if self.workers[rank].is_well and rank not in self.reported
            ]
        else:
            for worker in living:
                is_member = worker.rank in self.view.members
                if is_member and worker.epoch < self.view.epoch and worker.is_well:
                    found.append(("install", worker))
                if is_member and self._can_be_given(worker):
                    found.append(("hand_on", worker))
        return found

    def _can_be_given(self, worker: Worker) -> bool:
        """Return whether a member that is furthest can hand on what `worker` lacks."""
        rounds = self.decision.rounds_of(TRAINING)
        if worker.has_begun or worker.rank not in self.decision.newcomers or not rounds:
            return False
        donor = self.workers[max(rounds, key=lambda rank: rounds[rank])]
        return donor.is_well and worker.epoch == donor.epoch == self.view.epoch

    # ---- events ----------------------------------------------------------------------------------

    def go_on(self, worker: Worker, name: str, answer: Any) -> None:
        """Send an answer, and come to the next act that waits for something."""
        running = worker.running[name]
        running.pending = None
        while True:
            try:
                act = running.acts.send(answer)
            except StopIteration:
                del worker.running[name]
                if name == "main":
                    worker.is_done = worker.has_ended = True
                    self.done(worker)
                return
            answer = None
            if act == COMPUTE:
                return  # an event of its own: other things happen meanwhile
            match act:
                case Update():
                    self.updated(worker)
                case Tell():
                    self.mail.append((worker.rank, (act.fact, worker.rank)))
                case Begin():
                    worker.running["beside"] = Running(act.acts)
                case LeaveGroups() | Goodbye() | AnswerPairs():
                    self.said(worker, act)
                case _:
                    running.pending = act
                    self.begin(worker, name, running)
                    return

    def done(self, worker: Worker) -> None:
        """Take note that a worker has finished."""

    def updated(self, worker: Worker) -> None:
        """Take note of an update."""

    def said(self, worker: Worker, act: Any) -> None:
        """Take note of what needs no answer."""

    def deliver(self) -> None:
        """Let one fact arrive: those of one worker in order, those of strangers not at all."""
        sender = self.random.choice(sorted({rank for rank, _ in self.mail}))
        place = next(i for i, (rank, _) in enumerate(self.mail) if rank == sender)
        _, fact = self.mail.pop(place)
        if sender in self.view.members:
            self.told.add(fact)

    def die(self, worker: Worker) -> None:
        self.deaths_left -= 1
        self.deaths += 1
        if self.random.random() < 0.3:
            worker.is_cut_off = True
        else:
            worker.is_alive = False

    def start(self) -> None:
        self.joins_left -= 1
        rank = max(self.workers) + 1
        self.workers[rank] = Worker(rank, is_frozen=True)
        self.heed(self.membership.join(rank, rank // 2, "new", 0))

    def notice(self, worker: Worker) -> None:
        self.noticed.add(worker.rank)
        self.heed(self.membership.lose(worker.rank, "lost", 0))

    def lose_control(self) -> None:
        """Let another control plane serve: it knows what the living tell it, and no more."""
        self.successions_left -= 1
        old = self.membership
        members = [rank for rank in old.view.members if rank in old]
        if not members:
            return
        number = 0 if old.proposal is None else old.proposal.number
        self.membership = Membership(old.view, 1, num_finished=old.num_finished)
        self.is_control_new = True
        position = Position(old.view, proposal=number)
        events = self.membership.succeed(position, members[0], 0)
        for rank in old.view.members:
            if rank not in old:
                events = self.membership.lose(rank, "lost", 0)
        for rank in self.workers:
            if rank in old and rank not in old.view.members:
                events = self.membership.join(rank, rank // 2, "new", 0)
        self.heed(events)

    def report(self, worker: Worker, number: int) -> None:
        """Fence, and report."""
        worker.is_frozen = True
        self.reported.add(worker.rank)
        said = Report() if self.without == "saying that one lacks all" else None
        if worker.has_begun:
            stage = Stage(worker.course.report(), worker.steps_left <= 0, worker.has_ended)
            said = Report({TRAINING: stage})
        self.heed(self.membership.report(worker.rank, number, said, 0))

    def heed(self, events: list[Any]) -> None:
        for event in events:
            match event:
                case Proposal():
                    self.reported = set()
                case Refusal():
                    self.workers[event.rank].has_left = True
                case Decision():
                    self.views += 1
                    self.decision, self.view = event, event.view_of(TRAINING)
                    self.decided()
                    if self.is_control_new and self.without != "telling anew":
                        self.told = {f for f in self.told if f[1] in self.view.members}
                    elif self.is_control_new:
                        self.told = set()
                    self.is_control_new = False

    def install(self, worker: Worker) -> None:
        worker.epoch, worker.is_frozen = self.view.epoch, False
        if not worker.has_begun:
            if not self.decision.reports:
                worker.has_left = True  # nobody is left who has a model
            elif not self.hands_on_later:
                self.hand_on(worker)
            return
        own_round = worker.course.report()
        self.on_view(worker)
        if self.without == "an agreed round" and hasattr(worker.course, "_next_round"):
            worker.course._next_round = own_round
        self.installed(worker, is_fresh=False)
        for name in list(worker.running):
            running = worker.running.get(name)
            if running is None or running.pending is None or isinstance(running.pending, TakeIn):
                continue  # what it takes in is told itself
            if self.outlives(running):
                continue
            if self.without == "telling who waits" and isinstance(
                running.pending, Await | AwaitGoodbyes
            ):
                continue
            self.go_on(worker, name, CHANGED)

    def on_view(self, worker: Worker) -> None:
        """Let a course go on in the view."""
        worker.course.on_view(self.view)

    def hand_on(self, worker: Worker) -> None:
        """Let a newcomer begin with what a member hands on."""
        course = self.definition.courses(Setting(self.view, seed=1))(worker.rank)
        worker.course = course
        self.on_view(worker)
        donors = [self.workers[rank] for rank in self.decision.reports]
        self.enter(worker, course, max([1, *(donor.steps_left for donor in donors)]))
        self.installed(worker, is_fresh=True)

    def outlives(self, running: Running) -> bool:
        """Return whether the pending act goes on in the new view."""
        return False

    # ---- acts that several families have -------------------------------------------------------

    def events_of_waiting(self, worker: Worker, name: str, act: Any) -> list[Event]:
        answer = [("go_on", worker, name)]
        match act:
            case TakeIn():
                is_busy = "beside" in worker.running
                return [(*answer[0], None)] if not (is_busy and act.wait) else []
            case Await():
                members = worker.course.view.members
                if any(fact == act.somebody for fact, _ in self.told):
                    return [(*answer[0], True)]
                finished = [(act.everyone, rank) for rank in members]
                if all(fact in self.told for fact in finished):
                    return [("end", worker, name)]
            case Mean():
                if worker.epoch != act.number[0] or any(
                    rank not in worker.course.view.members for rank in act.members
                ):
                    return [(*answer[0], CHANGED)]
                if all(rank in self.met[act.number, act.members] for rank in act.members):
                    return [(*answer[0], None)]
        return []

    def end(self, worker: Worker, name: str) -> None:
        """Tell a worker that nobody trains any more."""
        worker.has_ended = True
        self.go_on(worker, name, False)

    def begin_mean(self, worker: Worker, act: Any) -> None:
        if isinstance(act, Mean) and act.number[0] == worker.epoch:
            self.met[act.number, act.members][worker.rank] = True
