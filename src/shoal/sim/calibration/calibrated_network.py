"""A network of flows over a transport: none is faster than packets of its transport were alone.

What a flow takes at least is drawn from the calibration of its way; that bounds its rate, links
shared with others may bound it more. What gets lost is sent again, unless it may be missing, and so
fills links. Times are picoseconds, sizes bytes that links carry, headers included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shoal.collectives import graphs
from shoal.errors import UsageError
from shoal.sim.calibration.carriers import FRAME_BYTES
from shoal.sim.calibration.ways import WayTable
from shoal.sim.flow.flow_network import FlowNetwork
from shoal.switching import PICOSECONDS, down_cables

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from shoal.sim.calibration.calibration_table import Table
    from shoal.sim.calibration.ways import Ways
    from shoal.switching import Cable, Topology

_PEERS: Final = 8
"""The number of peers that stand for all the others of a member of a direct sum: it has a flow to
each of them."""


class CalibratedNetwork:
    """Transfers over `topology` that take what the flows of `table` took; a `sim.network.Network`.

    The same `seed` gives the same draws. The other arguments are a `FlowNetwork`'s. Ways must be
    within the table's range (`calibration.limits`).
    """

    def __init__(
        self,
        topology: Topology,
        table: Table,
        *,
        local_rate: float,
        spray: bool,
        seed: int = 0,
    ) -> None:
        self.topology = topology
        self._table = table
        self._flows = FlowNetwork(topology, local_rate=local_rate, spray=spray, seed=seed)
        self._avoided: Collection[int] = down_cables(topology)
        self._ways = WayTable(topology, self._avoided)
        self._seed, self._started = seed, 0

    @property
    def header_factor(self) -> float:
        """What payload must be multiplied by: sizes are what links carry."""
        return self._table.carrier.header_factor

    @property
    def sends_datagrams(self) -> bool:
        """Whether background flows of UDP are its own: they are transfers like others."""
        return False

    @property
    def now(self) -> int:
        """The time of the last event, in picoseconds."""
        return self._flows.now

    @property
    def flows_ended(self) -> int:
        """Flows that have come to their end since the beginning."""
        return self._flows.flows_ended

    def delay(self, source: int, target: int) -> int:
        """Return how long a bit takes from host to host."""
        return self._ways.delay(source, target)

    def start(
        self,
        at: int,
        sources: Sequence[int] | NDArray[Any],
        targets: Sequence[int] | NDArray[Any],
        sizes: Sequence[float] | NDArray[Any],
        *,
        most: float = float("inf"),
    ) -> int:
        """Let flows leave their sources at `at`; return the transfer's number.

        Those with a rate `most`, bits per second, are others' traffic: they lose nothing.
        """
        if most != float("inf"):
            return self._flows.start(at, sources, targets, sizes, most=most)
        return self._start(self._table, at, sources, targets, sizes)[0]

    def run(self, until: int) -> list[int]:
        """Let time pass up to `until`, or to when the next transfers are over; return those."""
        return self._flows.run(until)

    def alter(self, at: int, number: int, cable: Cable) -> None:
        """Let the cable of this number be like `cable` from `at` on, for flows that begin then."""
        self.topology = self.topology.with_cable(number, cable)
        self._ways = WayTable(self.topology, self._avoided)
        self._flows.alter(at, number, cable)

    def avoid(self, at: int, cables: Collection[int]) -> None:
        """Let flows take the shortest ways without these cables from `at` on."""
        self._avoided = cables
        self._ways = WayTable(self.topology, cables)
        self._flows.avoid(at, cables)

    def give_up(self, at: int, transfer: int) -> None:
        """Let a transfer move nothing more from `at` on."""
        self._flows.give_up(at, transfer)

    def check_conservation(self) -> None:
        """Raise `AssertionError` unless every flow has ended or is there."""
        self._flows.check_conservation()

    def _start(
        self,
        table: Table,
        at: int,
        sources: Sequence[int] | NDArray[Any],
        targets: Sequence[int] | NDArray[Any],
        sizes: Sequence[float] | NDArray[Any],
    ) -> tuple[int, float]:
        """Start flows; return the transfer's number and the bytes that get lost for good."""
        between = np.flatnonzero(np.asarray(sources) != np.asarray(targets)).tolist()
        work, most = np.array(sizes, float), np.full(len(sizes), np.inf)
        lost_bytes = 0.0
        if between:
            ways = self._ways.of([sources[k] for k in between], [targets[k] for k in between])
            messages = work[between]
            seconds, lost = _times(table, ways, messages, self._draws(len(between)))
            work[between] = messages * (1 - lost) / (1 - ways.loss)
            most[between] = work[between] * 8 / seconds
            lost_bytes = float(messages @ lost)
        return self._flows.start(at, sources, targets, work, most=most), lost_bytes

    def _draws(self, count: int) -> NDArray[np.float64]:
        """Return places in distributions, the same ones with the same seed."""
        self._started += 1
        bits = np.random.Philox(key=self._seed, counter=[0, 0, 0, self._started])
        return np.random.Generator(bits).random(count)


def _times(
    table: Table, ways: Ways, sizes: NDArray[np.float64], draws: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return how long messages take, seconds, once their first bit has come, and shares lost."""
    packets = np.maximum(1.0, sizes / FRAME_BYTES)
    ratios, lost = table.ratios(ways.loss, ways.round_trip_s, ways.rate, packets, draws)
    ideal = ways.there_s + sizes * 8 / ways.rate
    return np.maximum(ratios * ideal - ways.there_s, 1 / PICOSECONDS), lost


class CalibratedSums(CalibratedNetwork):
    """A `CalibratedNetwork` over a transport that makes sums itself: Shoal's.

    Contributions take, and lose, what those of `contributions` did; everything else is as exact
    as `table` says. Values do not travel.
    """

    carries_payload: Final = False

    def __init__(
        self,
        topology: Topology,
        table: Table,
        contributions: Table,
        *,
        local_rate: float,
        spray: bool,
        seed: int = 0,
    ) -> None:
        super().__init__(topology, table, local_rate=local_rate, spray=spray, seed=seed)
        self._contributions = contributions
        self.lossy_bytes = self.lost_bytes = 0
        """Bytes of payload that might have got lost, and that did, of transfers that have begun."""

    def start(
        self,
        at: int,
        sources: Sequence[int] | NDArray[Any],
        targets: Sequence[int] | NDArray[Any],
        sizes: Sequence[float] | NDArray[Any],
        *,
        most: float = float("inf"),
        contributes: bool = False,
        layer_class: int = 0,
    ) -> int:
        """Start as `CalibratedNetwork` does; what `contributes` to a sum may lose a share of it."""
        if not contributes or most != float("inf"):
            return super().start(at, sources, targets, sizes, most=most)
        number, lost = self._start(self._contributions, at, sources, targets, sizes)
        ends = zip(sources, targets, sizes, strict=True)
        self._note(sum(size for source, target, size in ends if source != target), lost)
        return number

    def all_reduce(
        self,
        at: int,
        hosts: Sequence[int],
        size: float,
        *,
        algorithm: str = "direct",
        layer_class: int = 0,
        exact: bool = False,
    ) -> int:
        """Let `hosts` sum `size` bytes of payload from `at` on; return the transfer's number.

        A ring's bytes flow at once, as over any transport, after its rounds' delays.
        Raises `UsageError` for a ring that may lose something: of its many hops each may lose a
        share for which there is no calibration.
        """
        count, wire = len(hosts), size * self.header_factor
        if algorithm != "ring":
            return self._direct(at, hosts, wire, exact=exact)
        if (
            not exact
            and self._contributions is not self._table
            and graphs.lossy_hops("ring", count) > 1
        ):
            raise UsageError(
                "Flows are not calibrated for the bounds of a ring's hops: take a loss bound of 0,"
                ' algorithm = "direct", or level = "packets".'
            )
        nexts = [*hosts[1:], hosts[0]]
        rounds = 2 * (count - 1)
        longest = max(self.delay(a, b) for a, b in zip(hosts, nexts, strict=True))
        begins = at + (rounds - 1) * longest
        return self._start(self._table, begins, hosts, nexts, [rounds / count * wire] * count)[0]

    def _direct(self, at: int, hosts: Sequence[int], wire: float, *, exact: bool) -> int:
        """Let each host contribute to the others' shards, and send them its own shard's sum.

        Both flow at once. What a host sends to all others is a message, drawn once in either
        phase; flows to some of them carry it, so that every link has its share.
        """
        count = len(hosts)
        shifts = _spread(count - 1, _PEERS)
        members = np.repeat(np.arange(count), len(shifts))
        sources = [host for host in hosts for _ in shifts]
        targets = [hosts[(k + shift) % count] for k in range(count) for shift in shifts]
        ways = self._ways.of(sources, targets)
        message = (count - 1) / count * wire
        sizes = np.full(len(sources), message)
        table = self._table if exact else self._contributions
        contributing, lost = _times(table, ways, sizes, self._draws(count)[members])
        gathering, _ = _times(self._table, ways, sizes, self._draws(count)[members])
        # the second phase's first bit is on its way while the first phase's last ones are
        seconds = contributing + gathering + ways.there_s
        work = sizes * (2 - lost) / (1 - ways.loss) / len(shifts)
        if not exact:
            self._note(count * message, float(sizes @ lost) / len(shifts))
        return self._flows.start(at, sources, targets, work, most=work * 8 / seconds)

    def _note(self, lossy: float, lost: float) -> None:
        if self._contributions is not self._table:
            self.lossy_bytes += round(lossy / self.header_factor)
            self.lost_bytes += round(lost / self.header_factor)


def _spread(count: int, most: int) -> list[int]:
    """Return 1 to `count`, or `most` of these evenly apart."""
    if count <= most:
        return list(range(1, count + 1))
    return [1 + (2 * k + 1) * count // (2 * most) for k in range(most)]
