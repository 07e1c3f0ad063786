"""What happens to a cluster in virtual time: links change, others' traffic comes and goes.

At flow level a link has a delay and a rate or, when it is down, none; what it loses is not
modelled (`not_modelled`); packets meet all of it. Background traffic of UDP pushes others aside
where there are packets; among flows it is treated like TCP with a limit. TCP's is carried by the
transport whose packets there are.
"""

from __future__ import annotations

import math
from collections import deque
from contextlib import suppress
from operator import itemgetter
from typing import TYPE_CHECKING

from shoal.errors import UsageError
from shoal.scenario import USUAL_QUEUE_BYTES, HostEvent, LinkEvent, changed, rerouted
from shoal.sim.packet.simulation import Flow as Datagrams
from shoal.sim.transports.bounded_loss import ETHERNET_BYTES
from shoal.sim.transports.standstill import PATIENCE
from shoal.switching import PICOSECONDS, check_paths, down_cables, names_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shoal.scenario import ClusterSpec, Flow
    from shoal.sim.virtual_time import Process, Signal, VirtualTime
    from shoal.switching import Topology

_PIECE_S = 0.01
"""The seconds of a flow without bursts that are sent at once."""
_FASTEST = 1e12
_SHORT = 0.02
"""The largest delay that makes no difference to the rate, as a share of the time from piece to
piece."""
_LONG_S = 1e6
_ROUNDING = 1e-9
"""The tolerance in a number of periods: sums of decimal fractions are a little more or less."""


def slower_hosts(cluster: ClusterSpec) -> list[tuple[int, int, float]]:
    """Return (from when in picoseconds, host, factor) of the hosts that become slower."""
    return [
        (round(each.at_s * PICOSECONDS), each.host, each.slower)
        for each in cluster.events
        if isinstance(each, HostEvent)
    ]


def processes(cluster: ClusterSpec, time: VirtualTime) -> Iterator[Process]:
    """Yield what has to run beside the workers."""
    others = _Others(time)
    if any(isinstance(each, LinkEvent) for each in cluster.events):
        yield _change_links(cluster, time, others)
    elif cluster.flows:
        others.is_cut_off = _is_cut_off(cluster.topology)
    for flow in cluster.flows:
        if flow.protocol == "tcp" or not time.network.sends_datagrams:
            sending = _send(flow, time, others)
            others.processes.add(sending)
            yield sending


class _Others:
    """The background flows: they must not keep time going when nothing else ever happens again.

    That is when a host stays cut off (`is_cut_off`) and others have come to wait for it.
    """

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self.is_cut_off = False
        self.processes: set[Process] = set()
        self.transfers_begun = 0
        self._known, self._since = -1, 0

    def transfer(self, flow: Flow, size: float, rate: float) -> Signal:
        """Start one of a flow's transfers."""
        self.transfers_begun += 1
        return self._time.transfer([flow.source], [flow.target], [size], most=rate)

    def go_on(self) -> bool:
        """Return False when workers have long only waited for workers that are cut off."""
        if not self.is_cut_off:
            return True
        begun = self._time.transfers_begun - self.transfers_begun
        if begun != self._known or self._time.is_anyone_asleep(but=self.processes):
            self._known, self._since = begun, self._time.now
        return self._time.now - self._since < PATIENCE


def datagrams(cluster: ClusterSpec) -> list[Datagrams]:
    """Return the background flows of UDP as sources of packets, in the cluster's queues.

    One without an end has more packets than any run has time for.
    """
    return [
        _datagrams(flow, cluster.queues[flow.dscp], number)
        for number, flow in enumerate(cluster.flows)
        if flow.protocol == "udp" and flow.rate is not None
    ]


def _datagrams(flow: Flow, queue: int, number: int) -> Datagrams:
    assert flow.rate is not None
    interval_s = flow.packet_bytes * 8 / flow.rate
    burst = pause_ps = 0
    lasts_s = _LONG_S if flow.stop_s is None else flow.stop_s - flow.start_s
    packets = round(lasts_s / interval_s)
    if flow.burst_s is not None and flow.period_s is not None:
        burst = max(1, round(flow.burst_s / interval_s))
        whole = int(lasts_s / flow.period_s + _ROUNDING)
        rest_s = max(0.0, lasts_s - whole * flow.period_s)
        packets = whole * burst + round(min(rest_s, flow.burst_s) / interval_s)
        pause_ps = max(0, round((flow.period_s - burst * interval_s) * PICOSECONDS))
    return Datagrams(
        flow.source,
        flow.target,
        flow.packet_bytes + ETHERNET_BYTES,
        max(1, packets),
        max(1, round(interval_s * PICOSECONDS)),
        round(flow.start_s * PICOSECONDS),
        queue,
        key=number,
        burst=burst,
        pause_ps=pause_ps,
        room=USUAL_QUEUE_BYTES,
    )


def check_ways(
    cluster: ClusterSpec, places: Mapping[int, str] | None = None, *, by_packets: bool = False
) -> None:
    """Raise `UsageError` if a host is cut off from the beginning to the end.

    By links that are down or, `by_packets`, lose each of them: transfers would wait for ever. What
    happens later a job may be too short to meet. `places` says, by cable, where that is said.
    """
    closed = _dead_cables if by_packets else down_cables
    topology = first = cluster.topology
    for event in cluster.events:
        if isinstance(event, LinkEvent):
            topology = changed(topology, event, cluster.topology)
            first = topology if event.at_s == 0 else first
    with suppress(UsageError):
        check_paths(first, closed(first))
        return
    dead, down = closed(topology), down_cables(topology)
    try:
        check_paths(topology, dead)
    except UsageError as error:
        names = names_of(topology)
        what = "are down" if dead == down else "are down or lose all packets"
        links = ", ".join(names[number] for number in dead)
        message = f"{error} These links {what} and stay so: {links}."
        place = (places or {}).get(dead[0]) if dead else None
        raise UsageError(message if place is None else f"{place}: {message}") from error


def _dead_cables(topology: Topology) -> list[int]:
    """Return the numbers of cables that no packet ever gets through."""
    return [
        number
        for number, cable in enumerate(topology.cables)
        if cable.link.down
        or (cable.link.loss >= 1 and (cable.link.to_bad == 0 or cable.link.bad_loss >= 1))
    ]


def loses(cluster: ClusterSpec) -> bool:
    """Return whether a link loses packets, from the beginning or later."""
    links = [cable.link for cable in cluster.topology.cables]
    events = [each for each in cluster.events if isinstance(each, LinkEvent)]
    settings = {name for event in events for name, _ in event.link}
    found = any(link.loss or link.to_bad for link in links)
    return found or bool(settings & {"loss", "bad_loss", "to_bad"})


def not_modelled(cluster: ClusterSpec, *, over_transports: bool = False) -> list[str]:
    """Return a sentence for everything in the cluster that flows, not packets, know nothing of.

    Flows `over_transports` are calibrated: they meet the links' loss.
    """
    links = [cable.link for cable in cluster.topology.cables]
    events = [each for each in cluster.events if isinstance(each, LinkEvent)]
    settings = {name for event in events for name, _ in event.link}
    found = []
    if over_transports or _has_limits(cluster):
        found.append("Flows know no queues: what ports hold, mark and drop is left out.")
    if not over_transports and loses(cluster):
        found.append("Flows lose nothing: the links' loss is left out.")
    if any(link.jitter_s or link.reorder for link in links) or settings & {"jitter_s", "reorder"}:
        found.append("Flows keep their order: the links' jitter and reordering are left out.")
    if cluster.flows:
        found.append("Background flows take no more than their fair share, those of UDP included.")
    return found


def left_out_of_packets(cluster: ClusterSpec) -> list[str]:
    """Return sentences for what is left out where a transport like TCP is simulated by packets."""
    usual = cluster.queues[0]
    if any(each.protocol == "tcp" and cluster.queues[each.dscp] != usual for each in cluster.flows):
        return ["Background flows of TCP are in the queue of DSCP 0: theirs is left out."]
    return []


def _has_limits(cluster: ClusterSpec) -> bool:
    """Return whether a port drops or marks, or shares a buffer."""
    ports = {each.port for each in cluster.topology.cables}
    queues = {each for port in ports for each in port.queues}
    has_profiles = any(each.plain or each.capable for each in queues)
    is_limited = any(each.limit_bytes or each.limit_packets for each in ports | queues)
    return cluster.shared_buffer is not None or has_profiles or is_limited


def _is_cut_off(topology: Topology) -> bool:
    """Return whether a host cannot reach another."""
    try:
        check_paths(topology, down_cables(topology))
    except UsageError:
        return True
    return False


def _change_links(cluster: ClusterSpec, time: VirtualTime, others: _Others) -> Process:
    """Change cables when events say so, and routes when switches have noticed."""
    agenda: list[tuple[float, int, LinkEvent | None]] = []
    for order, event in enumerate(cluster.events):
        if isinstance(event, LinkEvent):
            agenda.append((event.at_s, order, event))
            noticed_s = rerouted(cluster, event)
            if noticed_s is not None:
                agenda.append((noticed_s, order, None))
    topology = cluster.topology
    for at_s, _, change in sorted(agenda, key=itemgetter(0, 1)):
        yield max(0, round(at_s * PICOSECONDS) - time.now)
        if change is None:
            time.network.avoid(time.now, down_cables(topology))
            continue
        topology = changed(topology, change, cluster.topology)
        for number in change.cables:
            time.network.alter(time.now, number, topology.cables[number])
    others.is_cut_off = bool(cluster.flows) and _is_cut_off(topology)


def _send(flow: Flow, time: VirtualTime, others: _Others) -> Process:
    """Send piece after piece, each when it is due and the ones before are through.

    So many at once as a way's delay takes; one where that is short. Networks that keep to no rate
    send a piece as soon as it is due.
    """
    rate = _FASTEST if flow.rate is None else float(flow.rate)
    length_s = flow.burst_s or _PIECE_S
    period_s = flow.period_s or (length_s if flow.rate is not None else 0.0)
    size = (rate if flow.rate is not None else 1e9) / 8 * length_s
    begin_s, stop_s = flow.start_s, float("inf") if flow.stop_s is None else flow.stop_s
    under_way: deque[Signal] = deque()
    while begin_s < stop_s and others.go_on():
        yield max(0, round(begin_s * PICOSECONDS) - time.now)
        share = min(1.0, (stop_s - begin_s) / length_s + _ROUNDING) if flow.rate else 1.0
        under_way.append(others.transfer(flow, size * share, rate))
        delay_s = time.network.delay(flow.source, flow.target) / PICOSECONDS
        is_far = flow.rate is not None and delay_s > _SHORT * period_s
        while len(under_way) > (math.ceil(delay_s / period_s) if is_far else 0):
            yield under_way.popleft()
        begin_s = max(begin_s + period_s, time.now / PICOSECONDS - period_s)
