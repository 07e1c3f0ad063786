"""How many packets per second this machine's switch carries, and how late it is meanwhile.

The lab's shape with links so fast that they hold nothing back: what is late or lost there is the
machine's doing. Senders and receivers are on the same machine, as they are in every lab; receivers
count packets as they come into the host, and no program reads them.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from shoal.lab.check.fidelity import DELAY_TOLERANCE_S, RATE_TOLERANCE, distance, percentile
from shoal.lab.check.probes import (
    FULL_BYTES,
    HEADERS_BYTES,
    Probe,
    Stream,
    payload_in,
    wait_until_empty,
)
from shoal.lab.check.ways import delay_over_any_path_s
from shoal.lab.closing import Closing
from shoal.lab.network.fabric import Fabric
from shoal.switching import Cable, Link, Port

if TYPE_CHECKING:
    from shoal.switching import State, Topology

FIRST_RUNG: Final = 20_000.0
"""Packets per second that the search begins with."""
RUNG: Final = 1.25
LAST_RUNG: Final = 3_000_000.0

_FAST: Final = 20_000_000_000
_PACKETS: Final = 1 << 16
_BACKLOG: Final = 2_000
"""Packets; fewer stay where an ordinary user's sockets are small."""
_BACKLOG_S: Final = 0.1
_GAP_S: Final = 0.001
_SETTLE_S: Final = 0.1
_PATIENCE_S: Final = 10.0
_SENDERS_TOLERANCE: Final = 0.1
_TRIES: Final = 2
"""A load that is not carried is tried again: other programs have moments."""


@dataclass(frozen=True, slots=True)
class Step:
    """What happened at one load."""

    offered: float
    """Packets per second that the senders were to send."""
    sent: float
    """Packets per second that were sent: on a busy machine senders get behind, and catch up."""
    carried: float
    """Packets per second that came out."""
    p50_error_s: float
    """How much longer than it should a packet took that met no other, for half of the packets."""
    p99_error_s: float
    lateness_s: float
    """The most by which the switch handled an event late, in seconds."""
    busy: float
    """Share of the time that the switch spent at work."""
    packet_s: float
    """Processor time of the switch for each packet."""

    @property
    def rate_error(self) -> float:
        """The share of what was sent by which more came out; negative if less did."""
        return self.carried / max(1.0, self.sent) - 1

    @property
    def is_rate_right(self) -> bool:
        """Whether as much was sent as should be, and as much came out as was sent."""
        are_senders_right = abs(self.sent / self.offered - 1) < _SENDERS_TOLERANCE
        return are_senders_right and abs(self.rate_error) < RATE_TOLERANCE

    def is_right(self, share: float) -> bool:
        """Return whether rate and delay (the median or the 99th percentile) were as they should."""
        error = self.p50_error_s if share <= 0.5 else self.p99_error_s
        return self.is_rate_right and abs(error) < DELAY_TOLERANCE_S


def unhindered(topology: Topology) -> Topology:
    """Return the shape with nothing that holds packets back, and two more hosts for probes.

    Delays stay: packets under way are work.
    """
    cables = [
        replace(cable, port=Port(_FAST), link=Link(delay_s=cable.link.delay_s))
        for cable in topology.cables
    ]
    names = ("probe to", "probe from")
    for place, beside in enumerate((0, topology.hosts - 1), start=topology.hosts):
        switch = topology.cables[topology.access_port(beside)].target
        name = names[place - topology.hosts]
        cables += [
            Cable(name, *ends, Port(_FAST), Link()) for ends in ((place, switch), (switch, place))
        ]
    return replace(topology, host_names=(*topology.host_names, *names), cables=tuple(cables))


class LoadTest(Closing):
    """A fabric of a lab's shape under load; a context manager."""

    def __init__(self, topology: Topology, *, spray: bool, offloads: bool = True) -> None:
        self._hosts = topology.hosts
        self._topology = unhindered(topology)
        self._open = contextlib.ExitStack()
        self._fabric = self._open.enter_context(
            Fabric(self._topology, spray=spray, packets=_PACKETS, offloads=offloads)
        )
        hosts = range(self._hosts)
        self._pairs = [(host, (host + (self._hosts + 1) // 2) % self._hosts) for host in hosts]
        self._probed = (self._hosts + 1, self._hosts)

    @property
    def is_prompt(self) -> bool:
        """Whether the switch runs before ordinary programs."""
        return self._fabric.is_prompt

    @property
    def has_offloads(self) -> bool:
        """Whether hosts hand over many packets as one frame."""
        return self._fabric.has_offloads

    def step(self, offered: float, seconds: float) -> Step:
        """Return what happens at a load of `offered` packets per second."""
        fabric, pairs = self._fabric, self._pairs
        threads = max(1, min(len(pairs), (os.cpu_count() or 1) - 1, 4))
        with contextlib.ExitStack() as streams:
            probe = streams.enter_context(Probe(fabric, *self._probed))
            sending = [
                streams.enter_context(Stream(fabric, pairs[k::threads], offered / threads))
                for k in range(threads)
            ]
            time.sleep(_SETTLE_S)
            fabric.take_lateness()
            before = self._look(sending)
            probe.send(range(max(10, round(seconds / _GAP_S))), FULL_BYTES, gap_s=_GAP_S)
            after = self._look(sending)
            lateness = fabric.take_lateness()
            time.sleep(_SETTLE_S)
        wait_until_empty(fabric, _PATIENCE_S)
        elapsed, sent, arrived, busy, processor = (
            b - a for a, b in zip(before, after, strict=True)
        )
        errors = self._errors(probe)
        return Step(
            offered=offered,
            sent=sent / elapsed,
            carried=arrived / elapsed,
            p50_error_s=percentile(errors, 0.5),
            p99_error_s=percentile(errors, 0.99),
            lateness_s=lateness,
            busy=busy / 1e9 / elapsed,
            packet_s=processor / max(1.0, arrived),
        )

    def backlog_s(self) -> float:
        """Return the switch's processor time per packet when it never has to wait for one.

        It stands still while its sockets fill, and then works that off: what one core carries,
        however fast the senders on this machine are.
        """
        fabric, stands, filled = self._fabric, threading.Event(), threading.Event()

        def stand_still(_state: State) -> None:
            stands.set()
            filled.wait(_PATIENCE_S)

        waiter = threading.Thread(target=fabric.change, args=(stand_still,), name="shoal-backlog")
        waiter.start()
        with contextlib.ExitStack() as until_read:
            try:
                stands.wait(_PATIENCE_S)
                # Its sockets stay: a host whose programs do not listen answers, which takes time.
                stream = Stream(fabric, self._pairs, _BACKLOG / _BACKLOG_S)
                until_read.enter_context(stream)
                time.sleep(_BACKLOG_S)
                stream.stop()
                arrived, spent_s = self._arrived(), fabric.processor_s()
            finally:
                filled.set()
                waiter.join()
            time.sleep(_SETTLE_S)
            wait_until_empty(fabric, _PATIENCE_S)
            return (fabric.processor_s() - spent_s) / max(1, self._arrived() - arrived)

    def close(self) -> None:
        """Remove the fabric."""
        self._open.close()

    def _look(self, streams: Sequence[Stream]) -> tuple[float, ...]:
        """Return the time, packets sent and arrived, nanoseconds busy and processor time so far."""
        fabric = self._fabric
        arrived = self._arrived()
        busy = fabric.loop_counts()["busy"]
        sent = sum(stream.sent for stream in streams)
        return time.monotonic(), sent, arrived, busy, fabric.processor_s()

    def _arrived(self) -> int:
        """Return how many full packets have come to the hosts."""
        received = sum(payload_in(self._fabric, host) for host in range(self._hosts))
        return received // (FULL_BYTES - HEADERS_BYTES)

    def _errors(self, probe: Probe) -> list[float]:
        right = delay_over_any_path_s(self._topology, *self._probed, FULL_BYTES)
        return [distance(each, *right) for each in probe.delays_s()] or [float("inf")]


@dataclass(frozen=True, slots=True)
class Ladder:
    """What happened at growing loads, up to the first that was too much."""

    steps: Sequence[Step]

    @property
    def carried(self) -> float:
        """Largest load, in packets per second, with the right rate; 0 if the first was too much."""
        return max((step.offered for step in self.steps if step.is_rate_right), default=0.0)

    def holds_up_to(self, share: float) -> float:
        """Return the load up to which rate and delay are right at all steps; 0 for none.

        `share` says of which percentile of the delays: 0.5 or 0.99.
        """
        held = 0.0
        for step in sorted(self.steps, key=lambda step: step.offered):
            if not step.is_right(share):
                break
            held = step.offered
        return held


def climb(test: LoadTest, seconds: float, *, extra: float | None = None) -> Ladder:
    """Return what happens at growing loads; `extra` is a load to be among them."""
    steps, offered = [], FIRST_RUNG
    if extra is not None and extra < FIRST_RUNG:
        steps.append(_best_of_tries(test, extra, seconds))
    while offered <= LAST_RUNG:
        if extra is not None and offered < extra < offered * RUNG:
            steps.append(_best_of_tries(test, offered, seconds))
            if not steps[-1].is_rate_right:
                break
            offered, extra = extra, None
        steps.append(_best_of_tries(test, offered, seconds))
        if not steps[-1].is_rate_right:
            break
        offered *= RUNG
    return Ladder(steps)


def _best_of_tries(test: LoadTest, offered: float, seconds: float) -> Step:
    tries = []
    for _ in range(_TRIES):
        tries.append(test.step(offered, seconds))
        if tries[-1].is_rate_right:
            break
    return max(tries, key=lambda step: step.carried)
