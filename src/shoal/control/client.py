"""The control plane as a worker sees it: join, ask for groups, leave, report, hear of losses.

Owns one worker's messages to it: questions, asked by any thread, and the watcher's. Knows neither
how groups are formed nor what they are used for. No wait here is longer than the deadline given to
the constructor.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import asdict
from typing import TYPE_CHECKING, Protocol, Self

from shoal.control.card_difference import name_ranks
from shoal.control.departures import departure_of, owed
from shoal.control.facts import ControlFacts
from shoal.control.messages import (
    Apply,
    Assigned,
    Done,
    Dump,
    DumpRequest,
    Failed,
    GroupRequest,
    Join,
    Leave,
    Prepared,
    Refresh,
    Sampled,
    Shown,
    ShowRequest,
    Standing,
)
from shoal.control.questions import Questions, Whereabouts
from shoal.control.waiting import R, not_asking
from shoal.control.watcher import Watcher
from shoal.decoding import decode_json
from shoal.errors import DeadlineExceeded, ShoalError, UsageError, WorkerLost
from shoal.watch import Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from shoal.control.key import JobKey
    from shoal.control.member import Member
    from shoal.control.messages import Request, StandBy
    from shoal.groups import GeneratorConfig
    from shoal.watch import Verdict, WorkerSample

_CLOSING_S = 2.0
_MAX_REASON = 1500


class Services(Protocol):
    """The control planes that run beside a worker. No thread waits for them to start."""

    def stand_by(self, order: StandBy, control: ControlClient) -> None:
        """Start a standby, and report its address by `control.stand_by`."""
        ...

    def start_again(self) -> None:
        """Restart the control planes that have ended, to stand by where they were."""
        ...


class ControlClient:
    """Rank `rank`'s connection to the control plane at `endpoint` (`tcp://host:port`).

    `on_lost` is called on a thread of this client, once for each worker lost; it must neither raise
    nor block. From then on `join`, `request_group`, `leave` and `facts` raise the first
    `WorkerLost`. In a job that goes on without lost workers, `member` hears of them instead, and
    `services` starts the control planes that this worker has to start.
    For a newcomer, `rank` is the rank that it was given; None: any free one.

    Connecting raises `MismatchError` if the job key is not the service's or the rank not this
    worker's own, `DeadlineExceeded` if no service answers within `deadline_s` seconds. After a wait
    that ended at its deadline, only `dump`, `report_failure` and `close` are of use.
    """

    def __init__(
        self,
        endpoint: str,
        key: JobKey,
        rank: int | None,
        deadline_s: float,
        on_lost: Callable[[WorkerLost], None],
        member: Member | None = None,
        services: Services | None = None,
    ) -> None:
        if deadline_s <= 0:
            message = f"The deadline must be a positive number of seconds, not {deadline_s:g}."
            raise UsageError(message)
        self._leavers: deque[int] = deque()
        self._somebody_left = threading.Event()
        self._deadline_s = deadline_s
        self._report_loss, self._services = on_lost, services
        self._member = member
        self._failure: WorkerLost | None = None
        self._is_closed = False
        self._joined: dict[str, Join] = {}
        """The sessions that this worker takes part in, to join anew at a successor."""
        self.after_move: Callable[[], None] | None = None
        """Called, in a thread, once the control plane is served elsewhere."""
        self._whereabouts = Whereabouts(endpoint)
        self._watcher = Watcher(self._whereabouts, key, rank, deadline_s, self, member)
        self.rank = self._watcher.rank
        """This worker's rank."""
        self.size = self._watcher.size
        """The number of workers with which the job began, as a newcomer hears it."""
        self._questions = Questions(
            self._whereabouts, key, deadline_s, check=self.check, told=self._joined.values
        )
        goes_on = member is not None and not member.is_fixed
        self.facts = ControlFacts(
            self._whereabouts, key, deadline_s, self.check, keeps_facts=goes_on
        )
        """The facts that workers publish for each other."""
        self._watcher.start()

    @property
    def endpoint(self) -> str:
        """The present address of the control plane."""
        return self._whereabouts.endpoint

    @property
    def standby(self) -> str:
        """The address of the control plane that stands by; empty if none does."""
        return self._watcher.standby

    def check(self) -> None:
        """Raise the loss that ends the job, if there was one."""
        if self._member is not None:
            self._member.check()
        if self._failure is not None:
            raise self._failure

    def join(self, session: str, host: int, config: GeneratorConfig, seed: int) -> None:
        """Take part in `session`, on machine `host`; all workers bring the same config and seed.

        Raises `MismatchError` if they do not.
        """
        message = Join(session, self.rank, host, config, seed)
        self._ask(message, Done, f"to join session {session!r}")
        self._joined[session] = message

    def request_group(self, session: str, step: int) -> Assigned:
        """Return this worker's next group, once all its members have asked.

        Raises `WorkerLost` as soon as any worker is lost, `DeadlineExceeded` with the names of the
        workers that did not ask.
        """
        self.note_progress()
        message = GroupRequest(session, self.rank, step)
        try:
            return self._ask(message, Assigned, f"for its group at step {step}")
        except DeadlineExceeded as error:
            raise DeadlineExceeded(f"{error} {self._blame(session)}".strip()) from error

    def leave(self, session: str) -> None:
        """Make no more requests in `session`; no group that has not started waits for this rank."""
        self._ask(Leave(session, self.rank), Done, f"to leave session {session!r}")
        self._joined.pop(session, None)

    def dump(self) -> Dump:
        """Return the control plane's state; works also after a loss."""
        return self._dump(self._deadline_s)

    def show(self, deadline_s: float | None = None) -> bytes:
        """Return the job as its workers tell of it: a `Snapshot`, as JSON."""
        deadline_s = deadline_s or self._deadline_s
        late = f"The control plane did not answer rank {self.rank} within {deadline_s:g} s."
        return self._questions.look(ShowRequest(time.time()), Shown, late, deadline_s).snapshot

    def generator_counters(self, session: str, interval: int = 1) -> dict[str, float]:
        """Return the counters of the generator of `session`, by name; {} if unknown.

        Staleness is in steps, of which a worker makes `interval` for each request.
        """
        for run in self.dump().sessions:
            if run.session == session:
                counters = run.generator.counters
                single = {n: c for n, c in asdict(counters).items() if isinstance(c, int | float)}
                return single | counters.staleness(interval)
        return {}

    def requests_by_rank(self, session: str) -> dict[int, int]:
        """Return how often each worker has asked the generator of `session`; {} if unknown.

        Workers that left are included.
        """
        for run in self.dump().sessions:
            if run.session == session:
                there = {worker.rank: 0 for worker in run.generator.workers}
                return {**there, **run.generator.counters.requests_by_rank}
        return {}

    def apply(self, host: int) -> None:
        """Ask to become a member, on machine `host`; the `member` given hears the answer."""
        self._watcher.post(Apply(self.rank, host), self._deadline_s)

    def refresh(self, reason: str) -> None:
        """Ask that all members agree anew on what they have measured; wait for nothing."""
        self._watcher.post(Refresh(self.rank, reason), 0.0)

    def prepared(self, number: int, error: ShoalError | None = None) -> None:
        """Say that preparation `number` is done here, or has failed with `error`."""
        reason, code = ("", 0) if error is None else (str(error)[:_MAX_REASON], error.exit_code)
        self._watcher.post(Prepared(self.rank, number, reason, code), self._deadline_s)

    def report_failure(self, reason: str, culprit: int | None = None, epoch: int = 0) -> bool:
        """Tell the others that this worker cannot go on, through `culprit` if one is known.

        `epoch` is that of the view in which the culprit has failed.

        May be called from any thread. Never raises: the failure that it reports matters more.
        Returns whether the control plane has confirmed, which inside `on_lost` it cannot have yet.
        """
        message = Failed(self.rank, culprit, reason[:_MAX_REASON], epoch)
        return self._watcher.post(message, min(self._deadline_s, _CLOSING_S))

    def close(self, *, is_finished: bool = True) -> None:
        """Say goodbye and close everything, within seconds. Safe to call twice.

        A worker that cannot go on calls `report_failure` first; a goodbye alone means success,
        unless it leaves in the middle of a training (not `is_finished`).
        A thread that still waits for an answer ends this client's sockets once it stops waiting.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._watcher.stop(_CLOSING_S, is_finished=is_finished)
        self.facts.close()
        self._questions.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and not isinstance(error, WorkerLost):
            self.report_failure(f"{type(error).__name__}: {error}")
        self.close()

    def _ask(self, message: Request, kind: type[R], purpose: str) -> R:
        if self._failure is not None:
            raise self._failure
        return self._questions.ask(message, kind, self._late(purpose))

    def _dump(self, deadline_s: float) -> Dump:
        late = f"The control plane did not answer rank {self.rank} within {deadline_s:g} s."
        return self._questions.look(DumpRequest(), Dump, late, deadline_s)

    def _blame(self, session: str) -> str:
        """Return a sentence about the workers that `session` waits for, or '' if unknown."""
        try:
            others = not_asking(self._dump(min(self._deadline_s, _CLOSING_S)), session)
        except ShoalError as error:
            return str(error)
        if not others:
            return ""
        return f"{name_ranks(others)} did not ask for a group in that time."

    def _late(self, purpose: str) -> str:
        return (
            f"Rank {self.rank} waited {self._deadline_s:g} s {purpose} without an answer: a "
            "worker is slower than the deadline allows, or hangs."
        )

    def note_progress(self) -> None:
        """Let the next heartbeat say that this worker has made progress: it is not stuck."""
        self._watcher.progress += 1

    def tell_blocked(self, blocked_ms: Callable[[], int | None]) -> None:
        """Let heartbeats say how long this worker's training has been blocked by then."""
        self._watcher.blocked_ms = blocked_ms

    def tell_sample(self, sample: WorkerSample) -> bool:
        """Show viewers of the job how this worker's training goes; wait for nothing.

        Return whether there was room for the sample.
        """
        return self._watcher.tell(Sampled(self.rank, sample))

    def verdicts(self) -> tuple[Verdict, ...]:
        """Return what holds the job up, as its page says it; empty if that is not known.

        The control plane is asked, with a short wait for its answer.
        """
        try:
            shown = decode_json(self.show(_CLOSING_S), Snapshot, "The control plane shows no job")
        except ShoalError:
            return ()
        return tuple(each for each in shown.verdicts if each.kind != "nothing")

    def stuck_workers(self, seconds: float) -> list[int]:
        """Return the workers that are alive and have made no progress for `seconds`."""
        return [
            worker.rank
            for worker in self.dump().workers
            if worker.idle_ms is not None and worker.idle_ms > 1000 * seconds
        ]

    def check_present(self, ranks: Sequence[int], awaited: str = "") -> None:
        """Raise `WorkerLost`, here and at the others, if one of `ranks` has left too early.

        That is in the middle of a training, or, if others wait in a call `awaited` of all workers,
        without that call. Of a job that goes on without workers nobody is waited for.
        """
        said = self.facts.read([departure_of(rank) for rank in ranks])
        for rank, value in zip(ranks, said, strict=True):
            if fault := owed(value, awaited):
                self.report_failure(f"it {fault}", culprit=rank)
                message = f"Rank {rank} {fault}"
                raise WorkerLost(message, rank)

    def await_leaver(self, seconds: float) -> int | None:
        """Return the first worker that has left in the middle of a training, None if none has.

        Waits up to `seconds` to hear of one.
        """
        self._somebody_left.wait(seconds)
        return self._leavers[0] if self._leavers else None

    def stand_by(self, endpoint: str) -> None:
        """Report where a control plane stands by beside this worker; "" if none can."""
        self._watcher.post(Standing(self.rank, endpoint), min(self._deadline_s, _CLOSING_S))

    def on_stand_by(self, order: StandBy) -> None:
        """Have a control plane started that stands by, if this worker can."""
        if self._services is None:
            self.stand_by("")
        else:
            self._services.stand_by(order, self)

    def on_none_left(self) -> None:
        """Have the control planes beside this worker that have ended restarted."""
        if self._services is not None:
            self._services.start_again()

    def on_moved(self, then: Callable[[], None]) -> None:
        """Repeat this worker's statements to the control plane's successor."""

        def tell() -> None:
            if self.facts.catch_up():
                then()
            self._questions.catch_up()
            if self.after_move is not None:
                self.after_move()

        threading.Thread(target=tell, daemon=True).start()

    def on_left(self, rank: int) -> None:
        """Take note of a worker that has left in the middle of a training."""
        self._leavers.append(rank)
        self._somebody_left.set()

    def on_lost(self, lost: WorkerLost) -> None:
        """Take note that a worker, or the control plane, is lost, so that this one cannot go on."""
        is_elastic = self._member is not None and not self._member.is_fixed
        if is_elastic and lost.rank == self.rank:
            message = (
                f"{lost} That is this worker: the others go on without it. It may join them again,"
                " by shoal.shutdown() and then shoal.init()."
            )
            lost = WorkerLost(message, lost.rank)
        if self._failure is None:
            self._failure = lost
        if self._member is not None and not self._member.is_fixed:
            self._member.fail(lost)
        self._report_loss(lost)
