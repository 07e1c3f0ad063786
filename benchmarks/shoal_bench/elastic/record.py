"""What a worker writes down of its steps, and what others read off that.

A line is written when a step is over, in one piece, so that a worker may be killed at any moment.
Times are the machine's monotonic clock, which all its processes share.
"""

from __future__ import annotations

import os
import struct
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, Self

if TYPE_CHECKING:
    from pathlib import Path

_LINE: Final = struct.Struct("<qqqq")


class Line(NamedTuple):
    """What a worker knew when a call of `update` had returned."""

    at_ns: int
    done: int
    kept: int
    members: int


class RecordWriter:
    """Appends lines to a file."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, line: Line) -> None:
        """Append a line."""
        os.write(self._fd, _LINE.pack(*line))


class Record:
    """The lines of one process, read anew as it goes on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self.lines: list[Line] = []
        """All lines as of the last `refresh`."""

    def refresh(self) -> Self:
        """Read what has been added."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                fresh = file.read()
        except FileNotFoundError:
            return self
        whole = len(fresh) // _LINE.size * _LINE.size
        self.lines += [Line(*each) for each in _LINE.iter_unpack(fresh[:whole])]
        self._read += whole
        return self

    def steps(self) -> list[Line]:
        """Return the lines with which a step was completed: those where `done` grew."""
        found, done = [], 0
        for line in self.lines:
            if line.done > done:
                found.append(line)
                done = line.done
        return found

    def at(self, at_ns: int) -> Line:
        """Return what the worker knew at a time; nothing before its first line."""
        known = [line for line in self.lines if line.at_ns <= at_ns]
        return known[-1] if known else Line(at_ns, 0, 0, 0)


def first_without(record: Record, since_ns: int, members: int) -> int | None:
    """Return when a worker first completed a step that fewer than `members` made, after a moment.

    None if it has not yet.
    """
    times = (each.at_ns for each in record.steps() if each.members < members)
    return next((at_ns for at_ns in times if at_ns > since_ns), None)


def first_average(record: Record, since_ns: int) -> int | None:
    """Return when a worker's steps first got into an average after a moment; None if not yet."""
    kept = record.at(since_ns).kept
    times = (each.at_ns for each in record.lines if each.kept > kept)
    return next((at_ns for at_ns in times if at_ns > since_ns), None)


def second_step(record: Record, since_ns: int) -> int | None:
    """Return when the second step since a moment was complete, None if it is not yet.

    The first one may have been all but complete at that moment.
    """
    times = [line.at_ns for line in record.steps() if line.at_ns > since_ns]
    return times[1] if len(times) > 1 else None


def longest_pause_s(record: Record, since_ns: int) -> float:
    """Return the longest time from one completed step to the next, of those that end since then."""
    times = [line.at_ns for line in record.steps()]
    pauses = [later - earlier for earlier, later in pairwise(times) if later > since_ns]
    return max(pauses, default=0) / 1e9
