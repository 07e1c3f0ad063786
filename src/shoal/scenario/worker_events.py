"""Reads the [[event]] tables in which workers die, stand still and come. Errors say the line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, get_args

from shoal.quantities import parse_duration
from shoal.scenario.cluster_spec import WorkerEvent, WorkerEventKind
from shoal.scenario.toml_table import MOST_HOSTS, checked, whole

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from shoal.scenario.toml_table import Parser, Table

_KINDS: Final[tuple[WorkerEventKind, ...]] = get_args(WorkerEventKind)

_lasts: Final = checked(
    parse_duration, lambda seconds: seconds > 0, "A worker stands still for more than 0 s."
)


def is_of_worker(table: Table) -> bool:
    """Return whether a table of [[event]] is about a worker."""
    return any(kind in table for kind in _KINDS)


def read_worker_events(
    tables: Sequence[Table], host_of: Parser[int], size: int
) -> list[tuple[WorkerEvent, Table]]:
    """Return the events of workers in the order of their times, with their tables.

    There are `size` workers at first; `host_of` reads a host's name. Raises `UsageError` for what
    cannot happen after the events before: a worker dies that is not there.
    """
    found = [(_read(table, host_of), table) for table in tables]
    found.sort(key=lambda pair: pair[0].at_s)
    there, known = set(range(size)), size
    for event, table in found:
        if event.what == "join":
            _check_join(event, table, there, known)
            there.add(event.rank)
            known = max(known, event.rank + 1)
        elif event.rank not in there:
            message = "This worker is not there then: it has died before, or has not come yet."
            raise table.error(message, event.what)
        elif event.what == "kill":
            there.remove(event.rank)
    return found


def _check_join(event: WorkerEvent, table: Table, there: Collection[int], known: int) -> None:
    """Raise `UsageError` unless a worker can come of which `known` have been there."""
    if event.rank in there:
        raise table.error("This worker is there already when it is to come.", "join")
    if event.rank > known:
        message = f"The next rank that nobody has had is {known}: ranks leave none out."
        raise table.error(message, "join")
    if event.rank == known and event.host is None:
        message = 'Nobody has had this rank: say the host that it comes on, host = "...".'
        raise table.error(message, "join")
    if event.rank < known and event.host is not None:
        raise table.error("It comes on the host that this rank was on: leave it out.", "host")


def _read(table: Table, host_of: Parser[int]) -> WorkerEvent:
    at_s = table.take("at", parse_duration)
    what, *others = (kind for kind in _KINDS if kind in table)
    if others:
        raise table.error("An event is one thing: give each its own [[event]].", others[0])
    rank = table.take(what, whole(0, MOST_HOSTS))
    lasts_s = table.take("for", _lasts) if what == "freeze" else 0.0
    host = table.take_or_none("host", host_of) if what == "join" else None
    table.end()
    return WorkerEvent(at_s, what, rank, host, lasts_s)
