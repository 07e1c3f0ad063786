"""Whether two ranks mean the same by an operation: a number that each makes of what it is there.

A READY bears the receiver's, and nothing is sent for it unless the sender's is the same: ranks that
call different collectives, or sum arrays of other lengths or types, would wait for each other or
add up what does not belong together. The operation ends with an error on both instead. What it was
here is remembered beside the early READYs: a receiver that the MISFIT has not reached says READY
again, and gets another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.compiled import I4, compiled, rows_at
from shoal.transport.control_queue import queue_agreement
from shoal.transport.recent_keys import place_of, remember
from shoal.transport.tables import INCOMING, OUTGOING, Counter, Row, State
from shoal.transport.wire import MISFIT, READY

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_MISFITS = int(Counter.MISFITS)


@compiled
def agreement_of_incoming(operation: Row, rank: int) -> int:
    """Return what this operation is here, to `rank` as its sender."""
    rows = rows_at(operation.incoming, operation.incoming_count, INCOMING)
    return _agreement(operation, rows, int(operation.incoming_starts), rank)


@compiled
def agreement_of_outgoing(operation: Row, rank: int) -> int:
    """Return what this operation is here, to `rank` as its receiver."""
    rows = rows_at(operation.outgoing, operation.outgoing_count, OUTGOING)
    return _agreement(operation, rows, int(operation.outgoing_starts), rank)


@compiled
def _agreement(operation: Row, rows: NDArray[np.void], starts: int, rank: int) -> int:
    """Return a hash of the bytes between two ranks, their messages and what else is agreed on.

    Those with `rank` are some of `rows`; `starts` is the address of where each rank's begin.
    """
    first, end = rows_at(starts, rank + 2, I4)[rank : rank + 2]
    size = 0
    for index in range(first, end):
        size += rows[index].size
    mixed = (int(size) * 0x9E3779B1 + int(end - first) * 0x85EBCA6B) & 0xFFFFFFFF
    return int(operation.agreed) ^ mixed


@compiled
def say_ready_to(state: State, slot: int, rank: int) -> None:
    """Tell `rank` that its messages of an operation may come, and what the operation is here."""
    operation = state.operations[slot]
    agreement = agreement_of_incoming(operation, rank)
    queue_agreement(state, READY, rank, operation.stream, operation.iteration, agreement)


@compiled
def agree_with(state: State, slot: int, rank: int, agreement: int) -> bool:
    """Tell both if `rank`, which is READY, means another operation; return whether it does not."""
    operation = state.operations[slot]
    mine = agreement_of_outgoing(operation, rank)
    if agreement == mine:
        return True
    queue_agreement(state, MISFIT, rank, operation.stream, operation.iteration, agreement)
    note_misfit(state, slot, rank)
    return False


@compiled
def note_misfit(state: State, slot: int, rank: int) -> None:
    """Note that `rank` means something else by an operation, and tell the caller that waits."""
    state.counters[rank, _MISFITS] += 1
    operation = state.operations[slot]
    if operation.misfit != 0:
        return
    operation.misfit = rank + 1
    core = state.core[0]
    state.events[core.event_tail % state.events.size] = slot
    core.event_tail += 1


@compiled
def _refused(rank: int) -> int:
    """Return what stands for `rank` in the list of early READYs with an operation that it had not.

    Ranks themselves are not negative, and free places have -1.
    """
    return -2 - rank


@compiled
def keep_refusals(state: State, slot: int) -> None:
    """Remember what an operation that ends by a misfit was here, to each of its receivers."""
    operation = state.operations[slot]
    rows = rows_at(operation.outgoing, operation.outgoing_count, OUTGOING)
    previous = -1
    for index in range(operation.outgoing_count):
        rank = int(rows[index].peer)
        if rank != previous:
            previous = rank
            agreement = agreement_of_outgoing(operation, rank)
            remember(state.early, _refused(rank), operation.stream, operation.iteration, agreement)


@compiled
def refuse_again(state: State, rank: int, stream: int, iteration: int, agreement: int) -> bool:
    """Tell `rank`, which is READY, if it means another operation than one that ended by a misfit.

    Return whether it does.
    """
    place = place_of(state.early, _refused(rank), stream, iteration)
    if place < 0 or int(state.early[place].agreement) == agreement:
        return False
    queue_agreement(state, MISFIT, rank, stream, iteration, agreement)
    return True
