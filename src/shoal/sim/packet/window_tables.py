"""What the window kernel keeps beside the switch's tables: when and where packets arrive next.

Owns the layout of the calendar (a ring of narrow buckets of arrivals), of the list of busy ports
and of the lookahead. Knows nothing of what a port decides.
"""

from __future__ import annotations

from enum import IntEnum, unique
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from shoal.errors import UsageError
from shoal.switching import NEVER, transmission_time

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shoal.switching import State

LEAST_BYTES: Final = 64
"""The size of the smallest packet, in bytes, unless it is said otherwise: the smallest Ethernet
frame."""

_LARGE_BYTES: Final = 9_000
"""The size, in bytes, of the largest packet whose time on the link the ring still spans; what takes
longer goes to `far`."""
_MOST_BUCKETS: Final = 1 << 19
"""Two megabytes of heads. Where more would be needed they are wider: a packet that the ring does
not span is walked past again and again, which costs more than what else lies in its bucket."""
_FEWEST_BUCKETS: Final = 256
_NARROW: Final = 4
"""The least width of a window, in buckets."""

CLOCK: Final = np.dtype(
    [
        ("now", "<i8"),  # picoseconds: nothing may be put in before
        ("served", "<i8"),  # every port has been served up to this time, itself included
        ("lookahead", "<i8"),  # what is sent at t arrives after that at the earliest
        ("cursor", "<i8"),  # the bucket whose arrivals lie in `due`; those before are empty
        ("far_least", "<i8"),  # the first bucket of what lies in `far`
        ("digest", "<u8"),  # of the deliveries so far, in their order
        ("first", "<u4"),  # of `due`
        ("last", "<u4"),
        ("busy", "<u4"),  # ports in `busy`
        ("far", "<i4"),  # the first row of what lies beyond the ring; -1: none
        ("shift", "<i4"),  # a bucket is 2 ** shift picoseconds wide
        ("least_size", "<i4"),  # bytes of the smallest packet that may be put in
    ],
    align=True,
)

TIMER: Final = 1 << 62
"""The first number of timers: rows of packets whose size is 0."""

DUE: Final = np.dtype([("at", "<i8"), ("place", "<u4"), ("row", "<u4")], align=True)


@unique
class Problem(IntEnum):
    """Why compiled code stopped."""

    NONE = 0
    FULL = 1
    """No packet row is free."""
    SMALL = 2
    """A packet is smaller than the lookahead was computed for."""
    PAST = 3
    """Something was put in before the present."""


class Window(NamedTuple):
    """Everything the kernel keeps beside `State`. Compiled functions take it whole."""

    clock: NDArray[np.void]
    heads: NDArray[np.int32]
    """The first row of each bucket; -1: none."""
    filled: NDArray[np.uint64]
    """A bit for every bucket with something in it."""
    due: NDArray[np.void]
    """What the bucket under the cursor held, in the order of events."""
    busy: NDArray[np.uint32]
    """Ports whose `scheduled` is set: all in which something waits, and some others."""
    sharers: NDArray[np.uint32]
    """Ports by the buffer that they share: those of b are first_sharers[b : b + 2]."""
    first_sharers: NDArray[np.int32]


def new_window(state: State, *, least_size: int = LEAST_BYTES) -> Window:
    """Return an empty calendar for the ports, links and packets of `state`, which is idle.

    No packet may be smaller than `least_size` bytes: the larger it is, the wider is the window and
    the faster the run. Raises `UsageError` if a port has no rate.
    """
    lookahead = _lookahead(state, least_size)
    shift = _shift(lookahead, len(state.ports))
    span = lookahead + _longest_way(state)
    while span >> shift > _MOST_BUCKETS and lookahead >> shift > _NARROW:
        shift += 1
    buckets = _power_of_two(min(max(span >> shift, _FEWEST_BUCKETS), _MOST_BUCKETS))
    order = np.argsort(state.ports["buffer"], kind="stable").astype(np.uint32)
    owners = state.ports["buffer"][order]
    clock = np.zeros(1, CLOCK)
    clock["lookahead"], clock["shift"], clock["least_size"] = lookahead, shift, least_size
    clock["far"], clock["far_least"] = -1, NEVER
    return Window(
        clock=clock,
        heads=np.full(buckets, -1, np.int32),
        filled=np.zeros(buckets // 64, np.uint64),
        due=np.zeros(len(state.packets), DUE),
        busy=np.zeros(len(state.ports), np.uint32),
        sharers=order,
        first_sharers=np.searchsorted(owners, np.arange(len(state.buffers) + 1)).astype(np.int32),
    )


def _lookahead(state: State, least_size: int) -> int:
    """Return the picoseconds from a link's taking a packet until it is at its other end, at least.

    Of packets of `least_size` bytes or more, over any link.
    """
    rates, delays = state.ports["rate"].tolist(), state.links["delay"].tolist()
    if min(rates) <= 0:
        message = f"Port {rates.index(min(rates))} has no rate: every port needs one."
        raise UsageError(message)
    pairs = set(zip(rates, delays, strict=True))
    return min(delay + transmission_time(least_size, rate) for rate, delay in pairs)


def _longest_way(state: State) -> int:
    links = state.links
    extra = links["delay"] + links["jitter"] + links["reorder_delay"]
    pairs = set(zip(state.ports["rate"].tolist(), extra.tolist(), strict=True))
    return max(more + transmission_time(_LARGE_BYTES, rate) for rate, more in pairs)


def _shift(lookahead: int, ports: int) -> int:
    """Return the logarithm of a bucket's width: few arrivals in each, when all ports are busy."""
    return max(0, (lookahead // max(_NARROW, 8 * ports)).bit_length() - 1)


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()
