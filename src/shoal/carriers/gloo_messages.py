"""Tagged messages between two workers, over the gloo part of a process group.

Owns the layout of tags and how a message is started and waited for. Knows no collective. Any two
workers of the group can talk; nobody else takes part, and nothing needs setting up.
"""

from __future__ import annotations

import zlib
from datetime import timedelta
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from shoal.carriers.guard import Failure, Guard, classify
from shoal.carriers.host_copy import HOST
from shoal.carriers.torch_private import source_of
from shoal.errors import UsageError, WorkerLost

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Work

CHANNELS = 512
"""Number of channels; a tag holds 31 bits: 2 of kind, 9 of channel, 20 of fingerprint."""

_FINGERPRINT_BITS = 20
_CHANNEL_BITS = 9
_UNUSED_TAG = (1 << 31) - 1


class Kind(IntEnum):
    """The conversations that messages belong to."""

    SINGLE = 0
    """`send`, `receive` and `receive_any`."""

    REDUCE = 1
    """Contributions to a group's mean: `Phase.REDUCE`."""

    GATHER = 2
    """The finished means on their way to everyone: `Phase.GATHER`."""


def message_tag(kind: Kind, channel: int, *meaning: object) -> int:
    """Return the tag of messages of this `kind` on `channel` that mean `meaning`.

    Workers that disagree on any of it (a sequence number, the members, the number of bytes) compute
    different tags, but for one chance in a million, and so never take one message for another.
    gloo would end the process on a message longer than the buffer, and accept a shorter one.
    """
    if not 0 <= channel < CHANNELS:
        message = f"A channel is a number from 0 to {CHANNELS - 1}, not {channel}."
        raise UsageError(message)
    fingerprint = zlib.crc32(repr(meaning).encode()) >> (32 - _FINGERPRINT_BITS)
    return (kind << _CHANNEL_BITS | channel) << _FINGERPRINT_BITS | fingerprint


class GuardedWork:
    """An operation of torch.distributed under way, waited for through a guard.

    `peer` is None for collectives. One that fails aborts the communicator, because members that do
    not talk to the lost worker wait for this one.
    """

    __slots__ = ("_done", "_guard", "_peer", "_what", "_work")

    def __init__(self, guard: Guard, work: Work, peer: int | None, what: str) -> None:
        self._guard = guard
        self._work = work
        self._peer = peer
        self._what = what
        self._done = False

    def wait(self) -> None:
        """Block until done; later calls return at once. Raises as `Guard.wait` does."""
        if self._done:
            return
        try:
            self._guard.wait(self._work, peer=self._peer, what=self._what)
        except WorkerLost as lost:
            if self._peer is None:
                self._guard.abort(lost)
            raise
        self._done = True


class Messages:
    """Sends and receives contiguous host tensors of `group` under `guard`."""

    def __init__(self, group: ProcessGroup, guard: Guard) -> None:
        self._group = group
        self._guard = guard

    def send(self, tensor: Tensor, destination: int, tag: int, what: str) -> GuardedWork:
        """Start sending `tensor`."""
        start = self._guard.start
        work = start(self._group.send, [tensor], destination, tag, peer=destination, what=what)
        return GuardedWork(self._guard, work, destination, what)

    def receive(self, tensor: Tensor, source: int, tag: int, what: str) -> GuardedWork:
        """Start receiving into `tensor`."""
        work = self._guard.start(self._group.recv, [tensor], source, tag, peer=source, what=what)
        return GuardedWork(self._guard, work, source, what)

    def receive_any(self, tensor: Tensor, tag: int, what: str) -> int:
        """Receive into `tensor` from the rank that sends first; return that rank.

        Has no deadline: a server may be idle for as long as its job evaluates. That some worker is
        gone does not end it either: another one may send.
        """
        work = self._guard.start(self._group.recv_anysource, [tensor], tag, peer=None, what=what)
        self._guard.wait_idly(work, what)
        return source_of(work)


class GlooConnections:
    """The connections of a gloo group: a ProcessGroup or a Backend, which share no type in torch.

    gloo has no call to close one or to ask after one, so both are done by waiting for, or asking
    for, a message that nobody sends.
    """

    def __init__(self, group: Any) -> None:
        self._group = group
        self._others = [rank for rank in range(group.size()) if rank != group.rank()]

    def close(self) -> None:
        """Close all, so that blocked waits end. gloo does so when a wait times out, and only then.

        With a peer whose connection is broken already, waiting fails and closes nothing.
        """
        for peer in self._others:
            try:
                self._ask(peer).wait(timedelta(milliseconds=1))
            except RuntimeError as failure:
                if classify(str(failure)) is Failure.TIMED_OUT:
                    return

    def find_broken(self, peer: int | None) -> tuple[int, str] | None:
        """Return a broken one's rank and torch's words, of `peer` or (None) of anyone; or None.

        Each call leaves about a hundred bytes behind for each connection that is well.
        """
        for other in self._others if peer is None else [peer]:
            try:
                self._ask(other)
            except RuntimeError as failure:
                return other, str(failure)
        return None

    def _ask(self, peer: int) -> Work:
        work: Work = self._group.recv([torch.empty(1, device=HOST)], peer, _UNUSED_TAG)
        return work
