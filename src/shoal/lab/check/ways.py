"""Ways from host to host over every cable of a lab, and what its spec promises on them.

Closed forms only, in the units of their names: what `shoal lab check` holds measurements against.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from shoal.lab.network.shaper import FRAME_BYTES

if TYPE_CHECKING:
    from shoal.switching import Link, Topology

TAIL: Final = 0.001
"""Share of the outcomes that lie outside of an interval: 99.9 % are inside."""
_NORMAL: Final = 3.2905
"""The number of standard deviations from the mean beyond which a share `TAIL` of the normal
distribution lies."""


@dataclass(frozen=True, slots=True)
class CablePath:
    """The cables from one host to another, and the others to `avoid` so that it is the only one."""

    source: int
    target: int
    cables: tuple[int, ...]
    avoid: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fork:
    """A place where packets from one host to another have equal cables to choose among."""

    source: int
    target: int
    cables: tuple[int, ...]


def ways_over_all(topology: Topology) -> tuple[list[CablePath], list[int]]:
    """Return ways that use every cable, as few as a greedy search finds, and the cables without.

    A cable is without one if no packet between hosts can pass it and no node twice.
    """
    trunks = _trunks(topology)
    others = [k for k in range(len(topology.cables)) if k not in trunks]
    missing, ways, unused = [*trunks, *others], [], []
    while missing:
        way = way_through(topology, missing[0], preferred=missing)
        if way is None:
            unused.append(missing.pop(0))
            continue
        ways.append(way)
        missing = [cable for cable in missing if cable not in way.cables]
    return ways, unused


def way_through(
    topology: Topology, cable: int, preferred: Collection[int] = ()
) -> CablePath | None:
    """Return a short way through `cable`; None if no way leads through it.

    Of ways of the same length one whose hosts' own cables are among the `preferred`.
    """
    cables = topology.cables
    source, target = cables[cable].source, cables[cable].target
    for head in _to_hosts(topology, source, {target}, backwards=True, preferred=preferred):
        passed = {source, *(cables[k].source for k in head), *(cables[k].target for k in head)}
        for tail in _to_hosts(topology, target, passed, backwards=False, preferred=preferred):
            way = (*reversed(head), cable, *tail)
            avoid = tuple(trunk for trunk in _trunks(topology) if trunk not in way)
            return CablePath(cables[way[0]].source, cables[way[-1]].target, way, avoid)
    return None


def _trunks(topology: Topology) -> list[int]:
    """Return the cables between switches."""
    return [k for k, c in enumerate(topology.cables) if c.source < 0 and c.target < 0]


def _to_hosts(
    topology: Topology,
    start: int,
    without: Collection[int],
    *,
    backwards: bool,
    preferred: Collection[int],
) -> list[list[int]]:
    """Return the cables from `start` to every host that it reaches, nearest first.

    Not through nodes of `without`, nor through hosts.
    """
    if start >= 0:
        return [[]]
    paths: dict[int, list[int]] = {start: []}
    queue, found = deque([start]), []
    while queue:
        node = queue.popleft()
        for number, cable in enumerate(topology.cables):
            here, there = cable.source, cable.target
            if backwards:
                here, there = there, here
            if here != node or there in paths or there in without:
                continue
            paths[there] = [*paths[node], number]
            if there >= 0:
                found.append(paths[there])
            else:
                queue.append(there)
    return sorted(found, key=lambda path: (len(path), path[-1] not in preferred))


def first_fork(topology: Topology) -> Fork | None:
    """Return a place where packets choose, the first on a way between hosts; None without one."""
    for source in range(topology.hosts):
        for target in range(topology.hosts):
            if source == target:
                continue
            distance = _distances_to(topology, target)
            node = topology.cables[topology.access_port(source)].target
            while node in distance and node < 0:
                choices = _nearer(topology, node, distance)
                if len(choices) > 1:
                    return Fork(source, target, tuple(choices))
                node = topology.cables[choices[0]].target
    return None


def _distances_to(topology: Topology, host: int) -> dict[int, int]:
    """Return the number of cables from every node that reaches `host`, over cables that are up."""
    distance, queue = {host: 0}, deque([host])
    while queue:
        node = queue.popleft()
        for cable in topology.cables:
            is_through_host = cable.target >= 0 and cable.target != host
            is_new = cable.target == node and cable.source not in distance
            if is_new and not is_through_host and not cable.link.down:
                distance[cable.source] = distance[node] + 1
                queue.append(cable.source)
    return distance


def _nearer(topology: Topology, node: int, distance: dict[int, int]) -> list[int]:
    """Return the cables from `node` that are up and lead nearer, by the distances of nodes."""
    return [
        number
        for number, cable in enumerate(topology.cables)
        if cable.source == node
        and not cable.link.down
        and distance.get(cable.target) == distance[node] - 1
    ]


def slowest_rate(topology: Topology, cables: Iterable[int]) -> int:
    """Return the bits per second of Ethernet frames that get through these cables in a row."""
    return min(topology.cables[cable].port.rate for cable in cables)


def delay_s(topology: Topology, cables: Iterable[int], frame_bytes: int) -> tuple[float, float]:
    """Return the least and the most seconds that a frame takes which meets no other."""
    least = most = 0.0
    for number in cables:
        cable = topology.cables[number]
        least += cable.link.delay_s + frame_bytes * 8 / cable.port.rate
        most += cable.link.jitter_s
        most += cable.link.reorder_delay_s if cable.link.reorder > 0 else 0.0
    return least, least + most


def delay_over_any_path_s(
    topology: Topology, source: int, target: int, frame_bytes: int
) -> tuple[float, float]:
    """Return the least and the most seconds that a lone frame takes by any shortest path."""
    distance = _distances_to(topology, target)

    def from_node(node: int) -> tuple[float, float]:
        if node == target:
            return 0.0, 0.0
        delays = []
        for number in _nearer(topology, node, distance):
            least, most = delay_s(topology, (number,), frame_bytes)
            rest = from_node(topology.cables[number].target)
            delays.append((least + rest[0], most + rest[1]))
        return min(each[0] for each in delays), max(each[1] for each in delays)

    return from_node(source)


def mean_loss(link: Link) -> float:
    """Return the share of packets that a link loses in the long run (Gilbert and Elliott)."""
    if link.down:
        return 1.0
    bad = _share_of_bad(link)
    return (1 - bad) * link.loss + bad * link.bad_loss


def _share_of_bad(link: Link) -> float:
    changes = link.to_bad + link.to_good
    return link.to_bad / changes if changes > 0 else 0.0


def loss_of(links: Sequence[Link]) -> float:
    """Return the share of packets that these links in a row lose in the long run."""
    return 1 - math.prod(1 - mean_loss(link) for link in links)


def loss_interval(links: Sequence[Link], packets: int) -> tuple[int, int]:
    """Return how many of `packets` get lost on `links` in a row at least and at most.

    In 99.9 % of cases: by the binomial distribution, or where losses come in bursts by the normal
    one with the variance of a chain of two states that begins in the good one.
    """
    share = loss_of(links)
    variance = packets * share * (1 - share)
    late = 0.0
    for link in links:
        bad, memory = _share_of_bad(link), 1 - link.to_bad - link.to_good
        if bad == 0 or link.down:
            continue
        step = link.bad_loss - link.loss
        correlated = bad * (1 - bad) * step * step
        variance += 2 * packets * correlated * memory / (1 - memory)
        late += abs(step) * bad / (1 - memory)
    if late == 0:
        return binomial_interval(packets, share)
    reach = _NORMAL * math.sqrt(max(0.0, variance)) + late
    mean = packets * share
    return max(0, math.floor(mean - reach)), min(packets, math.ceil(mean + reach))


def binomial_interval(trials: int, share: float, tail: float = TAIL) -> tuple[int, int]:
    """Return the fewest and most successes that leave at most `tail` / 2 on either side.

    Of `trials` that each succeed with the probability `share`.
    """
    if share <= 0 or share >= 1:
        certain = 0 if share <= 0 else trials
        return certain, certain
    return (
        _quantile(lambda k: _log_probability(trials, share, k), tail / 2),
        trials - _quantile(lambda k: _log_probability(trials, 1 - share, k), tail / 2),
    )


def _quantile(log_probability: Callable[[int], float], below: float) -> int:
    """Return the least number whose cumulative probability is more than `below`."""
    total, number = math.exp(log_probability(0)), 0
    while total <= below:
        number += 1
        total += math.exp(log_probability(number))
    return number


def _log_probability(trials: int, share: float, successes: int) -> float:
    ways = math.lgamma(trials + 1) - math.lgamma(successes + 1)
    ways -= math.lgamma(trials - successes + 1)
    return ways + successes * math.log(share) + (trials - successes) * math.log1p(-share)


def packets_asked(topology: Topology) -> float:
    """Return the full packets per second with every host at the full rate of its link.

    It is the lesser of the packets that hosts send and those that they can receive.
    """
    sent = sum(c.port.rate for c in topology.cables if c.source >= 0)
    heard = sum(c.port.rate for c in topology.cables if c.target >= 0)
    return min(sent, heard) / 8 / FRAME_BYTES
