"""Passes what workers write on to the terminal, line by line with the worker's name.

Owns where a line ends. Knows nothing of labs and processes: only descriptors that are read, and
those that are written to.
"""

from __future__ import annotations

import os
import select
import selectors
import time
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Final

from shoal.errors import ResourceError
from shoal.lab.closing import Closing

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_BYTES: Final = 1 << 16
"""A line that is longer is passed on in parts."""
_CHUNK_BYTES: Final = 1 << 16


class LineSplitter:
    """Cuts into lines what comes in chunks: the lines do not depend on where it is cut.

    A line ends with a newline, with a carriage return, as those of progress bars do, or with both.
    Only a newline makes an empty line.
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        self._is_told = False
        """Whether the end that is still to come is that of a line that has been returned."""

    def push(self, chunk: bytes) -> list[bytes]:
        """Return the lines that end in `chunk`, without their ends, and full parts of the last."""
        lines: list[bytes] = []
        *ended, last = chunk.split(b"\n")
        for text in ended:
            if text and b"\r" not in text and not self._rest and len(text) <= MOST_BYTES:
                lines.append(text)  # as what follows does for most lines, in a third of the time
            else:
                lines += self._progress(text)
                if self._rest or not self._is_told:
                    lines += self.finish() or [b""]
            self._is_told = False
        return lines + self._progress(last)

    def finish(self) -> list[bytes]:
        """Return what has no end, if there is something."""
        lines = [bytes(self._rest)] if self._rest else []
        self._rest.clear()
        return lines

    def _progress(self, text: bytes) -> list[bytes]:
        """Append what has no newline; return the lines that end with a carriage return."""
        *ended, last = text.split(b"\r")
        lines: list[bytes] = []
        for part in ended:
            lines += self._add(part)
            if self._rest:
                lines += self.finish()
                self._is_told = True
        return lines + self._add(last)

    def _add(self, text: bytes) -> list[bytes]:
        """Append to the line that has not ended yet; return the parts of it that are full."""
        self._rest += text
        if len(self._rest) < MOST_BYTES:
            self._is_told = self._is_told and not text
            return []
        full = len(self._rest) // MOST_BYTES * MOST_BYTES
        parts = [bytes(self._rest[k : k + MOST_BYTES]) for k in range(0, full, MOST_BYTES)]
        del self._rest[:full]
        self._is_told = not self._rest
        return parts


@dataclass(slots=True)
class _Voice:
    """What one worker writes to one of its streams."""

    prefix: bytes
    source: IO[bytes]
    target: int
    splitter: LineSplitter = field(default_factory=LineSplitter)


class Relay(Closing):
    """Passes on the lines of many streams, each with its speaker's name. A context manager.

    It goes on reading when a target cannot be written to any more, and says so by `check`. `write`
    is given a target and all of what goes there.
    """

    def __init__(self, write: Callable[[int, bytes], None] | None = None) -> None:
        self._write_to = write or write_all
        self._selector = selectors.DefaultSelector()
        self._troubles: dict[int, OSError] = {}
        """The error of each target that failed, in the order in which they came."""

    def add(self, name: str, source: IO[bytes], target: int) -> None:
        """Pass on what comes from `source` to the descriptor `target`."""
        os.set_blocking(source.fileno(), False)
        voice = _Voice(f"[{name}] ".encode(), source, target)
        self._selector.register(source, selectors.EVENT_READ, voice)

    def pass_on(self, wait_s: float) -> None:
        """Pass on what has come, or comes within `wait_s`; sleep so long if nothing comes."""
        if not self._selector.get_map():
            time.sleep(wait_s)
            return
        for key, _ in self._selector.select(wait_s):
            voice: _Voice = key.data
            heard = os.read(voice.source.fileno(), _CHUNK_BYTES)
            if heard:
                self._write(voice, voice.splitter.push(heard))
            else:
                self._end(voice)

    def finish(self) -> None:
        """Pass on what is still there. Safe to call twice."""
        while any(self._selector.select(0)):
            self.pass_on(0)
        for key in list(self._selector.get_map().values()):
            self._end(key.data)

    def close(self) -> None:
        """Listen no more."""
        self._selector.close()

    def check(self) -> None:
        """Raise `BrokenPipeError` if a reader has gone, `ResourceError` if a target is refused."""
        for target, error in self._troubles.items():
            if isinstance(error, BrokenPipeError):
                raise error
            name = {1: "standard output", 2: "standard error"}.get(target, f"descriptor {target}")
            message = f"What the workers say cannot be written to {name}: {error.strerror}."
            raise ResourceError(message) from error

    def _end(self, voice: _Voice) -> None:
        self._selector.unregister(voice.source)
        self._write(voice, voice.splitter.finish())

    def _write(self, voice: _Voice, lines: list[bytes]) -> None:
        if not lines or voice.target in self._troubles:
            return
        try:
            self._write_to(voice.target, b"".join(voice.prefix + line + b"\n" for line in lines))
        except OSError as error:
            self._troubles[voice.target] = error


def write_all(target: int, text: bytes) -> None:
    """Write all of `text`, past Python's buffers: they would try what failed again at the end."""
    while text:
        try:
            text = text[os.write(target, text) :]
        except BlockingIOError:  # whoever shares the terminal has made it so
            ready = select.poll()
            ready.register(target, select.POLLOUT)
            ready.poll()
