"""Every exception Shoal raises on purpose, with whose fault it is and the exit code it maps to.

A user's mistake, a broken peer and a refusing operating system are different things to the person
who reads the message, so they are different classes. Anything else that escapes is a bug of ours.
The exit codes are documented in docs/exit-codes.md.
"""

from __future__ import annotations

from typing import ClassVar


class ShoalError(Exception):
    """Base of all deliberate errors. `str(error)` is one sentence fit for a user."""

    exit_code: ClassVar[int] = 1


class UsageError(ShoalError, ValueError):
    """The caller asked for something that cannot be: an unknown name, an impossible size."""

    exit_code = 2


class MismatchError(ShoalError):
    """The workers disagree on something they must share: model, strategy, version or job key."""

    exit_code = 3


class DataError(ShoalError):
    """A data set cannot be found, fetched or trusted: absent, truncated, wrong checksum."""

    exit_code = 4


class WorkerLost(ShoalError):
    """Another worker died or gave up. `rank` says which one, or is None while that is unknown.

    Raised in the training thread, within the job's deadline, so that a checkpoint can be saved.
    """

    exit_code = 5

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank


class ViewChanging(WorkerLost):
    """The members of the job change: what was under way among the old ones has ended.

    It reaches nobody whose training can go on: that repeats or drops what it was doing.
    """

    def __init__(self, message: str = "The workers that take part have changed.") -> None:
        super().__init__(message)


class DeadlineExceeded(ShoalError):
    """A wait ended at its deadline without an answer and without a known culprit."""

    exit_code = 6


class ResourceError(ShoalError):
    """The operating system refused: a port in use, no memory, no permission."""

    exit_code = 7


class ProtocolError(ShoalError):
    """A peer sent something that the protocol does not allow."""

    exit_code = 8


def of_code(exit_code: int, sentence: str) -> ShoalError:
    """Return the error that a process of ours ended with, as its exit code and sentence say."""
    here = (kind for kind in ShoalError.__subclasses__() if kind.__module__ == __name__)
    return next((kind for kind in here if kind.exit_code == exit_code), ShoalError)(sentence)
