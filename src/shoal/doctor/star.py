"""The star that stands for measured pairs: one link each way for every host, around one switch.

Pure: figures in, links out. The rules, of ways i -> j between hosts:

- **rate**: host i sends at the best rate measured from it, and receives at the best measured to it.
- **delay**: the shortest round trip, less what its packet takes at four ports at those rates, is
  twice the sum of the two hosts' delays; each host has one, for both directions.
- **loss**: what survives is the product of what survives the sender's link and the receiver's.

The sums (of delays, of the logarithms of what survives) are solved by least squares, none below
zero; where figures leave a choice, links are as alike as they can be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from shoal.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from shoal.doctor.doctor_report import PairFigures, WayFigures

_Sum: TypeAlias = tuple[int, int, float]
"""Two unknowns, by place, and what they are together."""

_ROUNDING: Final = 1e-9
_MOST_LOSS: Final = 0.999_999
"""The largest share of loss that is reckoned with: where everything got lost, a little is left so
that it has a logarithm."""


@dataclass(frozen=True, slots=True)
class LinkFigures:
    """One direction of a host's link."""

    rate: int
    """Bits per second of IP packets."""
    delay_s: float
    loss: float
    """Share of packets."""
    is_least: bool = False
    """Whether the link may be faster: the doctor was the limit."""


@dataclass(frozen=True, slots=True)
class HostLinks:
    """How a host, called by its address, is joined to the switch."""

    address: str
    up: LinkFigures
    """The direction from the host."""
    down: LinkFigures
    """The direction to the host."""


def links_of(pairs: Sequence[PairFigures]) -> list[HostLinks]:
    """Return the links of all hosts of `pairs`, in the order in which they are met.

    Raises `DataError` if a pair is of one host, or a host has no rate, loss or round trip.
    """
    hosts = list(dict.fromkeys(host for pair in pairs for host in _hosts(pair)))
    if not hosts:
        message = "No pair of hosts was examined; call another host with shoal doctor --with HOST."
        raise DataError(message)
    ways = [way for pair in pairs for way in (pair.there, pair.back)]
    up, down = _best_rates(ways, hosts, sends=True), _best_rates(ways, hosts, sends=False)
    places = {host: place for place, host in enumerate(hosts)}
    rates = [(up[place][0], down[place][0]) for place in range(len(hosts))]
    delays = _alike_where_free(list(_delay_sums(pairs, places, rates)), len(hosts))
    losses = _alike_where_free(list(_loss_sums(ways, places)), 2 * len(hosts))
    return [
        HostLinks(
            host,
            LinkFigures(up[k][0], delays[k], -math.expm1(-losses[k]), up[k][1]),
            LinkFigures(down[k][0], delays[k], -math.expm1(-losses[k + len(hosts)]), down[k][1]),
        )
        for k, host in enumerate(hosts)
    ]


def tells_delays(pairs: Sequence[PairFigures]) -> bool:
    """Return whether round trips of `pairs` have one answer only: whose link a delay is of.

    They do where hosts meet in rings of an odd number; two hosts alone leave it open.
    """
    hosts = list(dict.fromkeys(host for pair in pairs for host in _hosts(pair)))
    sums = [
        (hosts.index(one), hosts.index(other), 0.0)
        for one, other in (_hosts(pair) for pair in pairs if pair.shortest_us is not None)
    ]
    return int(np.linalg.matrix_rank(_matrix(sums, len(hosts)))) == len(hosts)


def rate_between(sender: HostLinks, receiver: HostLinks) -> int:
    """Return the rate in bits per second that the star has from one host to another."""
    return min(sender.up.rate, receiver.down.rate)


def loss_between(sender: HostLinks, receiver: HostLinks) -> float:
    """Return the share of packets that the star loses from one host to another."""
    return 1 - (1 - sender.up.loss) * (1 - receiver.down.loss)


def round_trip_between(one: HostLinks, other: HostLinks, packet_bytes: int) -> float:
    """Return the seconds that a packet of `packet_bytes` takes there and back in the star."""
    links = (one.up, other.down, other.up, one.down)
    return sum(link.delay_s + 8 * packet_bytes / link.rate for link in links)


def _hosts(pair: PairFigures) -> tuple[str, str]:
    if pair.there.sender == pair.there.receiver:
        message = (
            f"Both ends of a pair are {pair.there.sender}: a cluster is made of several hosts,"
            " each with an address of its own."
        )
        raise DataError(message)
    return pair.there.sender, pair.there.receiver


def _best_rates(
    ways: Sequence[WayFigures], hosts: Sequence[str], *, sends: bool
) -> list[tuple[int, bool]]:
    """Return each host's best rate, and whether it is at least that."""
    best: dict[str, tuple[int, bool]] = {}
    for way in ways:
        if way.rate is not None:
            host = way.sender if sends else way.receiver
            best[host] = max(best.get(host, (0, False)), (way.rate.bits_per_s, way.rate.is_least))
    for host in hosts:
        if host not in best:
            raise _unknown(f"rate {'from' if sends else 'to'} {host}")
    return [best[host] for host in hosts]


def _delay_sums(
    pairs: Sequence[PairFigures], places: dict[str, int], rates: Sequence[tuple[int, int]]
) -> Iterator[_Sum]:
    seen = set()
    for pair in pairs:
        if pair.shortest_us is None:
            continue
        one, other = (places[host] for host in _hosts(pair))
        at_ports_s = sum(8 * pair.packet_bytes / rate for rate in (*rates[one], *rates[other]))
        seen |= {one, other}
        yield one, other, max(0.0, pair.shortest_us / 1e6 - at_ports_s) / 2
    for host, place in places.items():
        if place not in seen:
            raise _unknown(f"round trip with {host}")


def _loss_sums(ways: Sequence[WayFigures], places: dict[str, int]) -> Iterator[_Sum]:
    """Yield sums of -log of what survives; the hosts' downward links come after their upward."""
    for way in ways:
        if way.loss is not None:
            lost = -math.log1p(-min(way.loss, _MOST_LOSS))
            yield places[way.sender], len(places) + places[way.receiver], lost


def _unknown(what: str) -> DataError:
    return DataError(
        f"No {what} was measured; see what the doctor says of its pairs, and examine one again."
    )


def _alike_where_free(sums: Sequence[_Sum], unknowns: int) -> list[float]:
    """Return the unknowns whose sums in pairs are nearest to `sums`, none below zero.

    Of several such answers, that nearest to all being alike. What would be below zero becomes zero,
    the lowest first, and the others are fitted again.
    """
    matrix, wanted = _matrix(sums, unknowns), np.array([each for _, _, each in sums])
    alike = float(wanted.mean()) / 2
    is_free = np.ones(unknowns, bool)
    while True:
        found = np.where(is_free, alike, 0.0)
        rest = wanted - matrix @ found
        found[is_free] += np.linalg.lstsq(matrix[:, is_free], rest, rcond=None)[0]
        if found.min() >= -_ROUNDING * max(alike, float(np.abs(wanted).max())):
            return [max(0.0, each) for each in found.tolist()]
        is_free[found.argmin()] = False


def _matrix(sums: Sequence[_Sum], unknowns: int) -> NDArray[np.float64]:
    """Return a row for each sum, with a one for each of its two unknowns."""
    matrix = np.zeros((len(sums), unknowns))
    for row, (one, other, _) in enumerate(sums):
        matrix[row, [one, other]] = 1
    return matrix
