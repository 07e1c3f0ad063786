"""Control packets waiting to go out. Every one is repeated if it gets lost, so a full queue drops.

READY, PROBE, BITMAP, STOP and MISFIT are idempotent: they say how things stand, not what has
changed. What a STOP said was missing is remembered here after its operation has finished, because
then it may have to be said again and the operation's bitmaps are gone.
"""

from __future__ import annotations

from typing import Final

from shoal.compiled import U8, compiled, inlined, rows_at
from shoal.transport.recent_keys import first_place
from shoal.transport.tables import CONTROL, Counter, Row, State

_DROPPED = int(Counter.CONTROL_DROPPED)
_BITMAP_AT: Final = int(CONTROL.fields["bitmap"][1])  # type: ignore[index]
_ROW_BYTES: Final = CONTROL.itemsize
_WAYS: Final = 4


@compiled
def queue_slots(state: State) -> int:
    """Return how many rows of `state.control` are the queue; the others remember STOPs."""
    return state.control.size // 2


@compiled
def queue_control(
    state: State,
    kind: int,
    peer: int,
    stream: int,
    iteration: int,
    message: int,
    bitmap: int,
    bits: int,
) -> None:
    """Queue a control packet to `peer`; `bitmap` is the address of `bits` bits to append."""
    core = state.core[0]
    if core.control_tail - core.control_head >= queue_slots(state):
        state.counters[peer, _DROPPED] += 1
        return
    row = state.control[core.control_tail % queue_slots(state)]
    row.kind = kind
    _fill(row, peer, stream, iteration, message, bitmap, bits)
    core.control_tail += 1
    state.peers[peer].feedback_due = 1


@compiled
def queue_agreement(
    state: State, kind: int, peer: int, stream: int, iteration: int, agreement: int
) -> None:
    """Queue a READY or a MISFIT, which say what an operation is here."""
    tail = state.core[0].control_tail
    queue_control(state, kind, peer, stream, iteration, 0, 0, 0)
    if state.core[0].control_tail > tail:
        state.control[tail % queue_slots(state)].agreement = agreement


@compiled
def _fill(
    row: Row, peer: int, stream: int, iteration: int, message: int, bitmap: int, bits: int
) -> None:
    row.peer, row.stream, row.iteration = peer, stream, iteration
    row.message, row.bits, row.agreement = message, bits, 0
    if bits > 0:
        words = rows_at(bitmap, (bits + 63) // 64, U8)
        for index in range(words.size):
            row.bitmap[index] = words[index]


@inlined
def queue_feedback(state: State, peer: int, kind: int) -> None:
    """Queue a feedback block to `peer`, unless a packet is waiting that will take it along."""
    if state.peers[peer].feedback_due == 0:
        queue_control(state, kind, peer, 0, 0, 0, 0, 0)


# ---- what was missing ---------------------------------------------------------------------------


@compiled
def _first_remembered(state: State, peer: int, stream: int, iteration: int, message: int) -> int:
    """Return where the set of places for a message's STOP starts."""
    queue = queue_slots(state)
    sets = (state.control.size - queue) // _WAYS
    return queue + first_place(peer, stream, message, iteration, sets, _WAYS)


@compiled
def _remembered(state: State, peer: int, stream: int, iteration: int, message: int) -> int:
    """Return the place of a message's STOP, or -1."""
    first = _first_remembered(state, peer, stream, iteration, message)
    for place in range(first, first + _WAYS):
        row = state.control[place]
        same = row.iteration == iteration and row.stream == stream
        if row.bits > 0 and same and row.peer == peer and row.message == message:
            return place
    return -1


@compiled
def remember_stop(
    state: State, peer: int, stream: int, iteration: int, message: int, bitmap: int, bits: int
) -> None:
    """Keep what a STOP to `peer` says is missing, at the cost of the oldest of its set."""
    if _remembered(state, peer, stream, iteration, message) >= 0:
        return
    first = _first_remembered(state, peer, stream, iteration, message)
    for place in range(first + _WAYS - 1, first, -1):
        state.control[place] = state.control[place - 1]
    _fill(state.control[first], peer, stream, iteration, message, bitmap, bits)


@compiled
def queue_stop_again(
    state: State, kind: int, peer: int, stream: int, iteration: int, message: int
) -> None:
    """Queue the STOP of a message whose operation has finished, as it was the first time."""
    place = _remembered(state, peer, stream, iteration, message)
    bitmap, bits = 0, 0
    if place >= 0:
        bitmap = state.control.ctypes.data + place * _ROW_BYTES + _BITMAP_AT
        bits = int(state.control[place].bits)
    queue_control(state, kind, peer, stream, iteration, message, bitmap, bits)
