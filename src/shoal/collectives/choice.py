"""Which algorithm sums or averages over a group, from its size, bytes and hosts.

Averages over gloo come in pieces, whose size is chosen here too. The figures come from gloo on
loopback, groups of 2 to 8, as `shoal bench sync --only group-average` measures it: few pieces,
because every message costs hand-offs between threads, but none so long that what has come is out
of the processor's caches before it is added.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from shoal.collectives.direct import plan_direct
from shoal.collectives.pair import plan_pair

if TYPE_CHECKING:
    from shoal.collectives.plan import Plan

WINDOW: Final = 2
"""Pieces that are received at a time, of several: one arrives while another is added."""

SCRATCH_BYTES: Final = 12 << 20
"""Most that a plan may ask for in scratch slots."""

LARGE_BYTES: Final = 8 << 20
"""The size, in bytes, from which on it counts that nothing is added up twice on one machine: a ring
sums with less of the processor, and of two members each adds up a half."""


SMALL_BYTES: Final = 64 << 10
"""The size, in bytes, below which hosts exchange directly: half as many steps, little to save.
Reckoned, not measured."""


def members_per_host(hosts: Sequence[Hashable]) -> int:
    """Return how many members each host has, from every member's host.

    1 if hosts have different numbers of them, or members are not numbered host by host.
    """
    size = len(hosts)
    count = next((index for index, host in enumerate(hosts) if host != hosts[0]), size)
    blocks = [set(hosts[first : first + count]) for first in range(0, size, count)]
    is_even = size % count == 0 and all(len(block) == 1 for block in blocks)
    return count if is_even and len(set().union(*blocks)) == len(blocks) else 1


def goes_by_host(size: int, num_bytes: int, per_host: int) -> bool:
    """Return whether members, `per_host` on each host, exchange `num_bytes` within hosts as well.

    Directly, each host would send `per_host` times as much; little is sooner there in fewer steps.
    """
    return 1 < per_host < size and num_bytes >= SMALL_BYTES


def choose_sum(
    size: int, num_bytes: int, per_host: int, *, keeps_apart: bool, by_memory: bool = False
) -> str:
    """Return which of `graphs.ALGORITHMS` sums `num_bytes` over members, `per_host` on each host.

    With datagrams on one machine a ring takes least of the processor; `by_memory`, where ranks of
    a host share it, a sum is left for all others at once. `keeps_apart` asks for what may lose
    contributions, or is rounded wherever it is sent, not to be passed on so often.
    """
    if goes_by_host(size, num_bytes, per_host):
        return "hierarchical"
    if per_host == size and num_bytes >= LARGE_BYTES and not keeps_apart and not by_memory:
        return "ring"
    return "direct"


@lru_cache(maxsize=256)
def plan_average(size: int, me: int, length: int, item_bytes: int) -> Plan:
    """Return what member `me` of `size` does to average `length` elements of `item_bytes` each.

    `size` is at least two and `length` at least one. All members must pass the same but for `me`.
    Contributions arrive unmixed, so they may be weighted, added in a wider type, and added in the
    order of members whoever adds: in whatever pieces a mean is made, it has the same bits. A ring,
    where none of this can be, is not faster: 25 MB took 0.91 to 1.02 of its time among 2 to 8.
    """
    is_pair = size == 2 and length * item_bytes < LARGE_BYTES
    sources = 1 if is_pair else size - 1
    whole_length = length if is_pair else -(-length // size)
    room = SCRATCH_BYTES // item_bytes // sources
    window = WINDOW if whole_length > room else 1
    piece_length = max(1, min(whole_length, room // window))
    plan = plan_pair if is_pair else plan_direct
    return plan(size, me, length, piece_length, window)
