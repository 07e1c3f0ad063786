"""Random histories of a job whose members die, are cut off, and join, whatever a course wants then.

Workers, courses, membership and group generator are real and pure; what carries acts out here is a
fake executor, in which every event may come at any time that it could: the seed chooses. A history
is bad if nothing can happen any more though somebody living is not done, or if workers end with
different models where models are exact. `WITHOUT` names rules of an executor that may be left out,
to see that histories find that out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from shoal.groups import GeneratorConfig, GroupGenerator
from shoal.membership import Decision, Membership, Proposal, Refusal, Report, View
from shoal.strategies import AbstractDefinition, Setting
from shoal.strategies.acts import (
    CHANGED,
    Adopt,
    AnswerPairs,
    AskGroup,
    Await,
    AwaitGoodbyes,
    Begin,
    Goodbye,
    Group,
    JoinGroups,
    LeaveGroups,
    Mean,
    Pair,
    SumGradients,
    Summed,
    TakeIn,
    Tell,
    Update,
)

WITHOUT = ("", "settling", "an agreed round", "telling who waits", "the epoch of an assignment")
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

    def __init__(self, definition: AbstractDefinition, seed: int, without: str = "") -> None:
        assert without in WITHOUT
        self.random, self.without = Random(seed), without
        self.definition = definition
        size = self.random.choice((3, 4))
        self.deaths_left = self.random.choice((0, 1, 2, 3))
        self.joins_left = self.random.choice((0, 0, 1, 2))
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
        worker.course, worker.steps_left = course, steps
        worker.running = {"main": Running(self.program(worker))}
        for act in course.begin():
            assert isinstance(act, AnswerPairs | JoinGroups)

    def program(self, worker: Worker) -> Generator[Any, Any, None]:
        while worker.steps_left > 0:
            yield COMPUTE
            yield from worker.course.step()
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
        return found

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
                case LeaveGroups() | Goodbye():
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

    def report(self, worker: Worker, number: int) -> None:
        """Fence, and report."""
        worker.is_frozen = True
        self.reported.add(worker.rank)
        said = None
        if worker.epoch >= 0:
            said = Report(
                {TRAINING: worker.course.report()},
                is_ending=worker.steps_left <= 0,
                has_ended=worker.has_ended,
            )
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

    def install(self, worker: Worker) -> None:
        is_fresh, worker.epoch, worker.is_frozen = worker.epoch < 0, self.view.epoch, False
        if is_fresh:
            course = self.definition.courses(Setting(self.view, seed=1))(worker.rank)
            donors = [self.workers[rank] for rank in self.decision.reports]
            steps = max([1, *(donor.steps_left for donor in donors)])
            self.enter(worker, course, steps)
            self.installed(worker, is_fresh=True)
            return
        own_round = worker.course.report()
        worker.course.on_view(self.view)
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


class ScheduledHistory(History):
    """Means by a schedule, waited for or beside computing."""

    def begin(self, worker: Worker, name: str, running: Running) -> None:
        self.begin_mean(worker, running.pending)

    def events_of(self, worker: Worker, name: str, running: Running) -> list[Event]:
        return self.events_of_waiting(worker, name, running.pending)


class GeneratedHistory(History):
    """Means in groups of the real generator, which dies with the worker that serves it."""

    def prepare(self, view: View) -> None:
        self.serving = -1
        self._serve(view, everybody=True)

    def _serve(self, view: View, *, everybody: bool) -> None:
        """Let the first member serve a new generator; those who still take part join it."""
        self.serving = view.members[0]
        config = GeneratorConfig(group_size=2, inter_intra=self.random.random() < 0.5)
        self.generator = GroupGenerator(config, Random(self.random.random()))
        self.answers: dict[int, tuple[Any, int]] = {}
        for rank, host in zip(view.members, view.hosts, strict=True):
            if everybody or not self.workers[rank].has_ended:
                self.generator.join(rank, host)

    def begin(self, worker: Worker, name: str, running: Running) -> None:
        act = running.pending
        self.begin_mean(worker, act)
        if isinstance(act, AskGroup):
            running.asked = self.generator
            if worker.epoch != self.view.epoch and worker.rank not in self.view.members:
                return  # a stranger now, whom nobody hears
            self._hand_out(self.generator.request(worker.rank, 0))

    def _hand_out(self, assignments: Any) -> None:
        for each in assignments:
            for rank in each.members:
                self.answers[rank] = each, self.view.epoch

    def events_of(self, worker: Worker, name: str, running: Running) -> list[Event]:
        if isinstance(running.pending, AskGroup):
            is_answered = running.asked is self.generator and worker.rank in self.answers
            return [("assign", worker, name)] if is_answered else []
        return self.events_of_waiting(worker, name, running.pending)

    def assign(self, worker: Worker, name: str) -> None:
        made, epoch = self.answers.pop(worker.rank)
        answer: Any = Group(made.members, made.group_id, worker.rank in made.more)
        if epoch != worker.epoch and self.without != "the epoch of an assignment":
            answer = CHANGED  # it may name somebody who is gone
        self.go_on(worker, name, answer)

    def said(self, worker: Worker, act: Any) -> None:
        worker.has_ended = True
        if worker.rank in self.generator and worker.rank in self.view.members:
            self._hand_out(self.generator.leave(worker.rank, 0))

    def decided(self) -> None:
        if self.serving not in self.view.members:
            self._serve(self.view, everybody=False)
            return
        for rank in [r for r in self.workers if r in self.generator]:
            if rank not in self.view.members:
                self._hand_out(self.generator.leave(rank, 0))

    def installed(self, worker: Worker, *, is_fresh: bool) -> None:
        if is_fresh and worker.rank not in self.generator:
            self.generator.join(worker.rank, worker.rank // 2)

    def outlives(self, running: Running) -> bool:
        return isinstance(running.pending, AskGroup) and running.asked is self.generator


class PairsHistory(History):
    """Pairs: an active worker asks, a passive one answers in the order of arrival."""

    def begin(self, worker: Worker, name: str, running: Running) -> None:
        if isinstance(running.pending, Pair):
            self.met["pair", worker.epoch, worker.rank] = {}
            queue = self.met["queue", worker.epoch, running.pending.peer]
            queue[len(queue)] = worker.rank

    def events_of(self, worker: Worker, name: str, running: Running) -> list[Event]:
        act, members = running.pending, worker.course.view.members
        match act:
            case Pair() if act.peer not in members:
                return [("go_on", worker, name, CHANGED)]
            case Pair():
                is_met = self.met["pair", worker.epoch, worker.rank].get(act.peer)
                return [("go_on", worker, name, None)] if is_met else []
            case AwaitGoodbyes():
                active = [rank for place, rank in enumerate(members) if place % 2]
                over = all((worker.epoch, rank) in self.told for rank in active)
                return [("go_on", worker, name, None)] if over else []
        return self.events_of_waiting(worker, name, act)

    def events(self) -> list[Event]:
        found = super().events()
        for worker in self.workers.values():
            queue = self.met["queue", worker.epoch, worker.rank]
            answered = self.met["answered", worker.epoch, worker.rank]
            is_here = worker.is_alive and not worker.is_frozen and not worker.has_left
            if is_here and not worker.is_done and len(queue) > len(answered):
                found.append(("answer", worker))
        return found

    def answer(self, worker: Worker) -> None:
        queue = self.met["queue", worker.epoch, worker.rank]
        answered = self.met["answered", worker.epoch, worker.rank]
        asked = queue[len(answered)]
        answered[len(answered)] = asked
        self.met["pair", worker.epoch, asked][worker.rank] = True

    def said(self, worker: Worker, act: Any) -> None:
        self.told.add((worker.epoch, worker.rank))

    def done(self, worker: Worker) -> None:
        """Leave the view: who has said goodbye may have been an active half, or needed as a
        passive one."""
        if worker.is_well and worker.rank in self.view.members:
            worker.has_left = True
            self.heed(self.membership.leave(worker.rank, "done", 0))


class SumsHistory(History):
    """Sums in two buckets, the second of which is brought later."""

    def prepare(self, view: View) -> None:
        self.settled: dict[Any, Any] = {}
        """By number and bucket, sums that somebody has; and the model that all adopt."""

    def begin(self, worker: Worker, name: str, running: Running) -> None:
        match running.pending:
            case SumGradients() as act:
                for bucket in (0, 1):
                    done = self.settled.get((act.number, bucket))
                    if bucket in worker.has:
                        continue
                    if done is not None and self.without != "settling":
                        worker.has[bucket] = done
                    elif bucket == 0:
                        self.bring(worker, act, 0)
                self._finish_sum(worker, name, act)
            case Adopt():
                worker.has_ended = True
                self.met["adopt", worker.epoch][worker.rank] = worker.model

    def bring(self, worker: Worker, act: SumGradients, bucket: int) -> None:
        self.met["sum", worker.epoch, act.number, bucket][worker.rank] = act.trains

    def events_of(self, worker: Worker, name: str, running: Running) -> list[Event]:
        act, members = running.pending, worker.course.view.members
        match act:
            case SumGradients():
                found: list[Event] = []
                for bucket in (0, 1):
                    brought = self.met["sum", worker.epoch, act.number, bucket]
                    if bucket in worker.has:
                        continue
                    if bucket == 1 and worker.rank not in brought:
                        found.append(("bring", worker, act, 1))
                    if all(rank in brought for rank in members):
                        found.append(("arrive", worker, name, bucket))
                return found
            case Adopt():
                if "adopt" in self.settled and self.without != "settling":
                    return [("adopt", worker, name, self.settled["adopt"])]
                models = self.met["adopt", worker.epoch]
                if all(rank in models for rank in members):
                    longest = max((models[rank] for rank in members), key=len)
                    return [("adopt", worker, name, longest)]
        return []

    def arrive(self, worker: Worker, name: str, bucket: int) -> None:
        act = worker.running[name].pending
        brought = self.met["sum", worker.epoch, act.number, bucket]
        training = frozenset(rank for rank, trains in brought.items() if trains)
        worker.has[bucket] = worker.epoch, training
        self._finish_sum(worker, name, act)

    def _finish_sum(self, worker: Worker, name: str, act: SumGradients) -> None:
        if len(worker.has) < 2:
            return
        training = worker.has[1][1]
        worker.kept = {(act.number, bucket): value for bucket, value in worker.has.items()}
        if not act.trains:
            worker.has = {}
        self.go_on(worker, name, Summed(len(training)))

    def updated(self, worker: Worker) -> None:
        worker.model = (*worker.model, tuple(sorted(worker.has.items())))
        worker.has = {}

    def adopt(self, worker: Worker, name: str, model: Any) -> None:
        worker.model, worker.has_adopted = model, True
        self.go_on(worker, name, None)

    def decided(self) -> None:
        """Settle: what a member has of a sum, or of the end, all of them get."""
        self.settled = {}
        old = [self.workers[rank] for rank in self.decision.reports]
        for worker in old:
            number = worker.course.num_sums
            self.settled |= {(number, bucket): value for bucket, value in worker.has.items()}
        for worker in old:
            self.settled |= worker.kept
            if worker.has_adopted:
                self.settled["adopt"] = worker.model
        self.donated: tuple[Any, int, dict[Any, Any]] = ((), 0, {})
        if old:  # otherwise newcomers begin anew
            donor = max(old, key=lambda w: (w.course.num_sums, w.steps_left))
            self.donated = donor.model, donor.course.num_sums, dict(donor.kept)

    def installed(self, worker: Worker, *, is_fresh: bool) -> None:
        """Give a newcomer the model, the number and the last sums of who is furthest."""
        if is_fresh:
            worker.model, number, worker.kept = self.donated
            worker.course.num_sums = number
            worker.has = {key[1]: value for key, value in self.settled.items() if key[0] == number}

    def verdict(self) -> str:
        well = [w for w in self.workers.values() if w.is_well and not w.has_left]
        return "models differ" if len({w.model for w in well}) > 1 else ""


FAMILIES: dict[str, tuple[Callable[..., History], str, dict[str, Any]]] = {
    "scheduled": (ScheduledHistory, "ds-sync", {}),
    "scheduled, delayed": (ScheduledHistory, "local-sgd", {"overlap": "next-steps"}),
    "generated": (GeneratedHistory, "ripples", {}),
    "generated, delayed": (GeneratedHistory, "ripples", {"overlap": "next-steps"}),
    "pairs": (PairsHistory, "ad-psgd", {}),
    "sums": (SumsHistory, "all-reduce", {}),
}
