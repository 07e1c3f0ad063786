"""Packets through ports and links in virtual time, a window at a time: no heap, no departures.

What a port sends at time t is nowhere else before t + W, W being the smallest delay of a link and
the smallest packet's time on it. So arrivals up to W after a time at which all ports have been
served are known; they are taken in the order of events, and the port of each is served only then,
up to the arrival. Results are those of `switching.network`, to the bit: the same decisions on the
same numbers in the same order wherever order matters. Owns no decision of a port, link or route.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from numpy import uint64

from shoal.compiled import compiled, inlined
from shoal.sim.packet.calendar import gather, move, next_bucket, push
from shoal.sim.packet.window_tables import Problem
from shoal.switching import (
    NEVER,
    QUEUES,
    arrive,
    count_delivery,
    fill_row,
    leave,
    limit_reached,
    mixed,
    onward,
    pass_through,
    serve,
)

if TYPE_CHECKING:
    from shoal.sim.packet.window_tables import Window
    from shoal.switching import State

NONE, FULL, SMALL, PAST = (int(each) for each in Problem)
NOBODY: Final = -1
"""The result in place of a row if nothing is due in the time given. Also the owner of an unclaimed
packet."""


@inlined
def inject(
    state: State,
    window: Window,
    row: int,
    port: int,
    at: int,
    size: int,
    destination: int,
    flow: uint64,
    queue: int,
    ecn: int,
) -> int:
    """Let the packet in `row`, which `take_row` gave, arrive at `port` at the time `at`.

    At any time from now on, in any order; also while something is being reacted to. Returns a
    `Problem`; the row stays free to use if there is one.
    """
    clock = window.clock[0]
    if row < 0:
        return FULL
    if size < clock.least_size:
        return SMALL
    if at < clock.now:
        return PAST
    fill_row(state, row, size, destination, flow, queue, ecn)
    state.packets[row].begun, state.packets[row].owner = at, NOBODY
    push(state, window, row, at, port)
    return NONE


@inlined
def next_due(state: State, window: Window, until: int) -> int:
    """Let everything happen up to and with the next delivery or timer; return its row.

    A packet's row is its host's now (`free_row`); a timer is a row of size 0. `at` and `place` of
    the row say when and where. Until it is called again, whatever a host does about it at that time
    or later can be put in (`inject`, `push`). Returns `NOBODY` if nothing is due at `until` or
    before: then that time has passed.
    """
    clock = window.clock[0]
    while True:
        if clock.first == clock.last:
            if not _turn(state, window, until):
                break
            continue
        entry = window.due[clock.first]
        at, place, row = int(entry.at), int(entry.place), int(entry.row)
        if at > until:
            _serve_all(state, window, until)
            break
        clock.first += 1
        clock.now = at
        if state.packets[row].size == 0:
            return row
        if place >= len(state.ports):
            count_delivery(state, row)
            number = uint64(state.packets[row].number)
            clock.digest = mixed(clock.digest + mixed(number) + uint64(at))
            return row
        _arrive(state, window, place, row, at)
    _pass_time(state, window, until)
    return NOBODY


@compiled
def advance(state: State, window: Window, until: int) -> None:
    """Let everything happen that is due up to `until`, itself included, where there are no timers.

    What is delivered waits in `delivered`; `at` of its row says since when.
    """
    network = state.network[0]
    while True:
        row = next_due(state, window, until)
        if row == NOBODY:
            break
        state.delivered[network.waiting] = row
        network.waiting += 1


@inlined
def backlog(state: State, window: Window, number: int, at: int) -> int:
    """Return the bytes that wait at port `number` at the time `at`, when something is due.

    What is put in at that very time is not there yet.
    """
    _serve(state, window, number, at)
    return int(state.ports[number].bytes)


@compiled
def take_over(state: State, window: Window, other: Window) -> None:
    """Let `other`, made anew for what links are like now, go on where `window` is."""
    clock, after = window.clock[0], other.clock[0]
    after.now, after.served, after.digest = clock.now, clock.served, clock.digest
    after.cursor = clock.now >> after.shift
    after.busy = clock.busy
    for index in range(clock.busy):
        other.busy[index] = window.busy[index]
    move(state, window, other)


@inlined
def _pass_time(state: State, window: Window, until: int) -> None:
    """Let it be `until`, or if that is `NEVER`, when the last thing happened."""
    clock = window.clock[0]
    clock.now = max(clock.now, clock.served if until == NEVER else until)
    clock.cursor = max(clock.cursor, clock.now >> clock.shift)
    state.network[0].now = clock.now


@inlined
def _turn(state: State, window: Window, until: int) -> bool:
    """Get the next bucket, or serve ports for a while; return False if `until` has passed.

    A bucket is due if all that can arrive in it has been sent.
    """
    clock = window.clock[0]
    bucket = next_bucket(window)
    start = bucket << clock.shift if bucket < NEVER else NEVER
    if clock.busy == 0:
        if start > until or bucket == NEVER:
            return False
        clock.served = max(clock.served, start)
    sure = clock.served + clock.lookahead
    last = min(until, sure - (1 << clock.shift) + 1) >> clock.shift
    if bucket <= last:
        gather(state, window, bucket, last)
        return True
    if clock.served >= until:
        return False
    _serve_all(state, window, min(sure, start, until))
    return True


@compiled
def _serve_all(state: State, window: Window, until: int) -> None:
    """Let every port send what it can up to `until`: all that arrives before then has arrived."""
    clock, kept = window.clock[0], 0
    for index in range(clock.busy):
        number = int(window.busy[index])
        _serve(state, window, number, until)
        port = state.ports[number]
        if port.busy:
            window.busy[kept] = number
            kept += 1
        else:
            port.scheduled = 0
    clock.busy = kept
    clock.served = max(clock.served, until)


@inlined
def _serve(state: State, window: Window, number: int, until: int) -> None:
    """Let the link of port `number` take what waits, each as soon as it is free, up to `until`."""
    port = state.ports[number]
    while port.busy and port.free_at <= until:
        _send(state, window, number, port.free_at)


@inlined
def _send(state: State, window: Window, number: int, start: int) -> None:
    """Let the idle link of port `number`, where something waits, take it at `start`."""
    _send_on(state, window, number, serve(state, number, start))


@inlined
def _send_on(state: State, window: Window, number: int, row: int) -> None:
    """Let what the link of port `number` has taken last go on to where the link leads."""
    arrival, place = onward(state, number, row)
    if place >= 0:
        push(state, window, row, arrival, place)


@inlined
def _arrive(state: State, window: Window, number: int, row: int, at: int) -> None:
    port = state.ports[number]
    _serve(state, window, number, at)
    if port.buffer >= 0 and not _is_sure_of_room(state, number, row):
        for index in range(
            window.first_sharers[port.buffer], window.first_sharers[port.buffer + 1]
        ):
            _serve(state, window, window.sharers[index], at)
    if port.free_at <= at:
        if pass_through(state, number, row, at):
            _send_on(state, window, number, row)
        else:
            leave(state, row)
    elif not arrive(state, number, row, at):
        leave(state, row)
    elif port.scheduled == 0:
        port.scheduled = 1
        clock = window.clock[0]
        window.busy[clock.busy] = number
        clock.busy += 1


@inlined
def _is_sure_of_room(state: State, number: int, row: int) -> bool:
    """Return whether a packet gets in even if no other port has sent anything lately.

    What others have sent meanwhile only makes room. A byte more is asked for because thresholds are
    right to the byte only (`share_of`).
    """
    packet, port = state.packets[row], state.ports[number]
    queue = state.queues[number * QUEUES + packet.queue]
    return bool(limit_reached(state, port, queue, packet.size + 1) == 0)
