"""One worker's membership in a job: `init` to `shutdown`.

Owns the order in which a worker gets its communicator and its control plane, and how a failure of
one worker becomes an exception in the others. Decides nothing about training.

A failure travels like this: the failing worker itself, a peer whose connection broke or the lack of
heartbeats tells the control plane; it tells every worker's watcher thread; the watcher aborts the
communicator; so the training thread's blocked wait raises `WorkerLost`, within the job's deadline
and where the user can catch it.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import socket
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING
from weakref import WeakSet

import torch.distributed as dist

from shoal.arguments import whole_number
from shoal.carriers import DEFAULT_HOLES, LossOptions, TorchCommunicator, check_transport
from shoal.control import (
    MOVING_S,
    ControlClient,
    Member,
    agree,
    find_running_job,
    fit,
    given_key,
    job_by_note,
    wanted_address,
)
from shoal.errors import ShoalError, UsageError, ViewChanging, WorkerLost
from shoal.launch import Launch, rank_asked_for
from shoal.membership import GoingOn, View
from shoal.session.broken_connections import blame
from shoal.session.endings import Endings
from shoal.session.flight_recorder import FlightRecorder
from shoal.session.forked_child import let_go_of
from shoal.session.joining import (
    Meeting,
    checked_deadline,
    checked_going_on,
    default_group_is_shoal,
    find_control,
    find_host,
    join_or_find,
    leave_word_again,
    meet,
    new_card,
    own_group,
    ready_fact,
    serve_control,
)
from shoal.session.log_output import show_log
from shoal.session.next_training import NextTraining
from shoal.session.services import Services
from shoal.session.uncaught import UncaughtReporter
from shoal.session.ways import Ways, close_aside, open_apart
from shoal.watch import watch_address

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.carriers import TransportCommunicator
    from shoal.comm import Communicator
    from shoal.control import ControlFacts, RunningJob
    from shoal.membership import Decision, Proposal
    from shoal.session.engine_share import EngineShare
    from shoal.watch import WatchAddress
    from shoal.wire import UdpEngine

_log = logging.getLogger(__name__)

_current: Session | None = None

DEFAULT_DEADLINE_S = 60.0


class Session:
    """This worker in its job. Made by `init` or `start_session`."""

    def __init__(
        self,
        meeting: Meeting,
        communicator: TorchCommunicator | None,
        control: ControlClient,
        member: Member,
        deadline_s: float,
        services: Services,
        group: dist.ProcessGroup | None = None,
        *,
        is_elastic: bool = False,
    ) -> None:
        self._real_launch = self._launch = meeting.launch
        self._key = meeting.key
        self._communicator = communicator
        self.control = control
        self.member = member
        """This worker as a member of the job: its view, and the changes of views."""
        self._ways = Ways(control, member, deadline_s)
        member.fence, member.unfence = self._fence, self._unfence
        member.prepare = self._ways.prepare
        self.deadline_s = deadline_s
        """Seconds after which any wait for other workers ends in an error."""
        self.is_elastic = is_elastic
        """Whether the job goes on without workers that are lost."""
        self._services = services
        self._group = group
        self.owns_default_group = False
        """Whether `init` made torch's default group, so that it is destroyed with the session."""
        self._share: EngineShare | None = None
        self._transports: WeakSet[TransportCommunicator] = WeakSet()
        """One communicator for each training, so that their conversations do not mix."""
        self.next_training = NextTraining()
        """The things that the next training takes up."""
        job = f"{meeting.key.reveal()} {meeting.launch.world_size}"
        self.mark = blake2b(job.encode(), digest_size=6).hexdigest()
        """A name of the job from which its key cannot be derived."""
        self.recorder = FlightRecorder(self.rank, job, lambda: self.member.view)
        """The record of this worker's last events."""
        control.tell_blocked(self.recorder.blocked_ms)
        self.endings = Endings(on_failure=self.recorder.fail)
        """The record of how this worker's trainings end."""

    @property
    def communicator(self) -> TorchCommunicator:
        """The communicator over torch.distributed. Raises `UsageError` for a worker that joined."""
        if self._communicator is None:
            raise UsageError(
                "This worker has joined a job that runs, and torch.distributed's groups have the"
                " members that they began with."
            )
        return self._communicator

    @property
    def facts(self) -> ControlFacts:
        """Small facts shared by all workers."""
        return self.control.facts

    @property
    def rank(self) -> int:
        """This worker's index in the job."""
        return self._launch.rank

    @property
    def world_size(self) -> int:
        """Number of workers in the job."""
        return self._launch.world_size

    @property
    def host(self) -> int:
        """Index of this worker's host."""
        return self._launch.host

    @property
    def workers_per_host(self) -> int:
        """Workers on each host, as rank 0's launcher says; some hosts may hold other numbers."""
        return self._launch.workers_per_host

    @property
    def view(self) -> View:
        """The workers that take part, with their hosts as rank 0's launcher says."""
        return self.member.view

    @property
    def _goes_on(self) -> bool:
        """Whether the others need the control plane, and this worker does not wait for them."""
        return self.is_elastic and (self.endings.failure is not None or self.endings.is_leaving)

    @property
    def usual_transport(self) -> str:
        """The transport that strategies use unless told otherwise."""
        return "shoal" if self.is_elastic or default_group_is_shoal() else "gloo"

    def pretend_hosts(self, workers_per_host: int | None) -> None:
        """Treat the workers as if so many shared a host; None: as the launcher said."""
        self._launch = self._real_launch
        if workers_per_host is not None:
            host = self.rank // workers_per_host
            self._launch = replace(self._launch, workers_per_host=workers_per_host, host=host)
        self.member.view = View.first(self.world_size, self.workers_per_host)

    def agree(
        self, topic: str, *, strategy: str, options: Mapping[str, object], model: Sequence[str]
    ) -> None:
        """Raise `MismatchError` on every worker unless all brought the same card."""
        card = new_card(
            self.world_size,
            strategy=strategy,
            options={name: repr(value) for name, value in options.items()},
            model=tuple(model),
        )
        if self.member.is_newcomer:
            member, topics = self.view.members[0], (topic, f"run-{self.member.num_begun + 1}")
            fit(self.facts, self.rank, member, self._key, topics, card, self.deadline_s)
        else:
            agree(self.facts, self.rank, self.member.ranks, self._key, topic, card, self.deadline_s)

    def become_member(self, training: str) -> None:
        """Take part in the job from now on: for a newcomer that has prepared `training`.

        Raises the error with which it is refused, and `DeadlineExceeded`.
        """
        # Facts that another process has told as this rank do not count any more.
        for fact in ("finished", "averaging/1/come", "adopting/come"):
            self.facts.set(f"{training}/{fact}/{self.rank}", None)
        self.control.apply(self.host)
        self.member.await_first_view(self.rank)
        self._say_ready()

    def _begin_apart(self) -> EngineShare:
        """Return a newcomer's share of an engine that joins no other rank, until it is a member.

        With it the newcomer makes its training's objects, and loads the code they call, before any
        worker waits for it: in a view as it would be if it were a member.
        """
        view = self.member.view
        host = find_host(self.facts, view, self.deadline_s)
        self._launch = replace(self._launch, host=host)
        hosts = {**dict(zip(view.members, view.hosts, strict=True)), self.rank: host}
        members = tuple(sorted(hosts))
        self.member.view = View(view.epoch, members, tuple(hosts[rank] for rank in members))
        return open_apart(self.rank, members[-1] + 1, self.deadline_s)

    def communicator_over(
        self,
        transport: str,
        loss_bound: float = 0.0,
        holes: str = DEFAULT_HOLES,
        wire: str | None = None,
    ) -> Communicator:
        """Return a communicator over `transport`: "gloo", or "shoal" with that bound on losses.

        `holes` says how a lost part of a sum counts, `wire` as which type its floats are sent. Over
        "shoal" it is a new one each time, the same on every worker; the first call is collective.
        Raises `UsageError` for unknown names or an impossible bound.
        """
        policy = check_transport(transport, loss_bound, holes, wire)
        if transport == "gloo":
            if self.is_elastic:
                raise UsageError(
                    "gloo's groups end with their first member, and this job goes on without"
                    " workers that are lost (min_workers): use transport='shoal'."
                )
            return self.communicator
        from shoal.session.card_exchange import over_board
        from shoal.session.engine_share import communicator_over, share_engine

        if self.member.is_newcomer:
            self._share = self._begin_apart()
        elif self._share is None:
            everyone = tuple(range(self.world_size))
            exchange = over_board(self.facts, self.rank, self.world_size, self.deadline_s)
            self._share = share_engine(
                self.rank, everyone, self.world_size, exchange, deadline_s=self.deadline_s
            )
            self.communicator.on_abort(self.abort_transports)
            self._await_all_ready()
        loss = LossOptions(loss_bound, policy, wire=wire)
        made = communicator_over(self._share, loss, self._report_peer, self.member.view)
        made.workers_per_host = self.workers_per_host
        self._transports.add(made)
        return made

    def _await_all_ready(self) -> None:
        """Return once all have opened their transport: from then on the job can lose workers."""
        if self.member.is_ready:
            return
        self._say_ready()
        names = [ready_fact(rank) for rank in range(self.world_size)]
        self.facts.wait(names, timedelta(seconds=self.deadline_s))
        self.member.is_ready = True

    def _say_ready(self) -> None:
        self.facts.set(ready_fact(self.rank), socket.gethostname().encode())

    def _fence(self, proposal: Proposal) -> None:
        """End the transfers over the transport: the members change."""
        reasons = " ".join(change.reason for change in proposal.changes)
        if self._share is not None:
            self._share.interrupt(ViewChanging(f"The workers that take part change. {reasons}"))

    def _unfence(self, decision: Decision) -> None:
        """Let transfers begin among the members of the view that is decided."""
        view = decision.view
        if decision.way != self._ways.in_use:
            self._move_over(self._ways.take(decision.way))
        for transport in list(self._transports):
            transport.go_on_in(view)
        if self._share is not None:
            self._share.resume()
        self.recorder.note_view(view)
        _log.info("view %d: ranks %s. %s", view.epoch, view.members, view.why)

    def _move_over(self, engine: UdpEngine) -> None:
        """Go on over another engine; messages of the old one do not count any more."""
        from shoal.watch import serve_if_asked

        assert self._share is not None
        if (before := self._share.move_to(engine)) is not None:
            close_aside(before, partial(serve_if_asked, engine))

    def _report_peer(self, rank: int | None, text: str, epoch: int) -> None:
        if rank is not None:
            reason = f"their connection broke ({text})."
            self.control.report_failure(reason, culprit=rank, epoch=epoch)

    def abort_transports(self, error: ShoalError) -> None:
        """Abort all transfers over the transport too, when the communicator is aborted."""
        if self._share is not None:
            self._share.abort(error)
        for transport in list(self._transports):
            transport.abort(error)

    def next_run_name(self) -> str:
        """Return a name for the next training run, the same on every worker."""
        return f"run-{self.member.begin_training()}"

    def report_failure(self, error: BaseException) -> None:
        """Tell the others that this worker cannot go on, unless another one is to blame."""
        self.endings.is_interrupted = True
        self.recorder.fail(error)
        if not isinstance(error, WorkerLost):
            self.control.report_failure(f"{type(error).__name__}: {error}")

    def say_goodbye(self) -> None:
        """Tell the others how this worker ends. Safe to call twice.

        A worker that has met an error of the job has failed. Workers that still wait for it learn
        that it is gone, as if its process had ended.
        """
        if self.endings.failure is not None and not self.endings.is_interrupted:
            self.report_failure(self.endings.failure)
        is_finished = not (self.endings.are_in_the_middle or self.endings.is_leaving)
        self.control.close(is_finished=is_finished)
        self.endings.warn(self.world_size)
        self.recorder.close()
        self._ways.close()
        if self._share is not None:
            self._share.close()
            self._share = None
        if self._communicator is not None:
            self._communicator.abort(UsageError("This worker has left the job; start it again."))

    def close(self) -> None:
        """Say goodbye and free everything. Safe to call twice.

        On rank 0, which serves the control plane, this returns once the others are done as well:
        they may have steps to make. Rank 0 does not wait for workers that are lost, or stuck for a
        deadline, nor if it has failed itself.
        """
        global _current  # noqa: PLW0603 - one session per process, as torch has one default group
        if _current is self:
            _current = None
        self.say_goodbye()
        if self._group is not None and dist.is_initialized():
            with suppress(RuntimeError, ValueError):  # the user may have destroyed all groups
                dist.destroy_process_group(self._group)
            self._group = None
        waits = self.endings.failure is None and not self._goes_on
        self._services.close(
            self.control.endpoint, waits_s=self.deadline_s if waits else None, goes_on=self._goes_on
        )


def init(
    *,
    deadline_s: float = DEFAULT_DEADLINE_S,
    job_key: str | None = None,
    control_host: str | None = None,
    control_port: int = 0,
    min_workers: int | None = None,
    patience_s: float | None = None,
    quorum: str = GoingOn().quorum.value,
    watch: str | int | None = None,
) -> Session:
    """Join the job that the launcher (torchrun, Slurm, Open MPI) has started.

    Initializes torch.distributed if it is not initialized, and then ends it in `shutdown`: gloo,
    with NCCL for CUDA tensors where there is a GPU. Groups that exist already stay as they are.
    After `init_process_group("shoal")`, strategies go over that transport unless told otherwise.
    `deadline_s` bounds every wait for other workers. `job_key` (default: SHOAL_JOB_KEY, else a
    random one that rank 0 hands out through torch's store) authenticates the control plane, which
    rank 0 serves at `control_host`:`control_port` (default: torch's MASTER_ADDR, any free port).
    With `min_workers` the job goes on without workers that are lost, as long as so many are left;
    with fewer it waits for others to join, `patience_s` seconds (default: the deadline). Without
    `min_workers`, a loss ends the job for all. A process that calls this while such a job runs, at
    MASTER_ADDR or where SHOAL_JOB says, joins that job. `quorum` says which part of the job goes on
    when some workers cannot be reached that may be well: "majority", or "any", so that several
    parts may. `watch` (default: SHOAL_WATCH) is the address at which the control plane's machine
    shows the job to browsers, such as ":8265"; without a host only that machine can look.

    Raises `UsageError` without a launcher, or MASTER_ADDR and MASTER_PORT; `MismatchError` if
    versions or job keys differ, `ResourceError` if workers cannot be joined or the port is in use.
    """
    deadline_s = checked_deadline(deadline_s, control_port)
    shown_at = watch_address(watch, os.environ)
    _check_none_is_open()
    is_ours = not dist.is_initialized()
    job_key = job_key or given_key(os.environ)
    going_on = checked_going_on(min_workers, patience_s, quorum, deadline_s)
    moving_s = min(deadline_s, MOVING_S)
    running = None
    if going_on is not None:
        running = find_running_job(os.environ, job_key, moving_s)
    if running is not None:
        show_log(rank_asked_for() or 0)
    elif is_ours:
        find = None
        if going_on is not None:
            find = partial(job_by_note, job_key=job_key, patience_s=moving_s)
        running = join_or_find(deadline_s, find)
    else:
        show_log(dist.get_rank())
    if running is not None:
        services = Services(running.key, is_key_given=job_key is not None, watch=shown_at)
        session = _join_running(running, deadline_s, going_on, services)
    else:
        wanted = wanted_address(os.environ) or (os.environ.get("MASTER_ADDR", "127.0.0.1"), 0)
        session = start_session(
            deadline_s=deadline_s,
            job_key=job_key,
            control_host=control_host or wanted[0],
            control_port=control_port or wanted[1],
            shares_group=not is_ours,
            going_on=going_on,
            watch=shown_at,
        )
        session.owns_default_group = is_ours
    session.recorder.listen()
    _uncaught.install()
    atexit.register(_leave)
    return session


def start_session(
    *,
    deadline_s: float,
    job_key: str | None = None,
    control_host: str = "127.0.0.1",
    control_port: int = 0,
    shares_group: bool = False,
    going_on: GoingOn | None = None,
    watch: WatchAddress | None = None,
) -> Session:
    """Make this process's session on an initialized torch.distributed. See `init`.

    `shares_group` says that other code uses torch's default group too: messages that do not go over
    Shoal's transport then go over a group of the session's own.
    """
    global _current  # noqa: PLW0603 - one session per process, as torch has one default group
    _check_none_is_open()
    deadline_s = checked_deadline(deadline_s, control_port)
    meeting = meet(job_key, deadline_s)
    has_own = shares_group or default_group_is_shoal()
    group = own_group(meeting, deadline_s) if has_own else None
    session: Session | None = None

    def on_peer_error(rank: int | None, text: str) -> None:
        if session is not None:
            blame(session, rank, text)

    communicator = TorchCommunicator(
        deadline_s=deadline_s, process_group=group, on_peer_error=on_peer_error
    )
    size = meeting.launch.world_size
    if going_on is not None:
        whole_number(going_on.min_workers, "min_workers", low=1, high=size)
    view = View.first(size, meeting.launch.workers_per_host)
    member = Member(view, deadline_s, going_on)
    is_given = job_key is not None
    service = serve_control(
        meeting,
        view,
        deadline_s=deadline_s,
        host=control_host,
        port=control_port,
        going_on=going_on,
        is_key_given=is_given,
        watch=watch,
    )
    services = Services(meeting.key, is_key_given=is_given, first=service, watch=watch)
    try:
        control = ControlClient(
            find_control(meeting, deadline_s),
            meeting.key,
            meeting.launch.rank,
            deadline_s,
            communicator.abort,
            member,
            services,
        )
    except BaseException:
        services.stop()
        raise
    if meeting.launch.rank == 0:
        control.after_move = lambda: leave_word_again(
            meeting, control.endpoint, deadline_s, is_key_given=is_given
        )
    parts = meeting, communicator, control, member, deadline_s, services, group
    session = _current = Session(*parts, is_elastic=going_on is not None)
    where = session.world_size, session.host, control.endpoint
    _log.info("joined %d workers as one of host %d; the control plane is at %s", *where)
    return session


def _join_running(
    running: RunningJob, deadline_s: float, going_on: GoingOn | None, services: Services
) -> Session:
    """Make the session of a worker that joins a running job. See `init`.

    The worker is a member once it has made its `DistributedOptimizer`.
    """
    global _current  # noqa: PLW0603 - one session per process, as torch has one default group
    joined: list[Session] = []

    def on_lost(error: ShoalError) -> None:
        for session in joined:
            session.abort_transports(error)

    # The control plane's first answer says which view the worker joins.
    member = Member(View.first(1), deadline_s, going_on, is_newcomer=True)
    member.is_ready = True
    rank = rank_asked_for()

    where = running.endpoint, running.key, rank
    control = ControlClient(*where, deadline_s, on_lost, member, services)
    launch = Launch(control.rank, control.size, 0, member.view.workers_per_host, 0)
    meeting = Meeting(launch, running.key, dist.HashStore())  # type: ignore[attr-defined]  # as for fresh_store
    session = Session(meeting, None, control, member, deadline_s, services, is_elastic=True)
    joined.append(session)
    _current = session
    _log.info("came to join, as rank %d, the job at %s", control.rank, control.endpoint)
    return session


def _forget_in_child() -> None:
    """Drop the session in a forked process: at its end it would shut its parent's down."""
    global _current  # noqa: PLW0603 - one session per process, as torch has one default group
    if _current is not None:
        let_go_of(_current.control.endpoint)
    _current = None
    atexit.unregister(_leave)


os.register_at_fork(after_in_child=_forget_in_child)


def _check_none_is_open() -> None:
    if _current is not None:
        raise UsageError("shoal.init() was called twice; call shoal.shutdown() in between.")


def current_session() -> Session:
    """Return this process's session. Raises `UsageError` before `init`."""
    if _current is None:
        raise UsageError("Call shoal.init() before making a DistributedOptimizer.")
    return _current


def shutdown() -> None:
    """Leave the job: say goodbye to the others, and destroy the process groups that `init` made.

    Groups that existed before `init` stay.
    """
    _leave()
    gc.collect()  # models and their hooks hold each other, and threads and connections


def _leave() -> None:
    session = _current
    _uncaught.remove()
    atexit.unregister(_leave)
    if session is None:
        return
    session.say_goodbye()
    if session.owns_default_group and dist.is_initialized():
        dist.destroy_process_group()
    session.close()
    _log.info("left the job")


def _report_uncaught(error: BaseException) -> None:
    if _current is not None:
        _current.report_failure(error)


_uncaught = UncaughtReporter(_report_uncaught)
