"""Receiving from the rank that sends first, over a transport that must be told a rank beforehand.

A receive stands open for every member that may send and is never taken back: what arrives for one
that nobody waits for any more is kept for the next receive of its tag. Owns that bookkeeping, by
tag. Knows no framework's receive calls and no deadline.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from shoal.carriers.host_copy import HOST
from shoal.carriers.tensor_memory import bytes_of
from shoal.errors import ShoalError, UsageError

if TYPE_CHECKING:
    from shoal.wire import Transfer, TransportGroup


@dataclass(slots=True, eq=False)
class Standing:
    """A receive that stands open: where the message of one member lands."""

    place: Tensor
    """The message's bytes."""
    transfer: Transfer


@dataclass(slots=True, eq=False)
class Wanted:
    """A caller that waits for a message of `length` bytes from anyone, or anyone of `senders`.

    Who knows that nobody else sends says so: no receive is left open for the others. `deliver(
    member, bytes, None)` is called once, or `deliver(-1, None, error)`; in the transport's thread,
    or in that of the call that asked.
    """

    length: int
    deliver: Callable[[int, Tensor | None, BaseException | None], None]
    senders: Collection[int] | None = None


@dataclass(slots=True)
class _Tag:
    """What is known of one tag: its callers, and the receive that is open for each member."""

    waiting: deque[Wanted] = field(default_factory=deque)
    standing: dict[int, Standing] = field(default_factory=dict)
    arrived: deque[int] = field(default_factory=deque)
    """Members whose standing receive is done, in order of arrival."""
    lost: dict[int, ShoalError] = field(default_factory=dict)
    """Members from which nothing can come any more."""


class AnySource:
    """The receives of `group`, for this member, that name no sender."""

    def __init__(self, group: TransportGroup) -> None:
        self._group = group
        self._others = [member for member in range(group.size) if member != group.me]
        self._lock = threading.RLock()
        self._tags: dict[int, _Tag] = {}

    def receive(self, wanted: Wanted, tag: int) -> None:
        """Have `wanted` told of the next message of `tag` that no caller before it gets.

        Raises `UsageError` for an empty message, which nobody would notice, and for a length that
        is not the one which earlier receives from anyone left open.
        """
        if not self._senders(wanted):
            raise UsageError("There is nobody else to receive from.")
        if wanted.length == 0:
            raise UsageError("A receive from any source needs a tensor that is not empty.")
        with self._lock:
            state = self._tags.setdefault(tag, _Tag())
            for member, standing in state.standing.items():
                _check_length(standing, wanted.length, member, tag)
            state.waiting.append(wanted)
        self._match(tag)

    def give_up(self, wanted: Wanted, tag: int, error: BaseException) -> None:
        """Tell `wanted` of `error` if it still waits."""
        with self._lock:
            waiting = self._tags[tag].waiting
            if wanted not in waiting:
                return
            waiting.remove(wanted)
        wanted.deliver(-1, None, error)

    def claim(self, member: int, length: int, tag: int) -> Standing | None:
        """Return what already stands open for the next message of `member`, if anything does.

        An ordinary receive takes it over. Raises `UsageError` if somebody waits for anyone's
        message of this tag: whose the next one is could not be told.
        """
        with self._lock:
            state = self._tags.get(tag)
            if state is None or member not in state.standing:
                return None
            if state.waiting:
                message = (
                    f"A receive from any source is waiting for messages of tag {tag}: receive from"
                    f" rank {member} with another tag, or after it."
                )
                raise UsageError(message)
            _check_length(state.standing[member], length, member, tag)
            if member in state.arrived:
                state.arrived.remove(member)
            return state.standing.pop(member)

    def _match(self, tag: int) -> None:
        """Hand out what has arrived; keep receives open for all members that a caller waits for."""
        ready: list[tuple[Wanted, int, Standing]] = []
        opened: list[tuple[int, Standing]] = []
        failed: list[Wanted] = []
        with self._lock:
            state = self._tags[tag]
            while state.waiting and state.arrived:
                member = state.arrived.popleft()
                ready.append((state.waiting.popleft(), member, state.standing.pop(member)))
            for wanted in list(state.waiting):
                for member in self._senders(wanted):
                    if member not in state.standing and member not in state.lost:
                        standing = self._open(member, wanted.length, tag)
                        state.standing[member] = standing
                        opened.append((member, standing))
                if all(member in state.lost for member in self._senders(wanted)):
                    failed.append(wanted)
                    state.waiting.remove(wanted)
        for wanted, member, standing in ready:
            wanted.deliver(member, standing.place, None)
        for wanted in failed:
            wanted.deliver(-1, None, next(iter(state.lost.values())))
        for member, standing in opened:
            self._watch(member, standing, tag)

    def _senders(self, wanted: Wanted) -> Collection[int]:
        return self._others if wanted.senders is None else wanted.senders

    def _open(self, member: int, length: int, tag: int) -> Standing:
        place = torch.empty(length, dtype=torch.uint8, device=HOST)
        transfer = self._group.receive(bytes_of(place), member, tag=tag, patient=True)
        return Standing(place, transfer)

    def _watch(self, member: int, standing: Standing, tag: int) -> None:
        def arrived(error: ShoalError | None) -> None:
            with self._lock:
                state = self._tags[tag]
                if state.standing.get(member) is not standing:
                    return  # an ordinary receive has taken it over
                if error is None:
                    state.arrived.append(member)
                else:
                    state.lost[member] = error
                    del state.standing[member]
            self._match(tag)

        standing.transfer.tell(arrived)


def _check_length(standing: Standing, length: int, member: int, tag: int) -> None:
    expected = standing.place.numel()
    if length != expected:
        message = (
            f"An earlier receive from any source left one of {expected} bytes open for rank"
            f" {member} and tag {tag}, so one of {length} bytes needs another tag."
        )
        raise UsageError(message)
