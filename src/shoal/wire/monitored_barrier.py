"""A barrier after which the first member can name every member that did not come.

An ordinary barrier is an all-gather: whoever waits knows only whom it waits for itself. Here every
member tells the first one that it has come and waits for its word; so the first member knows who is
absent, and tells those who came. For debugging: it costs two messages one after the other for each
member. Knows no framework's groups.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shoal.errors import DeadlineExceeded, ShoalError
from shoal.transport import RAW
from shoal.wire.group import Memory, TransportGroup, stream_of

if TYPE_CHECKING:
    from shoal.wire.transfer import Transfer

_GO, _STOP = 1, 2

LEAST_S = 0.001
"""The first member's timeout if it is given none: no other member comes in time then."""

TELLING_S = 1.0
"""How long beyond the timeout the members that came wait for the first member's word."""


class BarrierIncomplete(DeadlineExceeded, RuntimeError):
    """Not everyone came to a monitored barrier; torch raises a RuntimeError then.

    `absent` are the ranks that member 0 names; the others only know that they came.
    """

    def __init__(self, message: str, absent: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.absent = tuple(absent)


class MonitoredBarrier:
    """The monitored barriers of `group`, which all members call in the same order.

    Member 0 of the group must call as well, and is the one whose error names the absent.
    """

    def __init__(self, group: TransportGroup) -> None:
        self._group = replace(
            group, stream=stream_of(group.stream, "monitored barrier"), _next_transfer={}
        )

    def __call__(self, timeout_s: float, *, wait_all_ranks: bool) -> None:
        """Return once every member has called this.

        Raises `BarrierIncomplete` on all who came unless everybody does within `timeout_s` seconds.
        On member 0 the error names the first absent rank, at once if its process has ended; with
        `wait_all_ranks` all of them, at the end of the timeout.
        """
        if self._group.me != 0:
            self._come(timeout_s)
        else:
            self._count(timeout_s, wait_all_ranks=wait_all_ranks)

    def _rank(self, member: int) -> int:
        return self._group.ranks[member]

    def _come(self, timeout_s: float) -> None:
        """Say that this member is here, and wait for the first one's word."""
        me, first = (self._rank(member) for member in (self._group.me, 0))
        came = (
            f"Rank {me} successfully reached monitoredBarrier, but received errors while waiting"
            f" for send/recv from rank {first}"
        )
        self._group.deadline_s = max(timeout_s, 0.0) + TELLING_S
        here, word = np.ones(1, np.uint8), np.zeros(1, np.uint8)
        heard = self._group.receive(_memory(word), 0)
        self._group.send(_memory(here), 0)
        try:
            heard.wait()
        except ShoalError as error:
            message = f"{came}: {error}"
            raise BarrierIncomplete(message) from error
        if word[0] != _GO:
            message = f"{came}: not everyone came, and its error says who."
            raise BarrierIncomplete(message)

    def _count(self, timeout_s: float, *, wait_all_ranks: bool) -> None:
        """Wait for everyone's message, then tell the members that came how it went."""
        self._group.deadline_s = max(timeout_s, LEAST_S)
        others = range(1, self._group.size)
        arrivals: list[Transfer] = []
        for member in others:
            arrival = self._group.receive(_memory(np.zeros(1, np.uint8)), member)
            assert arrival is not None  # it is not empty
            arrivals.append(arrival)
        _await(arrivals, timeout_s, stop_at_a_failure=not wait_all_ranks)
        absent = {
            member: arrival.error
            for member, arrival in zip(others, arrivals, strict=True)
            if not arrival.done.is_set() or arrival.error is not None
        }
        self._tell(absent, _STOP if absent else _GO)
        if absent and timeout_s <= 0:
            message = f"Rank {self._rank(0)} timed out in monitoredBarrier after {timeout_s:g} s."
            raise BarrierIncomplete(message)
        if absent:
            raise self._error(absent, timeout_s, names_all=wait_all_ranks)

    def _tell(self, absent: Collection[int], word: int) -> None:
        """Send everyone the word, and wait until the members that came have it.

        The absent are sent it too: what they receive, should they still come, is this barrier's.
        """
        told = [
            self._group.send(_memory(np.full(1, word, np.uint8)), member)
            for member in range(1, self._group.size)
        ]
        for member, transfer in enumerate(told, 1):
            if member not in absent:
                transfer.done.wait()  # a member that has gone since will miss nothing

    def _error(
        self, absent: dict[int, ShoalError | None], timeout_s: float, *, names_all: bool
    ) -> BarrierIncomplete:
        known = {
            member: f" {error}"
            for member, error in absent.items()
            if error is not None and not isinstance(error, DeadlineExceeded)
        }
        named = list(absent) if names_all else [*known, *absent][:1]
        ranks = [self._rank(member) for member in named]
        message = (
            f"Rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))} failed to pass"
            f" monitoredBarrier in {timeout_s:g} s."
        )
        message += "".join(known.get(member, "") for member in named)
        return BarrierIncomplete(message, ranks)


def _memory(here: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> Memory:
    return Memory(here.ctypes.data, len(here), RAW, here)


def _await(transfers: Sequence[Transfer], timeout_s: float, *, stop_at_a_failure: bool) -> None:
    """Return once all have ended, or one has failed and that is to be enough."""
    changed = threading.Condition()
    left = len(transfers)
    failed = False

    def ended(error: ShoalError | None) -> None:
        nonlocal left, failed
        with changed:
            left -= 1
            failed = failed or error is not None
            changed.notify()

    for transfer in transfers:
        transfer.tell(ended)
    deadline = time.monotonic() + timeout_s + TELLING_S
    with changed:
        while left and not (failed and stop_at_a_failure) and time.monotonic() < deadline:
            changed.wait(deadline - time.monotonic())
