"""A network of packets under the bounded-loss transport, as Python sees it: transfers and sums.

Every transfer is an operation of the transport at each host that has a part in it, as in real jobs:
it is over when all of these have finished. Owns the endpoints and who waits for what; the packets
are the window kernel's. Times are picoseconds, sizes bytes of payload.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shoal.collectives import graphs
from shoal.compiled import Arena
from shoal.errors import UsageError
from shoal.sim.packet.changes import avoiding, changed_window, like
from shoal.sim.packet.simulation import check_flow, check_packets, flow_rows
from shoal.sim.packet.sources import new_flows
from shoal.sim.packet.window_tables import Problem, new_window
from shoal.sim.transports.bounded_loss import FRAME_BYTES, QUIET, begin_other, run, take_turn
from shoal.sim.transports.contributions import Contribution, Missing
from shoal.sim.transports.endpoints import check_endpoints, new_endpoint_state, new_hosts
from shoal.sim.transports.standstill import SLICE, Standstill
from shoal.sim.transports.transfer_tables import Flows, transfer_tables
from shoal.sim.way_lengths import WayLengths, delay_of
from shoal.switching import CLASS_SELECTORS, PICOSECONDS, USUAL_PACKETS, down_cables, make_state
from shoal.transport import (
    ABSENT,
    ERROR_FEEDBACK,
    FEEDBACK_BYTES,
    FLOAT32,
    HEADER_BYTES,
    LARGE,
    WIRE_BYTES,
    ZERO,
    Counter,
    Endpoint,
    GraphOptions,
    ImportanceTagger,
    LastMeans,
    TransportConfig,
    flags_at,
    piece_length,
    tables_of,
    tag_these,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shoal.sim.packet.simulation import Flow
    from shoal.switching import Cable, State, Topology
    from shoal.transport import MessageTables

ELEMENT_BYTES: Final = WIRE_BYTES[ABSENT]

LEAST_BYTES: Final = FRAME_BYTES + HEADER_BYTES + min(FEEDBACK_BYTES, ELEMENT_BYTES)
"""Bytes of the smallest packet that a host may send."""

_MICROSECOND: Final = PICOSECONDS // 1_000_000
_STREAM: Final = 1

_MANY: Final = 256
"""Hosts from which on most never meet most others, whose rows take no memory then."""

REMEMBERED: Final = 64
"""Transfers whose losses can still be asked for."""


@dataclass(slots=True)
class _Transfer:
    """What has to finish before it is over."""

    awaited: int
    begun: int
    """The time at which it began, in picoseconds."""
    tables: dict[int, MessageTables] = field(default_factory=dict)
    """The messages of each host that takes part."""
    renews: bool = False
    """Whether the transfer brings newer versions of values that its receivers have."""


class BoundedLossNetwork:
    """Transfers over simulated packets, each as exact as its bound asks for.

    `tick_ps` picoseconds of the network are a microsecond for the transport: less than a million
    stands for hosts whose clocks and timers are finer than a kernel's. `local_rate` is how fast
    what stays on one host moves, one transfer after another, bits per second. `shared_buffers` are
    those of the switches. `carries_payload` makes room for values in packets. Of contributions to
    sums a share of `loss_bound` may get lost, and a share of `important` packets bear that tag,
    taken at random where no values say which. `others` send beside them and heed nothing (UDP).
    Raises `UsageError` if more than `packets` are under
    way at once, and `ResourceError` if memory has no room for so many hosts: each has a row for
    each other one.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        local_rate: float = 80e9,
        spray: bool = True,
        seed: int = 0,
        shared_buffers: Sequence[int] = (),
        queues: Sequence[int] = CLASS_SELECTORS,
        config: TransportConfig | None = None,
        tick_ps: int = _MICROSECOND,
        packets: int | None = None,
        carries_payload: bool = False,
        loss_bound: float = 0.0,
        important: float = 1.0,
        others: Sequence[Flow] = (),
    ) -> None:
        self.topology, self.config = topology, config or TransportConfig()
        self.carries_payload, self.loss_bound = carries_payload, loss_bound
        self.important = important
        self.keeps_times = False
        self.times: list[int] = []
        """How long each flow of every transfer took, picoseconds, if that `keeps_times`."""
        hosts = topology.hosts
        check_endpoints(hosts)
        self._avoided: Collection[int] = down_cables(topology)
        self._lay_ways()
        room = packets or USUAL_PACKETS + hosts * (self.config.budget_packets + hosts)
        self.state = make_state(
            topology, seed=seed, packets=room, spray=spray, shared_buffers=shared_buffers
        )
        self._window = new_window(self.state, least_size=LEAST_BYTES)
        zeros = Arena(is_sparse=hosts > _MANY).zeros
        self.endpoints = [
            Endpoint(rank, hosts, self.config, new_endpoint_state(hosts, zeros))
            for rank in range(hosts)
        ]
        for endpoint in self.endpoints:
            peers = endpoint.state.peers
            peers["tag_out"] = endpoint.rank * hosts + np.arange(hosts)
            peers["tag_in"] = np.arange(hosts) * hosts + endpoint.rank
            peers["known"] = np.arange(hosts) != endpoint.rank
        ports = {cable.source: number for number, cable in enumerate(topology.cables)}
        self._hosts = new_hosts(
            [each.state for each in self.endpoints],
            [ports[host] for host in range(hosts)],
            packets=room,
            segment_bytes=self.config.segment_bytes,
            carries_payload=carries_payload,
            queues=queues,
            tick_ps=tick_ps,
        )
        self._room, self._local_rate, self._tick, self._seed = room, local_rate, tick_ps, seed
        self._taggers = [ImportanceTagger() for _ in range(hosts)]
        self.means = [LastMeans() for _ in range(hosts)]
        """What each host is told of its tensors once a mean of them is over."""
        self._kept: dict[tuple[int, Hashable], MessageTables] = {}
        """What hosts keep of tensors until they are sent again."""
        self._transfers: dict[int, _Transfer] = {}
        self._remembered: deque[int] = deque()
        self._running: dict[tuple[int, int], int] = {}
        """Transfers by host and slot."""
        for flow in others:
            check_flow(flow, hosts, LEAST_BYTES)
        self.others = new_flows(flow_rows(others, ports))
        """Flows that heed nothing, and what has become of them: rows of `packet.sources.FLOW`."""
        for place, flow in enumerate(others):
            self._hosts.rows[flow.source]["has_others"] = True
            self._raise(begin_other(self.state, self._window, self._hosts, self.others, place))
        self._local: list[tuple[int, int]] = []
        """Transfers that stay on a host, a heap: (when one has moved, picoseconds; its number)."""
        self._local_free = [0] * hosts
        self._waiting: list[int] = []
        """Transfers that were over when another one was started."""
        self._started = self._over = self._now = 0
        self._standstill = Standstill(self._arrived)
        self.lossy_bytes = self.lost_bytes = 0
        """Bytes of contributions to finished sums that might have got lost, and that did."""
        self.renewal_due_bytes = self.renewal_missing_bytes = 0
        """Bytes of newer versions that might have got lost, and that did."""

    @property
    def sends_datagrams(self) -> bool:
        """Whether background flows of UDP are its own: they are its `others`."""
        return True

    @property
    def now(self) -> int:
        """The time of the last event, in picoseconds."""
        return self._now

    @property
    def flows_ended(self) -> int:
        """Transfers that have come to their end since the beginning."""
        return self._over

    @property
    def header_factor(self) -> float:
        """What payload must be multiplied by: nothing, headers are added here."""
        return 1.0

    def delay(self, source: int, target: int) -> int:
        """Return how long a bit takes from host to host."""
        return self._delays.between(source, target)

    def alter(self, at: int, number: int, cable: Cable) -> None:
        """Let the cable of this number be like `cable` from `at` on."""
        self.change(at, like(number, cable))
        before = self.topology.cables[number]
        self.topology = self.topology.with_cable(number, cable)
        if delay_of(cable) != delay_of(before):
            self._lay_ways()

    def avoid(self, at: int, cables: Collection[int]) -> None:
        """Send by shortest paths without these cables from `at` on."""
        self.change(at, avoiding(self.topology, cables))
        self._avoided = cables
        self._lay_ways()

    def _lay_ways(self) -> None:
        """Work out how long ways are now."""
        self._delays = WayLengths(self.topology, delay_of, without=self._avoided)

    def change(self, at: int, write: Callable[[State], None]) -> None:
        """Let `write` change settings of ports, links and routes from `at` on."""
        self._pass_time(at)
        self._window = changed_window(self.state, self._window, write, least_size=LEAST_BYTES)

    def start(
        self,
        at: int,
        sources: Sequence[int] | NDArray[Any],
        targets: Sequence[int] | NDArray[Any],
        sizes: Sequence[float] | NDArray[Any],
        *,
        most: float = float("inf"),
        contributes: bool = False,
        renew_bound: float = 0.0,
        layer_class: int = 0,
    ) -> int:
        """Let flows of `sizes` bytes leave their sources at `at`; return the transfer's number.

        A transfer that `contributes` to a sum may lose the network's share of it, and one of newer
        versions of its targets' values the share `renew_bound`. No payload is carried. The
        transport keeps to no rate, so `most` is ignored.
        """
        number = self._new_number()
        senders, receivers = np.asarray(sources, np.int64), np.asarray(targets, np.int64)
        stays = senders == receivers
        for source, size in zip(senders[stays].tolist(), np.asarray(sizes)[stays], strict=True):
            self._move(at, source, float(size), number)
        counts = np.rint(np.asarray(sizes, float)[~stays]).astype(np.int64) // ELEMENT_BYTES
        starts = np.zeros(len(counts), np.int64)  # of no account: there is no payload
        flows = Flows(
            senders[~stays],
            receivers[~stays],
            starts,
            np.maximum(1, counts),
            layer_class=layer_class,
            loss_bound=self.loss_bound if contributes else renew_bound,
            is_tagged=contributes and self.important < 1,
        )
        tables = transfer_tables(flows, len(self.endpoints), self.config)
        self._tag(tables, number)
        return self._post(at, number, tables, int(stays.sum()), renews=renew_bound > 0)

    def push(
        self,
        at: int,
        sources: Sequence[int],
        targets: Sequence[int],
        contribution: Contribution,
        *,
        layer_class: int = 0,
    ) -> int:
        """Let each source send its target a part of the values; return the transfer's number.

        They travel in the packets, tagged as in `mean`. What comes is written to its place; what
        gets lost within the bound leaves what is there. The arrays must stay until it is over.
        Raises `UsageError` if packets have no room for values.
        """
        return self._move_values(
            at, sources, targets, contribution, self.loss_bound, layer_class=layer_class
        )

    def renew(
        self,
        at: int,
        sources: Sequence[int],
        targets: Sequence[int],
        version: Contribution,
        bound: float,
    ) -> int:
        """Push a newer version of the targets' values, untagged, with this `bound`."""
        return self._move_values(at, sources, targets, version, bound, renews=True)

    def _move_values(
        self,
        at: int,
        sources: Sequence[int],
        targets: Sequence[int],
        contribution: Contribution,
        bound: float,
        *,
        layer_class: int = 0,
        renews: bool = False,
    ) -> int:
        self._check_payload()
        values, arrived = contribution.values, contribution.arrived
        keeps = contribution.policy == ERROR_FEEDBACK and bound > 0
        number, awaited = self._new_number(), 0
        moved = []
        for source, target, part in zip(sources, targets, contribution.parts, strict=True):
            if target == source:
                arrived[part.start : part.stop] = values[part.start : part.stop]
                self._move(at, source, len(part) * values.itemsize, number)
                awaited += 1
            else:
                moved.append((source, target, part.start, len(part)))
        senders, receivers, starts, counts = np.array(moved, np.int64).reshape(-1, 4).T
        flows = Flows(
            senders,
            receivers,
            starts,
            counts,
            form=FLOAT32,
            layer_class=layer_class,
            loss_bound=bound,
            is_tagged=not renews,
            keeps_missing=keeps,
        )
        tables = transfer_tables(flows, len(self.endpoints), self.config)
        for host, each in tables.items():
            self._feed_back(host, contribution.tensor, values)
            each.place(arrived.ctypes.data, values.ctypes.data)
            if not renews:
                self._taggers[host].tag(each, contribution.tensor)
            if keeps:
                self._kept[host, contribution.tensor] = each
        return self._post(at, number, tables, awaited, renews=renews)

    def _feed_back(self, host: int, tensor: Hashable, values: NDArray[np.float32]) -> None:
        """Add to values what the last ones of `host` by this name have lost, if that was kept."""
        kept = self._kept.pop((host, tensor), None)
        if kept is not None:
            kept.add_kept(values.ctypes.data)

    def _check_payload(self) -> None:
        if not self.carries_payload:
            raise UsageError("Packets have no room for values here (carries_payload=).")

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
        """Let `hosts` sum `size` bytes from `at` on; return the transfer's number.

        Contributions may lose a share unless the sum is `exact`, sums nothing.
        """
        count = max(len(hosts), round(size) // ELEMENT_BYTES)
        bound = (0.0 if exact else self.loss_bound) / graphs.lossy_hops(algorithm, len(hosts))
        options = GraphOptions(
            loss_bound=bound, layers=((0, layer_class),), tagged=self.important < 1
        )
        number, tables = self._new_number(), self._sums(hosts, count, ABSENT, algorithm, options)
        self._tag(tables, number)
        return self._post(at, number, tables, 0)

    def mean(
        self,
        at: int,
        hosts: Sequence[int],
        arrays: Sequence[NDArray[np.float32]],
        *,
        tensor: Hashable,
        algorithm: str = "direct",
        policy: int = ZERO,
        layer_class: int = 0,
        form: int = FLOAT32,
        importance: str = LARGE,
    ) -> int:
        """Let `hosts` replace their arrays by the mean of what arrives; return the number.

        The values travel in the packets and lie where they should when it is over; until then the
        arrays must stay. Packets are tagged by the last magnitudes of `tensor`, or with
        `LARGE_CHANGE` by what has changed since `means` heard of it. `policy` is one of
        `transport.holes`, `form` of `IN_FLOAT32`. Raises `UsageError` if packets have no room.
        """
        self._check_payload()
        keeps = policy == ERROR_FEEDBACK and self.loss_bound > 0
        options = GraphOptions(
            1 / len(hosts),
            self.loss_bound / graphs.lossy_hops(algorithm, len(hosts)),
            policy,
            ((0, layer_class),),
            keeps_missing=keeps,
            tagged=True,
        )
        number = self._new_number()
        tables = self._sums(hosts, len(arrays[0]), form, algorithm, options)
        for host, array in zip(hosts, arrays, strict=True):
            self._feed_back(host, tensor, array)
            tables[host].place(array.ctypes.data)
            place, sample = array.ctypes.data, self.means[host].sample(tensor)
            self._taggers[host].tag(tables[host], tensor, importance, address=place, sample=sample)
            if keeps:
                self._kept[host, tensor] = tables[host]
        return self._post(at, number, tables, 0)

    def _sums(
        self,
        hosts: Sequence[int],
        count: int,
        form: int,
        algorithm: str,
        options: GraphOptions,
    ) -> dict[int, MessageTables]:
        """Return the rows of each host's part in a sum of `count` elements."""
        piece = piece_length(
            count,
            form,
            self.config.segment_bytes,
            self.config.largest_batch,
            shards=len(hosts),
            ring=algorithm == "ring",
        )
        zeros = Arena().zeros
        return {
            host: tables_of(
                graphs.all_reduce(len(hosts), place, count, piece, algorithm=algorithm),
                hosts,
                len(self.endpoints),
                self.config.segment_bytes,
                form,
                options,
                zeros,
            )
            for place, host in enumerate(hosts)
        }

    def run(self, until: int) -> list[int]:
        """Let time pass up to `until`, or to when the next transfers are over; return those."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            return waiting
        while True:
            local = self._local[0][0] if self._local else until + 1
            end = last = min(until, local)
            if self._running:
                end = min(last, int(self._window.clock[0]["now"]) + SLICE)
            host = int(run(self.state, self._window, self._hosts, self.others, end))
            if host >= 0:
                self._now = int(self._window.clock[0]["now"])
                finished = [self._running.pop((host, k)) for k in self.endpoints[host].finished()]
            elif host != QUIET:
                self._raise(QUIET - host)
            elif end < last:
                self._standstill.check(end)
                continue
            elif local <= until:
                self._now = local
                finished = []
                while self._local and self._local[0][0] == local:
                    finished.append(heapq.heappop(self._local)[1])
            else:
                return []
            over = [number for number in finished if self._is_over(number)]
            if over:
                if self.keeps_times:
                    self.times += [t for n in over for t in self.completion_times(n).values()]
                return over

    def missing(self, number: int) -> list[Missing]:
        """Return what got lost for good of a transfer that was over lately."""
        transfer = self._transfers[number]
        found = []
        for host, tables in transfer.tables.items():
            for row in tables.incoming[tables.incoming["received"] < tables.incoming["size"]]:
                flags = flags_at(int(row["seen"]), int(row["segments"]))
                for segment in np.flatnonzero(flags).tolist():
                    start = int(row["start"]) + segment * self.config.segment_bytes
                    end = int(row["start"] + row["size"])
                    stop = min(end, start + self.config.segment_bytes)
                    found.append(Missing(int(row["peer"]), host, start, stop))
        return found

    def completion_times(self, number: int) -> dict[tuple[int, int], int]:
        """Return how long it took until all between two hosts had arrived, of a recent transfer.

        By source and target, picoseconds, to the tick.
        """
        transfer, took = self._transfers[number], {}
        for host, tables in transfer.tables.items():
            arrived = (tables.incoming["last_at"] - 1) * self._tick - transfer.begun
            sources, first = np.unique(tables.incoming["peer"], return_index=True)
            last = np.maximum.reduceat(arrived, first) if len(first) else first
            for source, duration in zip(sources.tolist(), last.tolist(), strict=True):
                took[source, host] = duration
        return took

    def _arrived(self) -> int:
        """Return the bytes that have come to their place so far."""
        received = [each.state.counters[:, Counter.RECEIVED_BYTES] for each in self.endpoints]
        return int(sum(each.sum() for each in received))

    def _new_number(self) -> int:
        self._started += 1
        return self._started

    def _tag(self, tables: dict[int, MessageTables], number: int) -> None:
        """Tag a share of all packets as important, the same ones with the same seed."""
        for host, each in tables.items():
            random = np.random.default_rng([self._seed, number, host])
            tagged = each.outgoing["segments"][each.outgoing["important"] != 0]
            tag_these(each.outgoing, random.random(int(tagged.sum())) < self.important)

    def _move(self, at: int, host: int, size: float, number: int) -> None:
        """Let `size` bytes move within `host`, after what moves there already."""
        took = round(size * 8 * PICOSECONDS / self._local_rate)
        self._local_free[host] = max(self._local_free[host], at) + took
        heapq.heappush(self._local, (self._local_free[host], number))

    def _post(
        self,
        at: int,
        number: int,
        tables: dict[int, MessageTables],
        awaited: int,
        *,
        renews: bool = False,
    ) -> int:
        tables = {host: each for host, each in tables.items() if not each.is_empty}
        self._transfers[number] = _Transfer(len(tables) + awaited, at, tables, renews)
        if not tables:
            return number
        self._pass_time(at)
        if not self._running:
            self._standstill.reset(at)
        for host, each in tables.items():
            slot = self.endpoints[host].post(each, _STREAM, number, at // self._tick + 1)
            self._running[host, slot] = number
        for host in tables:
            problem = take_turn(self.state, self._window, self._hosts, host, at)
            self._raise(problem)
        return number

    def check_conservation(self) -> None:
        """Raise `AssertionError` unless every packet is somewhere, or counted as gone."""
        check_packets(self.state)

    def _pass_time(self, at: int) -> None:
        while self._window.clock[0]["now"] < at:
            over = self.run(at)
            self._waiting += over
            if not over:
                break

    def _is_over(self, number: int) -> bool:
        transfer = self._transfers[number]
        transfer.awaited -= 1
        if transfer.awaited > 0:
            return False
        self._over += 1
        for tables in transfer.tables.values():
            lossy = tables.incoming[tables.incoming["target"] < tables.incoming["size"]]
            due = int(lossy["size"].sum())
            lost = due - int(lossy["received"].sum())
            if transfer.renews:
                self.renewal_due_bytes += due
                self.renewal_missing_bytes += lost
            else:
                self.lossy_bytes += due
                self.lost_bytes += lost
        self._remembered.append(number)
        if len(self._remembered) > REMEMBERED:
            del self._transfers[self._remembered.popleft()]
        return True

    def _raise(self, problem: int) -> None:
        if problem == Problem.NONE:
            return
        if problem == Problem.FULL:
            message = (
                f"More than {self._room:,} packets are under way: a port that has no limit fills,"
                " as more is sent there than it carries. Give switches one (port_buffer)."
            )
            raise UsageError(message)
        raise AssertionError(Problem(problem).name)
