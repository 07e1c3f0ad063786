"""Histories of gradients summed: what somebody has of a sum, all get, and models stay equal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from exploration.history import Event, History, Running, Worker
from shoal.strategies.acts import Adopt, SumGradients, Summed

if TYPE_CHECKING:
    from shoal.membership import View


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
        old = [worker for worker in old if worker.has_begun]
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
