"""What time alone brings about: questions asked again, answers that were held back, READYs.

Every wait for another rank's packet has a timer here, so the loss of any packet is repaired; the
waits come from the round trips that have been seen, not from a constant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.compiled import I4, I8, compiled, rows_at
from shoal.transport.agreement import say_ready_to
from shoal.transport.control_queue import queue_control
from shoal.transport.enough import answer
from shoal.transport.operations import outgoing_at, schedule_probe, slot_of
from shoal.transport.round_trips import LARGEST_WAIT_US, answer_wait, credit_wait
from shoal.transport.tables import EXPECTED, INCOMING, NEVER, OUTGOING, Counter, State
from shoal.transport.wire import CREDIT_PROBE, PROBE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_PROBES = int(Counter.PROBES)

_MOST_PROBES: Final = 64
"""The most credit probes that are counted: waits have long stopped growing."""


@compiled
def on_timer(state: State, now: int) -> None:
    """Do what is due at `now` and set `timer_at` to when the next thing will be."""
    core = state.core[0]
    following = NEVER
    for slot in range(state.operations.size):
        operation = state.operations[slot]
        if operation.active:
            if operation.due_at <= now:
                operation.due_at = NEVER
                outgoing = _outgoing_timers(state, slot, now)
                incoming = _incoming_timers(state, slot, now)
                operation.due_at = min(int(operation.due_at), outgoing, incoming)
            following = min(following, operation.due_at)
            if operation.active:
                following = min(following, _ready_timer(state, slot, now))
    for rank in range(state.peers.size):
        peer = state.peers[rank]
        if peer.queue >= 0 and not peer.lost:
            if peer.credit_probe_at <= now:
                _probe_credit(state, rank, now)
            following = min(following, peer.credit_probe_at)
    core.timer_at = following


@compiled
def _probe_credit(state: State, rank: int, now: int) -> None:
    """Ask whether to go on with the first message in the queue, in case an answer got lost."""
    peer = state.peers[rank]
    row = outgoing_at(state, peer.queue)
    operation = state.operations[slot_of(peer.queue)]
    queue_control(
        state, CREDIT_PROBE, rank, operation.stream, operation.iteration, row.message, 0, 0
    )
    peer.credit_probes = min(peer.credit_probes + 1, _MOST_PROBES)
    peer.credit_probe_at = now + credit_wait(state.core[0], peer, int(peer.credit_probes))


@compiled
def _outgoing_timers(state: State, slot: int, now: int) -> int:
    operation = state.operations[slot]
    times = rows_at(operation.probe_times, operation.outgoing_count, I8)
    following = _earliest(times)
    if following > now:
        return following
    following = NEVER
    for index in range(operation.outgoing_count):
        if times[index] <= now:
            _ask(state, slot, index, now)
        following = min(following, times[index])
    return following


@compiled
def _ask(state: State, slot: int, index: int, now: int) -> None:
    """Ask once more what is missing of an outgoing message."""
    operation = state.operations[slot]
    row = rows_at(operation.outgoing, operation.outgoing_count, OUTGOING)[index]
    row.probes += 1
    schedule_probe(operation, index, now + answer_wait(state.peers[row.peer], row))
    state.counters[row.peer, _PROBES] += 1
    queue_control(state, PROBE, row.peer, operation.stream, operation.iteration, row.message, 0, 0)


@compiled
def _incoming_timers(state: State, slot: int, now: int) -> int:
    operation = state.operations[slot]
    times = rows_at(operation.answer_times, operation.incoming_count, I8)
    following = _earliest(times)
    if following > now:
        return following
    following = NEVER
    for index in range(operation.incoming_count):
        if times[index] <= now:
            answer(state, slot, index)
        following = min(following, times[index])
    return following


@compiled
def _earliest(times: NDArray[np.int64]) -> int:
    """Return the least of `times`, or NEVER; nothing else, so that it is one pass over memory."""
    earliest = NEVER
    for time in times:
        earliest = min(earliest, time)
    return earliest


@compiled
def _ready_timer(state: State, slot: int, now: int) -> int:
    """Repeat READY to the peers that owe something and from which nothing has been heard."""
    operation = state.operations[slot]
    if operation.ready_at > now:
        return operation.ready_at
    rows = rows_at(operation.incoming, operation.incoming_count, INCOMING)
    starts = rows_at(operation.incoming_starts, state.peers.size + 1, I4)
    waiting = False
    for rank in range(state.peers.size):
        heard, owes = False, False
        for index in range(starts[rank], starts[rank + 1]):
            heard = heard or rows[index].first_at != 0
            owes = owes or rows[index].state == EXPECTED
        if owes and not heard:
            waiting = True
            say_ready_to(state, slot, rank)
    if not waiting:
        operation.ready_at = NEVER
        return NEVER
    operation.ready_wait = min(operation.ready_wait * 2, LARGEST_WAIT_US)
    operation.ready_at = now + operation.ready_wait
    return operation.ready_at
