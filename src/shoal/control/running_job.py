"""Where newcomers find a running job: at addresses, or by a file.

Owns the values of SHOAL_JOB, the file that the control plane writes for it, and the question
whether a job runs where it points. A file holds the job's key as well, and only its owner may read
it.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import zmq

from shoal.control.connection import Connection
from shoal.control.key import JobKey
from shoal.control.messages import Dump, DumpRequest, WorkerState
from shoal.control.server_socket import resolve
from shoal.control.waiting import wait_for
from shoal.decoding import decode_json
from shoal.errors import DeadlineExceeded, ProtocolError, ResourceError, UsageError, WorkerLost

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_CALL_S: Final = 2.0
"""How long a host may take to answer a call: it is asked before a job begins, too."""
MOVING_S: Final = 6.0
"""How long no service may answer where a note points, until a successor that has seen the control
plane fall silent writes its own address."""
_LOOK_S: Final = 0.2

VARIABLE: Final = "SHOAL_JOB"


class _Note(msgspec.Struct, frozen=True):
    """The note that is left for newcomers."""

    endpoint: str
    key: str = ""
    """The job's key; empty if all workers were given it."""


@dataclass(frozen=True, slots=True)
class RunningJob:
    """The address of a running job's control plane, and the job's key."""

    endpoint: str
    key: JobKey


def find_running_job(
    environment: Mapping[str, str], job_key: str | None, patience_s: float = 0.0
) -> RunningJob | None:
    """Return the job that runs where SHOAL_JOB points; None if none runs, or it is not set.

    If no service answers where a file points, look again for `patience_s`. Raises `UsageError` if
    SHOAL_JOB cannot be understood or a key is missing, `MismatchError` for another job's key.
    """
    text = environment.get(VARIABLE, "")
    if "/" in text:
        return job_by_note(lambda: _read(Path(text)), job_key, patience_s)
    addresses = addresses_of(environment)
    if addresses and not job_key:
        message = (
            f"{VARIABLE} gives addresses, so every worker needs the job's key: set SHOAL_JOB_KEY to"
            " the same random text of at least 16 characters, or let it name a file."
        )
        raise UsageError(message)
    for host, port in addresses:
        found = _ask(host, port, JobKey(job_key or ""))
        if found is not None and found.runs:
            return found.job
    return None


def job_by_note(
    read: Callable[[], bytes | None], job_key: str | None, patience_s: float = 0.0
) -> RunningJob | None:
    """Return the job that a note points to, if it runs; `read` returns the note, if there is one.

    If no service answers there, look again for `patience_s`: the control plane may be moving.
    """
    end = time.monotonic() + patience_s
    while (note := read()) is not None:
        fault = f"What {VARIABLE} names is no file of Shoal's"
        told = decode_json(note, _Note, fault, raises=UsageError)
        host, _, port = told.endpoint.removeprefix("tcp://").rpartition(":")
        found = _ask(host.strip("[]"), int(port), JobKey(job_key or told.key))
        if found is not None:
            return found.job if found.runs else None
        if time.monotonic() > end:
            return None
        time.sleep(_LOOK_S)
    return None


def _read(path: Path) -> bytes | None:
    with suppress(FileNotFoundError):
        return path.read_bytes()
    return None


def note_of(endpoint: str, key: JobKey, *, is_given: bool) -> bytes:
    """Return the note that points to a job, with its key, unless all workers have that."""
    return msgspec.json.encode(_Note(endpoint, "" if is_given else key.reveal()))


def leave_note(environment: Mapping[str, str], note: bytes) -> None:
    """Write a job's note where SHOAL_JOB names a file. Raises `ResourceError`."""
    text = environment.get(VARIABLE, "")
    if "/" not in text:
        return
    path = Path(text)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        fresh.touch(0o600)
        fresh.write_bytes(note)
        fresh.replace(path)
    except OSError as error:
        message = f"{VARIABLE}={text} cannot be written: {error.strerror}."
        raise ResourceError(message) from error


def remove_note(environment: Mapping[str, str], note: bytes) -> None:
    """Remove the file that SHOAL_JOB names if it is this note: the job has ended."""
    text = environment.get(VARIABLE, "")
    if "/" in text:
        path = Path(text)
        with suppress(OSError):
            if path.read_bytes() == note:
                path.unlink()


def wanted_address(environment: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the address for a job that begins: the first that SHOAL_JOB gives."""
    return next(iter(addresses_of(environment)), None)


def addresses_of(environment: Mapping[str, str]) -> list[tuple[str, int]]:
    """Return the addresses that SHOAL_JOB gives; none if it names a file or is not set."""
    text = environment.get(VARIABLE, "")
    return [] if "/" in text else _addresses(text)


def _addresses(text: str) -> list[tuple[str, int]]:
    found = []
    for each in filter(None, (part.strip() for part in text.split(","))):
        host, _, port = each.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            message = (
                f"{VARIABLE} is a list of addresses (host:port,host:port) or the path of a file"
                f" (with a slash in it), not {text!r}."
            )
            raise UsageError(message)
        found.append((host.strip("[]"), int(port)))
    return found


@dataclass(frozen=True, slots=True)
class _Found:
    job: RunningJob
    runs: bool
    """Whether the job has workers that go on."""


def _ask(host: str, port: int, key: JobKey) -> _Found | None:
    """Return the job whose control plane is at an address; None if no service answers there."""
    try:
        address = resolve(host)
        socket.create_connection((address, port), timeout=_CALL_S).close()
    except (OSError, ResourceError):
        return None
    shown = f"[{address}]" if ":" in address else address
    endpoint = f"tcp://{shown}:{port}"
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    connection = Connection(context, endpoint, key)
    try:
        connection.send(DumpRequest())
        dump = wait_for(connection, Dump, _CALL_S, "The control plane does not answer.")
    except (DeadlineExceeded, WorkerLost, ProtocolError):  # or it only stands by
        return None
    finally:
        connection.close(0)
        context.term()
    states = {each.state for each in dump.workers}
    # If some have finished, the others are about to: their processes may begin another job here.
    runs = WorkerState.ALIVE in states and WorkerState.FINISHED not in states
    return _Found(RunningJob(endpoint, key), runs=runs and dump.lost is None)
