"""Control packets waiting to go out. Every one is repeated if it gets lost, so a full queue drops.

READY, PROBE, BITMAP and STOP are idempotent: they say how things stand, not what has changed.
"""

from __future__ import annotations

from shoal.compiled import U8, compiled, rows_at
from shoal.transport.tables import Counter, State

_DROPPED = int(Counter.CONTROL_DROPPED)


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
    if core.control_tail - core.control_head >= state.control.size:
        state.counters[peer, _DROPPED] += 1
        return
    row = state.control[core.control_tail % state.control.size]
    row.kind, row.peer, row.stream, row.iteration = kind, peer, stream, iteration
    row.message, row.bits = message, bits
    if bits > 0:
        words = rows_at(bitmap, (bits + 63) // 64, U8)
        for index in range(words.size):
            row.bitmap[index] = words[index]
    core.control_tail += 1


@compiled
def queue_feedback(state: State, peer: int, kind: int) -> None:
    """Queue a feedback block to `peer`, once however often it is asked for."""
    if state.peers[peer].feedback_due == 0:
        state.peers[peer].feedback_due = 1
        queue_control(state, kind, peer, 0, 0, 0, 0, 0)
