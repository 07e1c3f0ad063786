"""One worker's membership in a job: `init` to `shutdown`.

Owns the order in which a worker gets its communicator and its control plane, and how a failure of
one worker becomes an exception in the others. Decides nothing about training.

A failure travels like this: whoever notices (the failing worker itself, a peer whose connection
broke, the control plane's heartbeats) tells the control plane; it tells every worker's watcher
thread; the watcher aborts the communicator; so the training thread's blocked wait raises
`WorkerLost`, within the job's deadline and where the user can catch it.
"""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

import torch
import torch.distributed as dist

import shoal
from shoal.arguments import seconds, whole_number
from shoal.errors import DeadlineExceeded, ResourceError, UsageError, WorkerLost
from shoal.runtime.control import ControlClient, ControlProcess, JobKey
from shoal.runtime.control.service import usual_liveness_timeout_s
from shoal.runtime.facts import StoreFacts
from shoal.runtime.fresh_store import fresh_store
from shoal.runtime.job_card import JobCard, agree
from shoal.runtime.last_worker import wait_until_deserted
from shoal.runtime.launch import Launch, read_launch, read_master
from shoal.runtime.torch_communicator import TorchCommunicator
from shoal.runtime.transports import DEFAULT_HOLES, LossOptions, check_transport
from shoal.runtime.watched_store import WatchedStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from shoal.comm import Communicator
    from shoal.errors import ShoalError
    from shoal.runtime.engine_share import EngineShare
    from shoal.runtime.transport_communicator import TransportCommunicator

_current: Session | None = None
_session_numbers = count()
_group_numbers = count()
"""How many this process has made: as many as every other worker."""

DEFAULT_DEADLINE_S = 60.0
_NO_CONTROL = "error: "
_NO_OPTIONS: Final[Mapping[str, object]] = {}


@dataclass(frozen=True, slots=True)
class Agreement:
    """What it takes for the workers to agree on something before they start."""

    facts: StoreFacts
    key: JobKey
    deadline_s: float
    check: Callable[[], None] = lambda: None
    """Raises when some worker is lost already."""

    def reach(
        self,
        topic: str,
        *,
        strategy: str = "",
        options: Mapping[str, object] = _NO_OPTIONS,
        model: Sequence[str] = (),
    ) -> None:
        """Raise `MismatchError` on every worker unless all brought the same version and plans."""
        card = JobCard(
            version=shoal.__version__,
            world_size=dist.get_world_size(),
            strategy=strategy,
            options={name: repr(value) for name, value in options.items()},
            model_fingerprint=model,
            torch=str(torch.__version__),
        )
        agree(
            WatchedStore(self.facts.store, self.check),
            dist.get_rank(),
            dist.get_world_size(),
            self.key,
            topic,
            card,
            self.deadline_s,
        )


class Session:
    """This worker in its job. Made by `init` or `start_session`."""

    def __init__(
        self,
        launch: Launch,
        communicator: TorchCommunicator,
        control: ControlClient,
        agreement: Agreement,
        service: ControlProcess | None = None,
    ) -> None:
        self._real_launch = self._launch = launch
        self.communicator = communicator
        self.control = control
        self._agreement = agreement
        self._service = service
        self._share: EngineShare | None = None
        self._transports: WeakSet[TransportCommunicator] = WeakSet()
        """One for each training, so that none meets the conversations of another."""
        self._runs = 0

    @property
    def facts(self) -> StoreFacts:
        """Small facts shared by all workers."""
        return self._agreement.facts

    @property
    def deadline_s(self) -> float:
        """Seconds after which any wait for other workers ends in an error."""
        return self._agreement.deadline_s

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
        """Workers on each host, as rank 0's launcher says; some hosts may hold others."""
        return self._launch.workers_per_host

    def pretend_hosts(self, workers_per_host: int | None) -> None:
        """Treat the workers as if so many shared a host; None for what the launcher said."""
        self._launch = self._real_launch
        if workers_per_host is not None:
            host = self.rank // workers_per_host
            self._launch = replace(self._launch, workers_per_host=workers_per_host, host=host)

    def agree(
        self, topic: str, *, strategy: str, options: Mapping[str, object], model: Sequence[str]
    ) -> None:
        """Raise `MismatchError` on every worker unless all brought the same plans."""
        self._agreement.reach(topic, strategy=strategy, options=options, model=model)

    def communicator_over(
        self,
        transport: str,
        loss_bound: float = 0.0,
        holes: str = DEFAULT_HOLES,
        wire: str | None = None,
    ) -> Communicator:
        """Return what goes over `transport`: "gloo", or "shoal" with that bound on losses.

        `holes` says what a lost part of a sum counts as, `wire` what its floats are sent as.
        Over "shoal" a new one each time, the same on every worker. Collective the first time that
        it is asked for. Raises `UsageError` for names that do
        not exist or a bound that is none.
        """
        policy = check_transport(transport, loss_bound, holes, wire)
        if transport == "gloo":
            return self.communicator
        from shoal.runtime.engine_share import communicator_over, share_engine

        if self._share is None:
            everyone = tuple(range(self.world_size))
            self._share = share_engine(
                self.rank, everyone, self.world_size, self.facts, deadline_s=self.deadline_s
            )
            self.communicator.on_abort(self._abort_transports)
        loss = LossOptions(loss_bound, policy, wire=wire)
        made = communicator_over(self._share, loss, self._report_peer)
        made.workers_per_host = self.workers_per_host
        self._transports.add(made)
        return made

    def _report_peer(self, rank: int | None, text: str) -> None:
        if rank is not None:
            self.control.report_failure(f"their connection broke ({text}).", culprit=rank)

    def _abort_transports(self, error: ShoalError) -> None:
        """Let whatever aborts the communicator abort all that goes over the transport too."""
        if self._share is not None:
            self._share.abort(error)
        for transport in list(self._transports):
            transport.abort(error)

    def next_run_name(self) -> str:
        """Return a name for the next training run, the same on every worker."""
        self._runs += 1
        return f"run-{self._runs}"

    def report_failure(self, error: BaseException) -> None:
        """Tell the others that this worker cannot go on, unless another one is to blame."""
        if not isinstance(error, WorkerLost):
            self.control.report_failure(f"{type(error).__name__}: {error}")

    def say_goodbye(self) -> None:
        """Tell the others that this worker is done. Safe to call twice.

        Whoever still waits for it learns that it is gone, as if its process had ended.
        """
        self.control.close()
        if self._share is not None:
            self._share.close()
            self._share = None
        self.communicator.abort(UsageError("This worker has left the job; start it again."))

    def close(self) -> None:
        """Say goodbye and free everything. Safe to call twice.

        On rank 0, which serves the control plane, this returns once the others are done as well:
        they may have steps to make. It does not wait for workers that are lost.
        """
        global _current  # noqa: PLW0603 - one session per process, as torch has one default group
        if _current is self:
            _current = None
        self.say_goodbye()
        if self._service is not None:
            wait_until_deserted(self._service.endpoint, self._agreement.key)
            self._service.stop()
            self._service = None


def init(
    *,
    deadline_s: float = DEFAULT_DEADLINE_S,
    job_key: str | None = None,
    control_host: str | None = None,
    control_port: int = 0,
) -> Session:
    """Join the job that the launcher (torchrun, Slurm, Open MPI) has started.

    Initializes torch.distributed if nobody has: gloo, with NCCL for CUDA tensors where a GPU is.
    After `init_process_group("shoal")`, strategies go over that transport unless told otherwise.
    `deadline_s` bounds every wait for other workers. `job_key` (default: SHOAL_JOB_KEY, else a
    random one that rank 0 hands out through torch's store) authenticates the control plane, which
    rank 0 serves at `control_host`:`control_port` (default: torch's MASTER_ADDR, any free port).

    Raises `UsageError` without a launcher, or MASTER_ADDR and MASTER_PORT; `MismatchError` if
    versions or job keys differ, `ResourceError` if the workers cannot be joined or the port cannot
    be had.
    """
    deadline_s = _checked_deadline(deadline_s, control_port)
    if not dist.is_initialized():
        launch = read_launch()
        read_master()  # torch does, and would say what is wrong in words of its own
        _join_processes(launch, deadline_s)
    session = start_session(
        deadline_s=deadline_s,
        job_key=job_key or os.environ.get("SHOAL_JOB_KEY"),
        control_host=control_host or os.environ.get("MASTER_ADDR", "127.0.0.1"),
        control_port=control_port,
    )
    _report_uncaught(session)
    atexit.register(shutdown)
    return session


def start_session(
    *,
    deadline_s: float,
    job_key: str | None = None,
    control_host: str = "127.0.0.1",
    control_port: int = 0,
) -> Session:
    """Make this process's session on an initialized torch.distributed. See `init`."""
    global _current  # noqa: PLW0603 - one session per process, as torch has one default group
    if _current is not None:
        raise UsageError("shoal.init() was called twice; call shoal.shutdown() in between.")
    deadline_s = _checked_deadline(deadline_s, control_port)
    store = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - torch offers no public way to the store it has already connected
    facts = StoreFacts(
        fresh_store(
            store,
            f"session-{next(_session_numbers)}",
            dist.get_rank(),
            dist.get_world_size(),
            deadline_s=deadline_s,
        )
    )
    agreement = Agreement(facts, _agree_on_key(job_key, facts, deadline_s), deadline_s)
    said = _launch()
    if said.shows_dealing:
        facts.publish(_DEALT)
    agreement.reach("init")
    session: Session | None = None

    def on_peer_error(rank: int | None, text: str) -> None:
        if session is not None and rank is not None:
            reason = text.partition("] ")[2].partition(". ")[0] or text  # without gloo's file names
            session.control.report_failure(f"their connection broke ({reason}).", culprit=rank)

    communicator = TorchCommunicator(
        deadline_s=deadline_s,
        process_group=_gloo_beside_shoal(facts.store, deadline_s),
        on_peer_error=on_peer_error,
    )
    service = _serve_control(agreement, control_host, control_port)
    try:
        control = ControlClient(
            _find_control(agreement),
            agreement.key,
            dist.get_rank(),
            deadline_s,
            communicator.abort,
        )
    except BaseException:
        if service is not None:
            service.stop()
        raise
    agreement = replace(agreement, check=communicator.check)
    launch = _launch_of_group(said, agreement)
    session = _current = Session(launch, communicator, control, agreement, service)
    return session


def _forget_in_child() -> None:
    """Let a forked process have no session: at its end it would take its parent's apart."""
    global _current  # noqa: PLW0603 - one session per process, as torch has one default group
    _current = None
    atexit.unregister(shutdown)


os.register_at_fork(after_in_child=_forget_in_child)


def _gloo_beside_shoal(store: dist.Store, deadline_s: float) -> dist.ProcessGroup | None:  # type: ignore[name-defined]  # torch's own omission
    """Return a gloo group of all workers where torch's default group goes over "shoal"; collective.

    What is not averaged (plans, shards, questions) then goes over gloo. Its members meet in
    `store`: in torch's own, where a restarted job finds what is left of the last one, gloo would
    take that for theirs.
    """
    if not default_group_is_shoal():
        return None
    groups = dist.distributed_c10d._world.pg_map  # noqa: SLF001 - `new_group` takes no store
    default = dist.group.WORLD
    assert default is not None
    held = groups[default]
    groups[default] = (held[0], store)
    try:
        return dist.new_group(backend="gloo", timeout=timedelta(seconds=deadline_s))
    finally:
        groups[default] = held


def default_group_is_shoal() -> bool:
    """Return whether `init_process_group("shoal")` made torch's default group."""
    return dist.is_initialized() and "cpu:shoal" in dist.get_backend_config()


def _checked_deadline(deadline_s: float, control_port: int) -> float:
    """Return the deadline as a plain number; raise `UsageError` unless that and the port are."""
    whole_number(control_port, "The control port (0 for any free one)", low=0, high=65535)
    return seconds(deadline_s, "The deadline")


def _join_processes(launch: Launch, deadline_s: float) -> None:
    """Initialize torch.distributed as the launcher says."""
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(launch.local_rank % torch.cuda.device_count())
    try:
        rendezvous = dist.rendezvous(  # type: ignore[attr-defined]  # as documented
            "env://", launch.rank, launch.world_size, timeout=timedelta(seconds=deadline_s)
        )
        store, rank, world_size = next(rendezvous)
        occasion = f"group-{next(_group_numbers)}"
        dist.init_process_group(
            backend,
            store=fresh_store(store, occasion, rank, world_size, deadline_s=deadline_s),
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=deadline_s),
        )
    except (RuntimeError, DeadlineExceeded) as error:  # of the store, or of gloo
        reason = str(error).partition("\n")[0].rstrip(".")
        message = (
            f"Rank {launch.rank} could not join the others ({reason}): check that all"
            f" {launch.world_size} workers run, and MASTER_ADDR and MASTER_PORT."
        )
        raise ResourceError(message) from error


def _serve_control(agreement: Agreement, host: str, port: int) -> ControlProcess | None:
    """Start the control plane on rank 0 and tell the others where it is."""
    if dist.get_rank() != 0:
        return None
    try:
        service = ControlProcess.start(
            host=host,
            port=port,
            key=agreement.key,
            world_size=dist.get_world_size(),
            liveness_timeout_s=usual_liveness_timeout_s(agreement.deadline_s),
        )
    except ResourceError as error:
        agreement.facts.set("control", f"{_NO_CONTROL}{error}")
        raise
    agreement.facts.set("control", service.endpoint)
    return service


def _find_control(agreement: Agreement) -> str:
    """Return where rank 0 serves the control plane; raise its error if it could not."""
    endpoint = agreement.facts.get("control", agreement.deadline_s)
    if endpoint.startswith(_NO_CONTROL):
        raise ResourceError(endpoint.removeprefix(_NO_CONTROL))
    return endpoint


def current_session() -> Session:
    """Return this process's session. Raises `UsageError` before `init`."""
    if _current is None:
        raise UsageError("Call shoal.init() before making a DistributedOptimizer.")
    return _current


def shutdown() -> None:
    """Leave the job: say goodbye to the control plane and destroy torch's process group."""
    session = _current
    if session is not None:
        session.say_goodbye()
    if dist.is_initialized():
        dist.destroy_process_group()
    if session is not None:
        session.close()


def _agree_on_key(job_key: str | None, facts: StoreFacts, deadline_s: float) -> JobKey:
    """Return the given key, or the random one that rank 0 hands out if it was given none."""
    key = JobKey(job_key) if job_key else None
    if dist.get_rank() == 0:
        facts.set("job-key", "" if key else JobKey.generate().reveal())
    if key is None:
        # Nothing handed out: rank 0 was given one. A wrong key then is what all workers hear of.
        key = JobKey(facts.get("job-key", deadline_s) or JobKey.generate().reveal())
    return key


_DEALT: Final = "ranks-dealt-to-hosts"


def _launch() -> Launch:
    """Return the launcher's word where there is one, else one host for all."""
    rank, size = dist.get_rank(), dist.get_world_size()
    try:
        return replace(read_launch(), rank=rank, world_size=size)
    except UsageError:
        return Launch(rank, size, rank, size, 0)


def _launch_of_group(launch: Launch, agreement: Agreement) -> Launch:
    """Return the launcher's word with what it takes the others to know.

    How many workers share a host is rank 0's word: hosts may hold different numbers of them, and
    all have to read their groups off the same table. Whether ranks were dealt to hosts in turn is
    the word of whoever can tell; all had their say when they agreed to begin.
    """
    if agreement.facts.is_published(_DEALT):
        launch = launch.dealt()
    if launch.rank == 0:
        agreement.facts.set("workers-per-host", str(launch.workers_per_host))
    agreed = agreement.facts.get("workers-per-host", agreement.deadline_s)
    return replace(launch, workers_per_host=int(agreed))


def _report_uncaught(session: Session) -> None:
    """Let the others know at once when this worker dies of an exception nobody caught."""
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        # torchrun interrupts its workers once more after Ctrl-C: their end tells the others then
        with suppress(KeyboardInterrupt):
            session.report_failure(error)
        previous(kind, error, trace)

    sys.excepthook = hook
