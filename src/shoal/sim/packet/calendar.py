"""Arrivals by their time: a ring of buckets, and the bucket under the cursor in order.

A bucket is a linked list through the rows of what it holds, packets and timers; only when its turn
comes is it sorted. What lies beyond the ring waits in a list, and moves over when the cursor is
near. The order is that of `switching.network`: time, place, number; timers, whose numbers are
`TIMER` and up, come after packets at the same time and place. (A calendar queue: Brown, CACM 1988.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from numpy import uint64

from shoal.compiled import compiled, inlined, lowest_bit, prefetch
from shoal.switching import COLORS, NEVER, QUEUES, Count

if TYPE_CHECKING:
    from shoal.sim.packet.window_tables import Window
    from shoal.switching import Row, State

_COUNTS: Final = COLORS * len(Count)
_TOGETHER: Final = 8
"""Entries that are gathered at a time: by the last one's turn, what it needs has been fetched."""
_WORD: Final = 64
"""Buckets that a word of `filled` stands for."""
_FEW: Final = 32
"""Entries that are sorted by insertion; more, by a heap."""


@inlined
def push(state: State, window: Window, row: int, at: int, place: int) -> None:
    """Let `row`, a packet's or a timer's, be due at the time `at`, not before what is due now."""
    clock, packet = window.clock[0], state.packets[row]
    packet.at, packet.place = at, place
    bucket = at >> clock.shift
    if bucket <= clock.cursor:
        _insert(state, window, row, at, place)
    elif bucket < clock.cursor + len(window.heads):
        _link(state, window, row, bucket)
    else:
        packet.next = clock.far
        clock.far = row
        clock.far_least = min(clock.far_least, bucket)


@inlined
def next_bucket(window: Window) -> int:
    """Return the first bucket after the cursor's with something in it; `NEVER`: all are empty."""
    clock, words = window.clock[0], len(window.filled)
    begin = clock.cursor + 1
    slot = _slot_of(window, begin)
    word, below = slot >> uint64(6), slot & uint64(63)
    bits = window.filled[word] >> below
    if bits != uint64(0):
        return min(begin + lowest_bit(bits), clock.far_least)
    begin += _WORD - int(below)
    for _ in range(words):
        word = (word + uint64(1)) & uint64(words - 1)
        bits = window.filled[word]
        if bits != uint64(0):
            return min(begin + lowest_bit(bits), clock.far_least)
        begin += _WORD
    return int(clock.far_least)


@inlined
def gather(state: State, window: Window, bucket: int, last: int) -> None:
    """Sort what `bucket`, the next one, and some up to `last` hold into `due`, now empty.

    The cursor moves to the last of them.
    """
    clock = window.clock[0]
    clock.cursor = bucket
    if bucket >= clock.far_least:
        _fetch_far(state, window)
    slot = _slot_of(window, bucket)
    word, below = slot >> uint64(6), slot & uint64(63)
    base, filled = bucket - int(below), window.filled[word]
    bits = filled & (~uint64(0) << below)
    room = min(last, clock.far_least - 1) - base
    if room < _WORD - 1:
        bits &= (uint64(2) << uint64(room)) - uint64(1)
    _expect_rows(state, window, (word + uint64(1)) & uint64(len(window.filled) - 1))
    count = 0
    while bits != uint64(0) and count < _TOGETHER:
        place = lowest_bit(bits)
        bits &= bits - uint64(1)
        filled &= ~(uint64(1) << uint64(place))
        clock.cursor = base + place
        count = _take(state, window, base + place, count)
    window.filled[word] = filled
    clock.first, clock.last = 0, count
    if count > _FEW:
        _sort_many(state, window, count)
    elif count > 1:
        _sort_few(state, window, count)


@inlined
def _take(state: State, window: Window, bucket: int, count: int) -> int:
    """Empty a bucket into `due` behind the first `count` entries; return how many there are now."""
    slot = _slot_of(window, bucket)
    row = int(window.heads[slot])
    window.heads[slot] = -1
    while row >= 0:
        packet, entry = state.packets[row], window.due[count]
        entry.at, entry.place, entry.row = packet.at, packet.place, row
        count += 1
        row = int(packet.next)
        if entry.place < len(state.ports):
            _expect(state, entry.place, packet.queue)
    return count


@inlined
def _expect_rows(state: State, window: Window, word: uint64) -> None:
    """Let the processor fetch the first rows of the buckets that a word of `filled` stands for."""
    bits, slot = window.filled[word], word << uint64(6)
    while bits != uint64(0):
        prefetch(state.packets, window.heads[slot + uint64(lowest_bit(bits))])
        bits &= bits - uint64(1)


@inlined
def first_of(window: Window, bucket: int) -> int:
    """Return a row that is due in a bucket that the ring has room for; -1 if none is known yet."""
    return int(window.heads[_slot_of(window, bucket)])


@inlined
def _expect(state: State, port: int, queue: int) -> None:
    """Let the processor fetch what an arrival at `port` is going to need."""
    index = port * QUEUES + queue
    prefetch(state.ports, port)
    prefetch(state.queues, index)
    prefetch(state.profiles, index * COLORS)
    prefetch(state.links, port)
    prefetch(state.counts, index * _COUNTS)


@compiled
def move(state: State, window: Window, other: Window) -> None:
    """Push everything that is to come in `window` into `other`, which is empty."""
    clock = window.clock[0]
    for index in range(clock.first, clock.last):
        entry = window.due[index]
        push(state, other, entry.row, entry.at, entry.place)
    for slot in range(len(window.heads)):
        _move_list(state, window.heads[slot], other)
    _move_list(state, clock.far, other)


@compiled
def _move_list(state: State, row: int, other: Window) -> None:
    while row >= 0:
        packet = state.packets[row]
        after = int(packet.next)
        push(state, other, row, packet.at, packet.place)
        row = after


@inlined
def _slot_of(window: Window, bucket: int) -> uint64:
    """Return where a bucket that the ring has room for stands in it."""
    return uint64(bucket) & uint64(len(window.heads) - 1)


@inlined
def _link(state: State, window: Window, row: int, bucket: int) -> None:
    slot = _slot_of(window, bucket)
    state.packets[row].next = window.heads[slot]
    window.heads[slot] = row
    window.filled[slot >> uint64(6)] |= uint64(1) << (slot & uint64(63))


@compiled
def _fetch_far(state: State, window: Window) -> None:
    """Link what the ring spans now; called once for as much time as the ring spans."""
    clock = window.clock[0]
    row, end = int(clock.far), clock.cursor + len(window.heads)
    clock.far, clock.far_least = -1, NEVER
    while row >= 0:
        packet = state.packets[row]
        after, bucket = int(packet.next), packet.at >> clock.shift
        if bucket < end:
            _link(state, window, row, bucket)
        else:
            packet.next = clock.far
            clock.far = row
            clock.far_least = min(clock.far_least, bucket)
        row = after


@inlined
def _insert(state: State, window: Window, row: int, at: int, place: int) -> None:
    """Put `row` among those in `due` that are still to come.

    Mostly before all of them: what a host sends now is due now.
    """
    clock, due = window.clock[0], window.due
    if 0 < clock.first < clock.last and _is_before(state, at, place, row, due[clock.first]):
        clock.first -= 1
        entry = due[clock.first]
        entry.at, entry.place, entry.row = at, place, row
        return
    if clock.last == len(due):  # what is past makes room
        for index in range(clock.first, clock.last):
            due[index - clock.first] = due[index]
        clock.last -= clock.first
        clock.first = 0
    index = int(clock.last)
    clock.last += 1
    while index > clock.first and _is_before(state, at, place, row, due[index - 1]):
        due[index] = due[index - 1]
        index -= 1
    entry = due[index]
    entry.at, entry.place, entry.row = at, place, row


@inlined
def _sort_few(state: State, window: Window, count: int) -> None:
    due = window.due
    for start in range(1, count):
        at, place, row = int(due[start].at), int(due[start].place), int(due[start].row)
        index = start
        while index > 0 and _is_before(state, at, place, row, due[index - 1]):
            due[index] = due[index - 1]
            index -= 1
        entry = due[index]
        entry.at, entry.place, entry.row = at, place, row


@compiled
def _sort_many(state: State, window: Window, count: int) -> None:
    """Sort by a heap: many packets at the very same time take no longer than others."""
    due = window.due
    for start in range(count // 2 - 1, -1, -1):
        entry = due[start]
        _sink(state, window, int(entry.at), int(entry.place), int(entry.row), start, count)
    for last in range(count - 1, 0, -1):
        at, place, row = int(due[last].at), int(due[last].place), int(due[last].row)
        due[last] = due[0]
        _sink(state, window, at, place, row, 0, last)


@compiled
def _sink(
    state: State, window: Window, at: int, place: int, row: int, index: int, count: int
) -> None:
    """Put an entry in at `index` of a heap of `count` whose root is the last in order, or below."""
    due = window.due
    while True:
        below = 2 * index + 1
        if below >= count:
            break
        if below + 1 < count:
            left = due[below]
            if _is_before(state, left.at, left.place, left.row, due[below + 1]):
                below += 1
        if not _is_before(state, at, place, row, due[below]):
            break
        due[index] = due[below]
        index = below
    entry = due[index]
    entry.at, entry.place, entry.row = at, place, row


@inlined
def _is_before(state: State, at: int, place: int, row: int, other: Row) -> bool:
    """Return whether an event comes before another."""
    if at != other.at:
        return at < other.at
    if place != other.place:
        return place < other.place
    return bool(state.packets[row].number < state.packets[other.row].number)
