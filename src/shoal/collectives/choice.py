"""Which algorithm averages a group, from its size and bytes, and in pieces of what size.

The figures come from `shoal bench sync --only group-average` (gloo on loopback, groups of 2 to 8):
pieces much below a megabyte lose more to hand-offs between threads than they gain from the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from shoal.collectives.direct import plan_direct
from shoal.collectives.pair import plan_pair
from shoal.collectives.plan import Plan
from shoal.collectives.ring import plan_ring

Planner: TypeAlias = Callable[[int, int, int, int, int], Plan]
"""(size, me, length, piece_length, window) to the plan of member `me`."""

Algorithm: TypeAlias = Literal["pair", "direct", "ring"]

ALL_ALGORITHMS: Final = MappingProxyType[Algorithm, Planner](
    {"pair": plan_pair, "direct": plan_direct, "ring": plan_ring}
)
"""Every way to average a group, by name. `pair` is for groups of two only."""

WINDOWS: Final = MappingProxyType[Algorithm, int]({"pair": 3, "direct": 2, "ring": 3})
"""Pieces that are received at a time: one arrives while another is added."""

PIECE_BYTES: Final = 4 << 20
"""Largest piece."""

SCRATCH_BYTES: Final = 16 << 20
"""Most a plan may ask for in scratch slots, so that they stay in a processor's cache."""

LARGE_BYTES: Final = 8 << 20
"""From here on it counts to add every element once only, more than to take few steps."""

MANY_MEMBERS: Final = 8
"""From here on a ring is as fast as all to all on one machine, and kinder to a network."""


def choose_algorithm(size: int, num_bytes: int, *, whole_contributions: bool) -> Algorithm:
    """Return what averages `num_bytes` over `size` members fastest.

    `whole_contributions` asks for contributions to arrive unmixed, which a ring cannot do: needed
    for weights and for types too narrow to add up in.
    """
    large = num_bytes >= LARGE_BYTES
    if size == 2 and not large:
        return "pair"
    return "ring" if large and size >= MANY_MEMBERS and not whole_contributions else "direct"


@lru_cache(maxsize=256)
def plan_average(
    size: int, me: int, length: int, item_bytes: int, *, whole_contributions: bool = False
) -> Plan:
    """Return what member `me` of `size` does to average `length` elements of `item_bytes` each.

    `size` is at least two and `length` at least one. All members must pass the same but for `me`.
    """
    name = choose_algorithm(size, length * item_bytes, whole_contributions=whole_contributions)
    slots = WINDOWS[name] * (size - 1 if name == "direct" else 1)
    piece_bytes = min(PIECE_BYTES, SCRATCH_BYTES // slots)
    piece_length = max(1, piece_bytes // item_bytes)
    return ALL_ALGORITHMS[name](size, me, length, piece_length, WINDOWS[name])
