"""How a job's workers meet before their control plane stands: over torch's store, within a bound.

Owns the use of the store: a part of it that only this start uses, the job key, the first comparison
of cards, the hosts, and the address of the control plane. After that no code of ours waits for the
store, whose silence raises no error.
"""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypeAlias

import torch
import torch.distributed as dist

import shoal
from shoal.arguments import one_of, seconds, whole_number
from shoal.carriers import default_store, stores_of_groups
from shoal.control import (
    VARIABLE,
    ControlProcess,
    JobCard,
    JobKey,
    agree,
    note_of,
    usual_liveness_timeout_s,
)
from shoal.errors import DeadlineExceeded, ResourceError, ShoalError, UsageError
from shoal.launch import (
    Launch,
    hosts_of,
    rank_asked_for,
    read_launch,
    read_master,
    says_hosts,
)
from shoal.membership import GoingOn, Quorum
from shoal.session.bounded import within
from shoal.session.fresh_store import fresh_store
from shoal.session.log_output import show_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.distributed import Store  # type: ignore[attr-defined]  # torch's own omission

    from shoal.control import ControlFacts, RunningJob
    from shoal.membership import View
    from shoal.watch import WatchAddress

    Find: TypeAlias = Callable[[Callable[[], bytes | None]], RunningJob | None]
    """Finds the running job by its note, which the argument reads."""

_NO_CONTROL: Final = "error: "
_NOTE: Final = "shoal-job"
"""The key of the note about a job that others may join, in the launcher's store."""
_KEY, _DEALT, _PER_HOST, _CONTROL = "job-key", "ranks-dealt-to-hosts", "workers-per-host", "control"
_BOUNDS: Final = 2.0
"""The deadlines within which a start's use of the store ends: each of its waits has a deadline of
its own, with an error that says more."""
_SILENT: Final = (
    "torch's store, at MASTER_ADDR, does not answer: the process that keeps it hangs, or its"
    " machine cannot be reached."
)


@dataclass(frozen=True, slots=True)
class Meeting:
    """The facts that the workers agree on when they have met."""

    launch: Launch
    key: JobKey
    store: Store
    """The part of torch's store that only this session uses."""


def checked_deadline(deadline_s: float, control_port: int) -> float:
    """Return the deadline as a plain number; raise `UsageError` if it or the port is no number."""
    whole_number(control_port, "The control port (0 for any free one)", low=0, high=65535)
    return seconds(deadline_s, "The deadline")


def checked_going_on(
    min_workers: int | None, patience_s: float | None, quorum: str, deadline_s: float
) -> GoingOn | None:
    """Return how the job goes on without lost workers, None if it does not. Raises `UsageError`."""
    if min_workers is None:
        return None
    words = [each.value for each in Quorum]
    patience_s = deadline_s if patience_s is None else patience_s
    return GoingOn(
        whole_number(min_workers, "min_workers", low=1),
        seconds(patience_s, "patience_s", or_none=True),
        Quorum(one_of(quorum, "quorum", words)),
    )


def default_group_is_shoal() -> bool:
    """Return whether `init_process_group("shoal")` made torch's default group."""
    return dist.is_initialized() and "cpu:shoal" in dist.get_backend_config()


def join_or_find(deadline_s: float, find: Find | None) -> RunningJob | None:
    """Initialize torch.distributed as the launcher says, or return the job that runs there."""
    try:
        launch = read_launch()
    except UsageError:  # no job begins with such a rank, but it may join one that runs
        running = None if find is None else _find_in_store(find, deadline_s)
        if running is None:
            raise
        show_log(rank_asked_for() or 0)
        return running
    read_master()  # torch reads it too, and would say what is wrong in words of its own
    show_log(launch.rank)
    return _join_processes(launch, deadline_s, find)


def _join_processes(
    launch: Launch,
    deadline_s: float,
    find: Find | None = None,
) -> RunningJob | None:
    """Initialize torch.distributed as the launcher says. Raises `ResourceError` if it cannot.

    If the launcher's store has the note of a job that runs, by `find`, return that instead.
    """
    if torch.cuda.is_available():
        torch.cuda.set_device(launch.local_rank % torch.cuda.device_count())
    with _in_words_of_ours(launch, DeadlineExceeded):
        return within(_BOUNDS * deadline_s, _SILENT, lambda: _initialize(launch, deadline_s, find))


def _initialize(launch: Launch, deadline_s: float, find: Find | None) -> RunningJob | None:
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    rendezvous = dist.rendezvous(  # type: ignore[attr-defined]  # as documented
        "env://", launch.rank, launch.world_size, timeout=timedelta(seconds=deadline_s)
    )
    store, rank, world_size = next(rendezvous)
    if find is not None and (found := _find_in(_whole_store(store), find)) is not None:
        return found
    dist.init_process_group(
        backend,
        store=fresh_store(store, "group", rank, world_size, deadline_s=deadline_s),
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=deadline_s),
    )
    return None


def _find_in_store(find: Find, deadline_s: float) -> RunningJob | None:
    """Return the job that runs at MASTER_ADDR and MASTER_PORT; None if there is none.

    For a process that has no part in the job's start.
    """
    host, port = read_master()

    def look() -> RunningJob | None:
        timeout = timedelta(seconds=deadline_s)
        with suppress(RuntimeError):  # no store is there
            store = dist.TCPStore(  # type: ignore[attr-defined]  # as for fresh_store
                host, port, is_master=False, timeout=timeout
            )
            return _find_in(store, find)
        return None

    return within(_BOUNDS * deadline_s, _SILENT, look)


def _find_in(store: Store, find: Find) -> RunningJob | None:
    return find(lambda: store.get(_NOTE) if store.check([_NOTE]) else None)


def _whole_store(store: Store) -> Store:
    """Return the store that `store` is a part of: processes that come later read that one."""
    while isinstance(store, dist.PrefixStore):  # type: ignore[attr-defined]  # as for fresh_store
        store = store.underlying_store
    return store


def meet(job_key: str | None, deadline_s: float) -> Meeting:
    """Return the facts that all workers agree on; collective, over torch.distributed.

    Raises `MismatchError` on every worker if versions or job keys differ, `DeadlineExceeded` or
    `ResourceError` if some cannot be met.
    """
    launch = _launcher_says()
    with _in_words_of_ours(launch):
        return within(_BOUNDS * deadline_s, _SILENT, lambda: _meet(launch, job_key, deadline_s))


def _meet(launch: Launch, job_key: str | None, deadline_s: float) -> Meeting:
    default = default_store()
    rank, world_size = launch.rank, launch.world_size
    store = fresh_store(default, "session", rank, world_size, deadline_s=deadline_s)
    key = _agree_on_key(job_key, store, rank, deadline_s)
    if launch.shows_dealing:
        store.set(_DEALT, "1")
    if not says_hosts():
        launch = _by_host_names(launch, store, deadline_s)
    if rank == 0:
        store.set(_PER_HOST, str(launch.workers_per_host))
    everyone, card = range(world_size), new_card(world_size)
    # nobody can be lost yet, and torch's store logs each wait that ends without an answer
    agree(store, rank, lambda: everyone, key, "init", card, deadline_s, look_s=2 * deadline_s)
    # Hosts may hold different numbers of workers, and all have to read their groups off the same
    # table: rank 0's number counts. If any launcher can tell that ranks were dealt to hosts in
    # turn, that counts; all had said so when they agreed.
    if store.check([_DEALT]):
        launch = launch.dealt()
    per_host = int(_text(store, _PER_HOST, deadline_s))
    return Meeting(replace(launch, workers_per_host=per_host), key, store)


def serve_control(
    meeting: Meeting,
    view: View,
    *,
    deadline_s: float,
    host: str,
    port: int,
    going_on: GoingOn | None = None,
    is_key_given: bool = False,
    watch: WatchAddress | None = None,
) -> ControlProcess | None:
    """Start the control plane on rank 0 and tell the others where it is.

    If others may join later, leave a note for them: with the job's key, unless they are given it.
    """
    if meeting.launch.rank != 0:
        return None
    try:
        service = ControlProcess.start(
            host=host,
            port=port,
            key=meeting.key,
            view=view,
            min_members=None if going_on is None else going_on.min_members,
            quorum=Quorum.MAJORITY if going_on is None else going_on.quorum,
            liveness_timeout_s=usual_liveness_timeout_s(deadline_s, is_fixed=going_on is None),
            note="" if going_on is None else os.environ.get(VARIABLE, ""),
            is_key_given=is_key_given,
            watch=watch,
        )
    except ResourceError as error:
        meeting.store.set(_CONTROL, f"{_NO_CONTROL}{error}")
        raise
    if going_on is not None:
        _leave_in_store(meeting, note_of(service.endpoint, meeting.key, is_given=is_key_given))
    meeting.store.set(_CONTROL, service.endpoint)
    return service


def _leave_in_store(meeting: Meeting, note: bytes) -> None:
    _whole_store(meeting.store).set(_NOTE, note.decode())


def leave_word_again(
    meeting: Meeting, endpoint: str, deadline_s: float, *, is_key_given: bool
) -> None:
    """Say in the launcher's store, which rank 0 keeps, that the control plane has moved."""
    note = note_of(endpoint, meeting.key, is_given=is_key_given)
    with suppress(RuntimeError, ShoalError):  # the store may be gone, and the file says it, too
        within(_BOUNDS * deadline_s, _SILENT, lambda: _leave_in_store(meeting, note))


def find_control(meeting: Meeting, deadline_s: float) -> str:
    """Return the address of rank 0's control plane; raise its error if it could not start one."""
    with _in_words_of_ours(meeting.launch):
        endpoint = within(
            _BOUNDS * deadline_s, _SILENT, lambda: _text(meeting.store, _CONTROL, deadline_s)
        )
    if endpoint.startswith(_NO_CONTROL):
        raise ResourceError(endpoint.removeprefix(_NO_CONTROL))
    return endpoint


def ready_fact(rank: int) -> str:
    """Return the name of the fact that a rank can go on in another view; its host is the value."""
    return f"ready/{rank}"


def find_host(facts: ControlFacts, view: View, deadline_s: float) -> int:
    """Return the index of a newcomer's host, by the names of the members' hosts."""
    names = [ready_fact(rank) for rank in view.members]
    facts.wait(names, timedelta(seconds=deadline_s))
    for host_name, host in zip(facts.read(names), view.hosts, strict=True):
        if host_name == socket.gethostname().encode():
            return host
    return max(view.hosts) + 1


def new_card(
    num_ranks: int,
    *,
    strategy: str = "",
    options: dict[str, str] | None = None,
    model: tuple[str, ...] = (),
) -> JobCard:
    """Return the card of this worker."""
    return JobCard(
        version=shoal.__version__,
        num_ranks=num_ranks,
        strategy=strategy,
        options=options or {},
        model_fingerprint=model,
        torch=str(torch.__version__),
    )


def own_group(meeting: Meeting, deadline_s: float) -> dist.ProcessGroup:
    """Return a new gloo group of all workers, with NCCL where torch's own has it; collective.

    Shoal then aborts or times out no group of the user's. Its members meet in the session's part of
    the store: in torch's own, gloo of a restarted job would take the addresses left by the last
    start for those of its members.
    """
    groups = stores_of_groups()
    default = dist.group.WORLD
    assert default is not None
    held = groups[default]
    devices = "cpu:gloo,cuda:nccl" if "cuda:nccl" in dist.get_backend_config() else "gloo"

    def make() -> dist.ProcessGroup:
        groups[default] = (held[0], meeting.store)
        try:
            made = dist.new_group(backend=devices, timeout=timedelta(seconds=deadline_s))
        finally:
            groups[default] = held
        assert made is not None
        return made

    with _in_words_of_ours(meeting.launch):
        return within(_BOUNDS * deadline_s, _SILENT, make)


def _launcher_says() -> Launch:
    """Return this worker's place as the launcher says, else one host for all workers."""
    rank, size = dist.get_rank(), dist.get_world_size()
    try:
        return replace(read_launch(), rank=rank, world_size=size)
    except UsageError:
        return Launch(rank, size, rank, size, 0)


def _by_host_names(launch: Launch, store: Store, deadline_s: float) -> Launch:
    """Return this worker's place by the names of all workers' hosts: no launcher says it."""
    store.set(f"host-name/{launch.rank}", socket.gethostname())
    hosts = hosts_of(
        [_text(store, f"host-name/{rank}", deadline_s, rank) for rank in range(launch.world_size)]
    )
    mine = hosts[launch.rank]
    return replace(
        launch,
        host=mine,
        local_rank=hosts[: launch.rank].count(mine),
        workers_per_host=hosts.count(mine),
        host_if_dealt=None,
    )


def _agree_on_key(job_key: str | None, store: Store, rank: int, deadline_s: float) -> JobKey:
    """Return the given key, or the random one that rank 0 hands out if it was given none."""
    key = JobKey(job_key) if job_key else None
    if rank == 0:
        store.set(_KEY, "" if key else JobKey.generate().reveal())
    if key is None:
        # Nothing handed out: rank 0 was given a key. All workers then hear of this one's wrong key.
        key = JobKey(_text(store, _KEY, deadline_s) or JobKey.generate().reveal())
    return key


def _text(store: Store, name: str, deadline_s: float, publisher: int = 0) -> str:
    """Return the text that rank `publisher` puts under `name`, waiting for it."""
    try:
        store.wait([name], timedelta(seconds=deadline_s))
    except RuntimeError as error:
        message = f"Rank {publisher} did not publish {name!r} within {deadline_s:g} s."
        raise DeadlineExceeded(message) from error
    return store.get(name).decode()


@contextmanager
def _in_words_of_ours(launch: Launch, *also: type[ShoalError]) -> Iterator[None]:
    """Turn torch's errors about its store and gloo into a sentence about the start."""
    try:
        yield
    except RuntimeError as error:
        raise _could_not_join(launch, error) from error
    except also as error:
        raise _could_not_join(launch, error) from error


def _could_not_join(launch: Launch, error: Exception) -> ResourceError:
    reason = str(error).partition("\n")[0].rstrip(".")
    return ResourceError(
        f"Rank {launch.rank} could not join the others ({reason}): check that all"
        f" {launch.world_size} workers run, and MASTER_ADDR and MASTER_PORT."
    )
