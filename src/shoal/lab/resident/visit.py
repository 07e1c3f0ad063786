"""Starting a lab that stays up, and visiting it: what the commands of `shoal lab` do."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from shoal.errors import DeadlineExceeded, ResourceError, ShoalError, UsageError, of_code
from shoal.lab.resident.visitor_messages import (
    Answer,
    AskCounts,
    Connection,
    Counts,
    Describe,
    Description,
    Down,
    Ended,
    Execute,
    Refused,
    Request,
    Signal,
    address_of,
    decode_answer,
    is_ours,
    names_of_labs,
)
from shoal.lab.rights import launcher

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

T = TypeVar("T", Description, Counts)

_BACKLOG: Final = 16
_ANSWER_S: Final = 30.0
_PATIENCE: Final = struct.pack("@ll", int(_ANSWER_S), 0)
"""`_ANSWER_S` as the kernel's timeval."""
_START_S: Final = 300.0
"""The first lab compiles its switch."""


def bring_up(name: str, spec: Path) -> None:
    """Start a lab that stays up when this process ends; return once it is there.

    Raises what keeps it from being there.
    """
    command = [*launcher(), sys.executable, "-P", "-m", "shoal.lab.resident", name, str(spec)]
    reading, writing = os.pipe()
    with open(reading, "rb") as report:  # noqa: PTH123 - a descriptor
        try:
            listener = _listen(name)
            files = (writing, listener.fileno())
            started = subprocess.Popen(
                [*command, *map(str, files)],
                pass_fds=files,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
            listener.close()
        finally:
            os.close(writing)
        try:
            code, _, sentence = report.read().decode().partition("\n")
        except BaseException:  # Ctrl-C: nobody waits for this lab any more
            started.terminate()
            started.wait(_ANSWER_S)
            raise
    if code != "0":
        raise of_code(int(code or 1), sentence or "The lab's process ended before it was up.")


def _listen(name: str) -> socket.socket:
    """Return the socket of a lab: opened here, since the lab may see another network."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(address_of(name))
    except OSError:
        listener.close()
        message = f"A lab {name!r} is up already: shoal lab down {name}, or give another --name."
        raise UsageError(message) from None
    listener.listen(_BACKLOG)
    return listener


def chosen(name: str | None) -> str:
    """Return `name`, or that of the only lab that is up; raise `UsageError`."""
    names = names_of_labs()
    if name is None and len(names) == 1:
        return names[0]
    if name in names:
        return str(name)
    if not names:
        raise UsageError("No lab is up: shoal lab up SPEC.toml starts one.")
    what = "Several labs are up" if name is None else f"No lab {name!r} is up"
    message = f"{what}; say which of {', '.join(names)}."
    raise UsageError(message)


def describe(name: str) -> Description:
    """Return what the lab `name` is."""
    return _ask(name, Describe(), Description)


def count(name: str) -> Counts:
    """Return what the switches of the lab `name` have counted."""
    return _ask(name, AskCounts(), Counts)


def take_down(name: str) -> None:
    """End the lab `name`, and return once it is gone."""
    gone_already = contextlib.suppress(ConnectionError)
    with _visiting(name, "end") as connection, gone_already:
        connection.send(Down())
        if connection.receive() is not None:
            raise ResourceError("The lab answered instead of ending.")


def execute(name: str, host: str, command: Sequence[str]) -> int:
    """Run a command on a host of the lab `name` with this process's streams; return its exit code.

    Ctrl-C goes to the command.
    """
    order = Execute(
        host=os.fsencode(host),
        command=[os.fsencode(word) for word in command],
        environment=list(os.environb.items()),
        directory=_working_directory(),
    )
    with _visiting(name) as connection:

        def forward(number: int, _frame: FrameType | None) -> None:
            connection.send(Signal(number))

        before = signal.getsignal(signal.SIGINT)
        try:
            connection.socket.settimeout(None)
            connection.send(order, (0, 1, 2))
            signal.signal(signal.SIGINT, forward)
            answer = _receive(connection)
        finally:
            signal.signal(signal.SIGINT, before)
    if isinstance(answer, Ended):
        return answer.code
    raise _trouble(name, answer)


def _working_directory() -> bytes:
    try:
        return os.fsencode(Path.cwd())
    except FileNotFoundError:
        message = "The folder that this command is run in has been deleted: cd to one that exists."
        raise UsageError(message) from None


def _ask(name: str, request: Request, kind: type[T]) -> T:
    with _visiting(name) as connection:
        connection.send(request)
        answer = _receive(connection)
    if isinstance(answer, kind):
        return answer
    raise _trouble(name, answer)


@contextlib.contextmanager
def _visiting(name: str, do: str = "answer") -> Iterator[Connection]:
    """Yield a connection to the lab `name`, which is to `do` something in time."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection = Connection(made)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _PATIENCE)  # waits for a place
        made.connect(address_of(name))
        made.settimeout(_ANSWER_S)
        if not is_ours(made):
            message = f"The lab {name!r} is another user's."
            raise ResourceError(message)
        yield connection
    except ConnectionRefusedError:
        message = f"No lab {name!r} is up."
        raise UsageError(message) from None
    except (TimeoutError, BlockingIOError):
        message = f"The lab {name!r} did not {do} within {_ANSWER_S:g} s."
        raise DeadlineExceeded(message) from None
    except ConnectionError:
        raise _trouble(name, None) from None
    finally:
        connection.close()


def _receive(connection: Connection) -> Answer | None:
    line = connection.receive()
    return None if line is None else decode_answer(line)


def _trouble(name: str, answer: Answer | None) -> ShoalError:
    if isinstance(answer, Refused):
        return of_code(answer.code, answer.sentence)
    return ResourceError(f"The lab {name!r} has ended.")
