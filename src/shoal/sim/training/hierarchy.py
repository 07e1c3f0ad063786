"""What every member sends to every other in a direct or hierarchical all-reduce.

Counted from the messages that `collectives` lays out, so that the simulated exchange is the real
one's; knows no network and no time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from shoal.collectives import hierarchical_all_reduce

ONE_WAY_DELAYS = 4
"""The stages: to the host's owners, between hosts, back between hosts, within the host again."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Flows between positions in a group, with the share of the buffer that each carries."""

    sources: tuple[int, ...]
    targets: tuple[int, ...]
    shares: tuple[float, ...]


def check_hosts(size: int, per_host: int) -> None:
    """Raise `UsageError` if `size` members do not fill hosts of `per_host`."""
    hierarchical_all_reduce(size, 0, size, 1, per_host)


@lru_cache(maxsize=16)
def traffic_of(size: int, per_host: int) -> Traffic:
    """Return the flows among `size` members, `per_host` of which are near each other.

    With `per_host` 1 it is the direct all-reduce. Raises `UsageError` if they do not fill hosts.
    """
    flows: dict[tuple[int, int], int] = {}
    for me in range(size):
        # as many elements as members: every shard is one element and one piece
        for message in hierarchical_all_reduce(size, me, size, 1, per_host).outgoing:
            way = me, message.peer
            flows[way] = flows.get(way, 0) + len(message.piece)
    ways = sorted(flows)
    return Traffic(
        tuple(source for source, _ in ways),
        tuple(target for _, target in ways),
        tuple(flows[way] / size for way in ways),
    )
