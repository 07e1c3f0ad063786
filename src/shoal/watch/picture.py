"""The picture of a job, put together from its workers' samples and the events of the job.

Owns what is kept, and for how long: some hundred samples of each worker, the last of them whole.
Pure: it is told the time, and knows no socket. The control plane keeps one (`control.handler`).
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

import shoal
from shoal.watch.model_distance import DistancePoint, Distances
from shoal.watch.own_times import Worker, slow_workers
from shoal.watch.slow_requests import few_requests
from shoal.watch.snapshot import Event, LossPoint, ShownLink, ShownStep, ShownWorker, Snapshot
from shoal.watch.verdict import Verdict, in_ms
from shoal.watch.ways import Link, Way, conspicuous_links, ways_of
from shoal.watch.worker_sample import BOUNDS_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shoal.watch.worker_sample import WorkerSample

KEPT: Final = 300
"""The samples that are kept of a worker, for the curve of losses."""
LOOKED_AT: Final = 10
"""The number of a worker's last samples that the verdict is about."""
WORTH_NAMING: Final = 0.02
"""The share of a step that a worker must wait for another one for that one to be named."""
LEAST_SAMPLES: Final = 4
"""The least number of samples by which a worker is judged."""
LEAST_S: Final = 2.0
"""The seconds that those samples must cover: the very first steps are unlike later ones."""
MOST_EVENTS: Final = 200
PATIENCE_S: Final = 5.0
"""The seconds without a sample after which a job with short steps counts as stuck."""
PATIENCE_STEPS: Final = 5.0
"""The same, in steps of the usual length, for a job with long steps."""


class JobNow(msgspec.Struct, frozen=True, kw_only=True):
    """The keeper's own knowledge of the job's workers."""

    epoch: int
    members: tuple[int, ...]
    hosts: tuple[int, ...]
    states: dict[int, str]
    """The state, in a word, of each worker that ever was there."""

    requests: dict[int, int] = {}
    """How many groups each worker has requested of the group generator; see
    `ComparedRequests`."""

    lost: str = ""
    """Why the job is over."""


class _Known:
    """The samples and counts that are kept of one worker."""

    def __init__(self) -> None:
        self.whole: deque[WorkerSample] = deque(maxlen=LOOKED_AT)
        self.losses: deque[LossPoint] = deque(maxlen=KEPT)
        self.heard_s = 0.0
        self.counts = [0] * (len(BOUNDS_S) + 1)
        """All steps by their length."""
        self.total_s = 0.0
        """The time that all steps took."""
        self.blocked_ms: int | None = None
        """How long the worker had been blocked at its last heartbeat; None: it was not."""

    def copy(self) -> _Known:
        """Return the same, which does not change when this does."""
        other = _Known()
        other.whole, other.losses = self.whole.copy(), self.losses.copy()
        other.counts, other.total_s = list(self.counts), self.total_s
        other.heard_s, other.blocked_ms = self.heard_s, self.blocked_ms
        return other


class Picture:
    """The picture of one job since `now_s`; times are seconds of its keeper's clock."""

    def __init__(
        self,
        now_s: float,
        known: dict[int, _Known] | None = None,
        events: Iterable[Event] = (),
        distances: Iterable[DistancePoint] = (),
    ) -> None:
        self._since_s = now_s
        self._known = known or {}
        self._events = deque(events, MOST_EVENTS)
        self._distances = Distances(points=distances)

    def take(self, rank: int, sample: WorkerSample, now_s: float) -> None:
        """Take in a sample of worker `rank`, which has arrived now."""
        known = self._known.setdefault(rank, _Known())
        if known.whole and known.whole[-1].training != sample.training:
            known = self._known[rank] = _Known()
        known.whole.append(sample)
        known.heard_s = now_s
        known.total_s += sample.seconds
        for place, count in enumerate(sample.counts):
            known.counts[place] += count
        if sample.loss is not None and math.isfinite(sample.loss):
            known.losses.append(LossPoint(now_s, sample.step, sample.loss))
        if sample.sketch:
            if self._distances.training != sample.training:
                self._distances = Distances(sample.training)
            self._distances.take(rank, sample, now_s)

    def hear(self, rank: int, blocked_ms: int | None) -> None:
        """Take in how long a worker's training has been blocked; None if it is not."""
        if (known := self._known.get(rank)) is not None:
            known.blocked_ms = blocked_ms

    def note(self, kind: str, text: str, now_s: float) -> None:
        """Note something that has happened."""
        self._events.append(Event(now_s, kind, text))

    def copy(self) -> Picture:
        """Return a copy of the picture, for another thread to read."""
        known = {rank: each.copy() for rank, each in self._known.items()}
        return Picture(self._since_s, known, self._events, self._distances.points)

    def forget(self, rank: int) -> None:
        """Judge a worker no more: it is gone, or another process is this rank from now on."""
        self._known.pop(rank, None)

    def snapshot(self, job: JobNow, now_s: float, date_s: float) -> Snapshot:
        """Return all that is shown; `now_s` is `date_s` since 1970 on the viewer's clock."""
        later_s = date_s - now_s
        workers = self._training(job)
        ways = ways_of(workers)
        newest = max(
            (each.samples[-1] for each in workers.values()), key=lambda s: s.at_s, default=None
        )
        steps = [each.samples[-1].step for each in workers.values()]
        return Snapshot(
            version=shoal.__version__,
            at_s=date_s,
            up_s=now_s - self._since_s,
            training="" if newest is None else newest.training,
            strategy="" if newest is None else newest.strategy,
            transport="" if newest is None else newest.transport,
            is_lock_step=newest is not None and newest.is_lock_step,
            epoch=job.epoch,
            members=job.members,
            spread=max(steps) - min(steps) if steps else None,
            verdicts=self._judge(job, workers, ways, now_s),
            workers=self._shown_workers(job, workers, now_s),
            links=_shown_links(ways),
            curve=self._curve(workers, later_s),
            distances=tuple(
                DistancePoint(p.at_s + later_s, p.step, p.distance, p.length)
                for p in self._distances.points
            ),
            events=tuple(Event(e.at_s + later_s, e.kind, e.text) for e in self._events),
            lost=job.lost,
        )

    def verdicts(self, job: JobNow, now_s: float) -> tuple[Verdict, ...]:
        """Return what holds the job up, the most costly first; or, alone, that nothing does."""
        workers = self._training(job)
        return self._judge(job, workers, ways_of(workers), now_s)

    def _judge(
        self, job: JobNow, workers: Mapping[int, Worker], ways: Mapping[Link, Way], now_s: float
    ) -> tuple[Verdict, ...]:
        if stuck := self._stuck(job, workers, now_s):
            return stuck
        judged = {rank: each for rank, each in workers.items() if _is_enough(each)}
        found = [
            *slow_workers(judged),
            *conspicuous_links(
                {link: way for link, way in ways.items() if link[1] in judged},
                dict(zip(job.members, job.hosts, strict=True)),
            ),
        ]
        named = {each.rank for each in found if each.kind != "long way"}
        # A worker that is slow, or hears late, answers late: that is no fault of its link.
        found = [
            each for each in found if each.kind != "long way" or not named & {each.rank, each.to}
        ]
        asked = {rank: n for rank, n in job.requests.items() if rank in job.members}
        if not found and (slow := few_requests(asked)) is not None:
            found.append(slow)
        if found:
            return tuple(sorted(found, key=lambda each: -(each.cost_ms or 0.0)))
        return (Verdict(kind="nothing", sentence=_all_is_well(job, workers, judged)),)

    def _training(self, job: JobNow) -> dict[int, Worker]:
        """Return the members that take part in the newest training, with their last samples."""
        known = {r: self._known[r].whole for r in job.members if r in self._known}
        last = max((each[-1].at_s, each[-1].training) for each in known.values()) if known else None
        return {
            rank: Worker(tuple(samples))
            for rank, samples in known.items()
            if last is not None and samples[-1].training == last[1]
        }

    def _stuck(
        self, job: JobNow, workers: Mapping[int, Worker], now_s: float
    ) -> tuple[Verdict, ...]:
        """Return a verdict if no worker has made progress for much longer than a step."""
        alive = [rank for rank in workers if job.states.get(rank) == "alive"]
        if not alive or job.lost:
            return ()
        age_s = now_s - max(self._known[rank].heard_s for rank in alive)
        step_s = max(workers[rank].step_ms for rank in alive) / 1000
        if age_s < max(PATIENCE_S, PATIENCE_STEPS * step_s):
            return ()
        blocked = {r: self._known[r].blocked_ms for r in alive}
        busy = [rank for rank in alive if blocked[rank] is None]
        sentence = f"Nobody has got on for {age_s:.0f} s, and a step took {in_ms(1000 * step_s)}."
        if not busy:
            sentence += " All wait in an exchange: no worker is to blame, but the way between them."
        elif len(busy) < len(alive):
            longest_ms = max(each for each in blocked.values() if each is not None)
            whom = f"Rank {busy[0]} is at work of its own"
            if len(busy) > 1:
                whom = f"Ranks {', '.join(map(str, busy))} are at work of their own"
            sentence += f" {whom}, and the others wait, {longest_ms / 1000:.0f} s by now."
        return (Verdict(kind="stuck", sentence=sentence, rank=busy[0] if len(busy) == 1 else None),)

    def _shown_workers(
        self, job: JobNow, workers: Mapping[int, Worker], now_s: float
    ) -> tuple[ShownWorker, ...]:
        hosts = dict(zip(job.members, job.hosts, strict=True))
        slowest = max(workers, key=lambda rank: workers[rank].usual_own_ms, default=None)
        shown = []
        for rank in sorted({*job.states, *job.members}):
            bare = ShownWorker(
                rank=rank, host=hosts.get(rank), state=job.states.get(rank, "expected")
            )
            if rank in workers and slowest is not None:
                age_s = now_s - self._known[rank].heard_s
                bare = _shown(bare, workers[rank], slowest, workers[slowest], age_s)
                known = self._known[rank]
                counted = {"counts": tuple(known.counts), "total_s": known.total_s}
                bare = msgspec.structs.replace(bare, **counted)
            shown.append(bare)
        return tuple(shown)

    def _curve(self, workers: Mapping[int, Worker], later_s: float) -> tuple[LossPoint, ...]:
        """Return the mean of all workers' losses, second by second."""
        by_second: dict[int, list[LossPoint]] = {}
        for rank in workers:
            for point in self._known[rank].losses:
                by_second.setdefault(int(point.at_s + later_s), []).append(point)
        return tuple(
            LossPoint(
                float(second),
                max(point.step for point in points),
                statistics.fmean(point.loss for point in points),
            )
            for second, points in sorted(by_second.items())
        )


def _is_enough(worker: Worker) -> bool:
    """Return whether there are enough samples of a worker to judge it."""
    seconds = sum(each.seconds for each in worker.samples)
    return len(worker.samples) >= LEAST_SAMPLES and seconds >= LEAST_S


def _shown(
    bare: ShownWorker, worker: Worker, slowest: int, slowest_worker: Worker, age_s: float
) -> ShownWorker:
    """Return a worker with the figures of its samples."""
    last = worker.samples[-1]
    own_ms, blocked_ms = worker.mean_ms(lambda each: each.own_s), worker.blocked_ms
    wait_ms, waits_for = worker.mean_ms(lambda each: each.wait_s), None
    if worker.is_lock_step and bare.rank != slowest:
        # This needs no clock of another machine: all begin a step when the slowest ends its own.
        behind_ms = slowest_worker.mean_ms(lambda each: each.own_s) - own_ms
        wait_ms = max(wait_ms, min(behind_ms, blocked_ms))
        if wait_ms > WORTH_NAMING * (own_ms + blocked_ms):
            waits_for = slowest
    return msgspec.structs.replace(
        bare,
        age_s=age_s,
        epoch=last.epoch,
        step=last.step,
        steps_per_s=1000 / worker.step_ms if worker.step_ms else None,
        own_ms=own_ms,
        wait_ms=wait_ms,
        waits_for=waits_for,
        exchange_ms=blocked_ms - wait_ms,
        hidden_ms=None
        if last.hidden_s is None
        else worker.mean_ms(lambda each: each.hidden_s or 0.0),
        loss=last.loss,
        effective_loss=last.effective_loss,
        effective_loss_by_class=last.effective_loss_by_class,
        group=last.group,
        reason=last.reason,
        dropped=last.dropped,
        last_steps=_last_steps(last, slowest_worker.samples[-1]),
        ended_at_s=last.at_s,
    )


def _last_steps(mine: WorkerSample, slowest: WorkerSample) -> tuple[ShownStep, ...]:
    """Return the last steps; in lock step, with the wait for the slowest worker separated."""
    theirs = {slowest.step - back: t.own_us for back, t in enumerate(reversed(slowest.recent))}
    shown = []
    for back, times in enumerate(reversed(mine.recent)):
        wait_us = times.wait_us
        if mine.is_lock_step:
            behind_us = theirs.get(mine.step - back, 0) - times.own_us
            wait_us += min(max(0, behind_us), times.exchange_us)
        blocked_us = times.wait_us + times.exchange_us
        shown.append(ShownStep(times.own_us / 1000, wait_us / 1000, (blocked_us - wait_us) / 1000))
    return tuple(reversed(shown))


def _shown_links(ways: Mapping[Link, Way]) -> tuple[ShownLink, ...]:
    return tuple(
        ShownLink(
            sender=sender,
            receiver=receiver,
            lost_share=way.lost_share,
            mb_per_s=way.bytes_per_s / 1e6 or None,
            round_trip_ms=1000 * way.round_trip_s or None,
        )
        for (sender, receiver), way in sorted(ways.items())
    )


def _all_is_well(job: JobNow, workers: Mapping[int, Worker], judged: Mapping[int, Worker]) -> str:
    if job.lost:
        return job.lost
    if len(judged) < min(2, len(job.members)):
        return (
            f"Too few samples to say anything yet: {LEAST_SAMPLES} of each worker are needed, and"
            f" {len(workers)} of {len(job.members)} workers have sent some."
        )
    step_ms = statistics.median(each.step_ms for each in judged.values())
    own_ms = statistics.median(each.mean_ms(lambda s: s.own_s) for each in judged.values())
    return (
        f"Nothing stands out: a step takes {in_ms(step_ms)}, {in_ms(own_ms)} of it for computing"
        f" and {in_ms(max(0.0, step_ms - own_ms))} for others."
    )
