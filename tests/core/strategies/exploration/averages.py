"""Histories of parameters averaged: by a schedule, in groups of a generator, and in pairs."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from exploration.history import TRAINING, Event, History, Running, Worker
from shoal.groups import GeneratorConfig, GroupGenerator
from shoal.strategies import pairing
from shoal.strategies.acts import (
    CHANGED,
    AnswerPairs,
    AskGroup,
    AwaitGoodbyes,
    Goodbye,
    Group,
    Pair,
)

if TYPE_CHECKING:
    from shoal.membership import View


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
        if self.serving not in self.view.members or self.is_control_new:
            self._serve(self.view, everybody=False)
            return
        served = [rank for rank in self.workers if rank in self.generator]
        gone = [rank for rank in served if rank not in self.view.members]
        self._hand_out(self.generator.leave_together(gone, 0))

    def installed(self, worker: Worker, *, is_fresh: bool) -> None:
        if is_fresh and worker.rank not in self.generator:
            self.generator.join(worker.rank, worker.rank // 2)

    def outlives(self, running: Running) -> bool:
        return isinstance(running.pending, AskGroup) and running.asked is self.generator


class PairsHistory(History):
    """Pairs: an active worker asks, a passive one answers in the order of arrival."""

    def begin(self, worker: Worker, name: str, running: Running) -> None:
        if isinstance(running.pending, AwaitGoodbyes):
            active = worker.course._members(active=True)
            running.asked = [("goodbye", worker.epoch, rank) for rank in active]
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
                over = all(self.met[each] for each in running.asked)
                return [("go_on", worker, name, None)] if over else []
        return self.events_of_waiting(worker, name, act)

    def events(self) -> list[Event]:
        found = super().events()
        for worker in self.workers.values():
            queue = self.met["queue", worker.epoch, worker.rank]
            answered = self.met["answered", worker.epoch, worker.rank]
            is_here = worker.is_alive and not worker.is_frozen and not worker.has_left
            answers = self.met["answers", worker.epoch, worker.rank]
            if is_here and answers and not worker.is_done and len(queue) > len(answered):
                found.append(("answer", worker))
        return found

    def answer(self, worker: Worker) -> None:
        queue = self.met["queue", worker.epoch, worker.rank]
        answered = self.met["answered", worker.epoch, worker.rank]
        asked = queue[len(answered)]
        answered[len(answered)] = asked
        self.met["pair", worker.epoch, asked][worker.rank] = True

    def said(self, worker: Worker, act: Any) -> None:
        if isinstance(act, Goodbye):
            self.met["goodbye", worker.epoch, worker.rank][0] = True
        elif isinstance(act, AnswerPairs):
            self.met["answers", worker.epoch, worker.rank][0] = True

    def on_view(self, worker: Worker) -> None:
        """Pair those that had steps to make when all reported; the others may have ended."""
        ranks = pairing(self.decision, TRAINING)
        if self.without == "leaving out who has ended":
            ranks = self.view.members
        worker.course.pair(self.view, ranks)
        beside = worker.running.get("beside")
        if beside is not None and beside.pending is None:
            del worker.running["beside"]  # what was to begin in a view begins in no other
