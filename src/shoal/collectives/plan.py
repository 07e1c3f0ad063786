"""A mean over a group as a program for each member: what to send, receive and add, in which order.

Owns the steps a plan is made of and what an executor owes to each. Knows no array, no network and
no rank: peers are positions in the group; data are ranges of elements, called pieces here and never
empty. One file per algorithm makes plans; `carriers.exchange` carries them out over
torch.distributed, the tests over plain lists.

The operation is the partial all-reduce of Ripples (docs/papers.md, 3.2): every member ends
with the same mean, and no one outside the group takes part.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from shoal.collectives.sharding import split_evenly


class Phase(IntEnum):
    """The two conversations that messages belong to. Each is in order between two members."""

    REDUCE = 1
    """Contributions on their way to the sum."""

    GATHER = 2
    """The finished means on their way to everyone."""


@dataclass(frozen=True, slots=True)
class Send:
    """Start sending the buffer's `piece` to `peer`; it must not be overwritten before it is out."""

    piece: range
    peer: int
    phase: Phase


@dataclass(frozen=True, slots=True)
class Fetch:
    """Start receiving `peer`'s contribution to `piece` into scratch slot `slot`."""

    piece: range
    peer: int
    slot: int


@dataclass(frozen=True, slots=True)
class Fill:
    """Start receiving the finished `piece` from `peer` straight into the buffer.

    May be issued while the old content of `piece` is still being sent: whoever finishes the piece
    can only do so with that content in hand, so the new one cannot arrive earlier.
    """

    piece: range
    peer: int


@dataclass(frozen=True, slots=True)
class Combine:
    """Wait for the fetches of `piece` into the slots, then add them and the buffer's `piece`.

    A member combines a piece once; it adds in the order of members.
    """

    piece: range
    sources: tuple[tuple[int, int], ...]
    """The (peer, slot) of each."""

    finish: bool
    """Whether this completes the sum: divide it, so that the piece holds the mean."""


@dataclass(frozen=True, slots=True)
class AwaitSend:
    """Wait until everything started from `piece` is out."""

    piece: range


@dataclass(frozen=True, slots=True)
class AwaitFill:
    """Wait until `piece` has been received in place."""

    piece: range


Step: TypeAlias = Send | Fetch | Fill | Combine | AwaitSend | AwaitFill


@dataclass(frozen=True, slots=True)
class Plan:
    """The program of one member. What is still under way after the last step must be waited for."""

    steps: tuple[Step, ...]
    """The steps in the order of execution."""

    slots: int
    """Number of scratch slots."""

    slot_length: int
    """Elements in a slot: the longest piece fetched."""


def shards(length: int, size: int, piece_length: int) -> tuple[tuple[range, ...], ...]:
    """Cut `length` elements into one shard per member, and each shard into as many pieces.

    Entry [i][k] is piece k of member i's shard: `piece_length` elements at most, and none if there
    are too few for everyone. The first piece of all is the longest.
    """
    pieces = max(1, -(-length // (size * piece_length)))
    return tuple(
        tuple(shard[part.start : part.stop] for part in split_evenly(len(shard), pieces))
        for shard in split_evenly(length, size)
    )
