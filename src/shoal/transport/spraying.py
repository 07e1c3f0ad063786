"""Chooses the path of the next packets: one after another, without those that lose packets.

Every packet may take any path (docs/papers.md, 1.7). Some packets in a row go the same way, which
makes a turn. A receiver's answer says which segments are missing, and so which turns lost
something. A path that stands out among the others is left alone for a while, for each peer by
itself (ours; REPS, which gets an answer to each packet, takes paths again that worked). Where all
paths lose alike, as at the receiver's port, all are used.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy import uint64

from shoal.compiled import I4, compiled, rows_at
from shoal.transport.bitmap import next_bit
from shoal.transport.tables import Counter

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shoal.transport.tables import Row, State

PATH: Final = np.dtype(
    [
        ("turns", "<f8"),  # that it had lately
        ("lossy", "<f8"),  # of them, those that lost something
        ("avoided_until", "<i8"),
        ("avoided_for", "<i8"),  # the last time, microseconds; 0: never
        ("last_turn", "<i8"),
        ("noted", "<u8"),  # a bit for each turn that the answer at hand says has lost something
    ],
    align=True,
)
"""What is known of a path to a peer."""

REMEMBERED: Final = 512.0
"""Turns after which those before count half."""

FIRST_US: Final = 1_000_000
LONGEST_US: Final = 60_000_000
"""The time for which a path is avoided when it first stands out, and the longest. It doubles each
time that the path stands out again soon after."""

DEVIATIONS: Final = 5.0
"""The number of standard deviations by which a path's lossy turns must exceed what the better paths
lead to expect. Turns are counted, because packets of one turn get lost together."""

_AVOIDED: Final = int(Counter.AVOIDED)
_PATH_BITS: Final = 20
_TURNS_TOLD_APART: Final = 64
_PATH_BYTES: Final = PATH.itemsize


@compiled
def room_on_path(core: Row, rank: int, room: int, now: int) -> int:
    """Return how many of `room` packets may go together, after choosing the next path if due.

    A turn that has not room for all of them ends: cut in two they would cost two system calls.
    """
    room = min(room, int(core.spray_unit))
    paths = rows_at(_address_of(core, rank), core.paths, PATH)
    if core.path_left < room or paths[core.path].avoided_until > now:
        core.path = usable_path(core, rank, (core.path + 1) % core.paths, now)
        core.path_left = core.spray_unit
        core.path_turn += 1
    return room


@compiled
def usable_path(core: Row, rank: int, first: int, now: int) -> int:
    """Return the first path from `first` on that is not avoided; `first` if all are."""
    paths = rows_at(_address_of(core, rank), core.paths, PATH)
    for step in range(core.paths):
        path = (first + step) % core.paths
        if paths[path].avoided_until <= now:
            return int(path)
    return first


@compiled
def note_turn_of(core: Row, rank: int, packets: int) -> None:
    """Note that `packets` of the current turn go to a peer."""
    if core.paths == 1:
        return
    core.path_left -= packets
    path = rows_at(_address_of(core, rank), core.paths, PATH)[core.path]
    if path.last_turn != core.path_turn:
        path.last_turn = core.path_turn
        path.turns += 1.0
        if path.turns >= REMEMBERED:
            path.turns /= 2.0
            path.lossy /= 2.0


@compiled
def turn_mark(core: Row) -> int:
    """Return what is kept of each segment that goes out: its path, and which turn it had."""
    return int((core.path_turn % _TURNS_TOLD_APART) << _PATH_BITS | core.path)


@compiled
def note_missing(state: State, rank: int, row: Row, now: int) -> None:
    """Note on which paths segments of a message got lost, those in `row.pending`."""
    core = state.core[0]
    if core.paths == 1 or row.marks == 0:
        return
    paths, marks = (
        rows_at(_address_of(core, rank), core.paths, PATH),
        rows_at(row.marks, row.segments, I4),
    )
    for place in range(core.paths):
        paths[place].noted = 0
    segment = next_bit(row.pending, row.segments, 0)
    while segment >= 0:
        path = paths[marks[segment] & ((1 << _PATH_BITS) - 1)]
        turn = uint64(1) << uint64(marks[segment] >> _PATH_BITS)
        if path.noted & turn == uint64(0) and path.avoided_until <= now:
            path.noted |= turn
            path.lossy += 1.0
        segment = next_bit(row.pending, row.segments, segment + 1)
    state.counters[rank, _AVOIDED] += _avoid_outstanding(paths, now)


@compiled
def _avoid_outstanding(paths: NDArray[np.void], now: int) -> int:
    """Avoid the paths on which more turns lost something than on the better ones; return how many.

    The better ones are those that lose no more than all together.
    """
    turns, lossy = 1.0, 0.0
    for place in range(paths.size):
        turns += paths[place].turns
        lossy += paths[place].lossy
    mean = lossy / turns
    turns, lossy = 1.0, 0.5
    for place in range(paths.size):
        if paths[place].lossy <= mean * paths[place].turns:
            turns += paths[place].turns
            lossy += paths[place].lossy
    avoided = 0
    for place in range(paths.size):
        path = paths[place]
        expected = path.turns * lossy / turns
        if path.lossy - expected > DEVIATIONS * sqrt(expected + 1.0):
            _avoid(path, now)
            avoided += 1
    return avoided


@compiled
def _avoid(path: Row, now: int) -> None:
    """Leave a path alone for a while, the longer the sooner it stands out again."""
    is_again = path.avoided_for > 0 and now - path.avoided_until < path.avoided_for
    path.avoided_for = min(2 * path.avoided_for, LONGEST_US) if is_again else FIRST_US
    path.avoided_until = now + path.avoided_for
    path.turns = path.lossy = 0.0


@compiled
def _address_of(core: Row, rank: int) -> int:
    """Return where the rows of the paths to a peer begin."""
    return int(core.paths_at + rank * core.paths * _PATH_BYTES)
