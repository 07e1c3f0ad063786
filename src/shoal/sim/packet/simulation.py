"""A network in virtual time, for people who do not want to know of tables: flows in, figures out.

Owns the tables of one run; the compiled rooms decide. Times are whole picoseconds, sizes bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy import uint64

from shoal.errors import UsageError
from shoal.sim.packet.changes import changed_window
from shoal.sim.packet.sources import arm, new_flows, run
from shoal.sim.packet.window import inject
from shoal.sim.packet.window_tables import LEAST_BYTES, Problem, Window, new_window
from shoal.switching import NEVER, QUEUES, USUAL_PACKETS, Count, free_row, make_state, take_row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from shoal.switching import State, Topology

DROPPED: Final = [Count.DROPPED_EARLY, Count.DROPPED_FULL, Count.DROPPED_SHARED]
GONE: Final = [*DROPPED, Count.LOST]
_ECN_BITS: Final = 3


@dataclass(frozen=True, slots=True)
class Flow:
    """`packets` packets of `size` bytes from host to host, one every `interval_ps`.

    `key` is what its packets choose among equal paths by. After every `burst` packets it pauses for
    `pause_ps` more; 0: never. A packet that is due while more than `room` bytes wait at its host's
    port is left out.
    """

    source: int
    destination: int
    size: int
    packets: int
    interval_ps: int
    start_ps: int = 0
    queue: int = 0
    ecn: int = 0
    key: int = 0
    burst: int = 0
    pause_ps: int = 0
    room: int = NEVER


@dataclass(frozen=True, slots=True)
class PacketArrival:
    """A packet that was put in by hand and has reached its host."""

    number: int
    """The packet's number among all packets, in the order in which they were put in."""
    at_ps: int
    destination: int
    size: int
    queue: int
    ecn: int
    flow: int


class Simulation:
    """Packets over `topology`, by flows or one by one; `advance` lets time pass.

    `packets` may be inside at once; none is smaller than `least_size` bytes, and the run is faster
    the larger that is. The same `seed` gives the same run. Raises `UsageError` for what cannot be.
    """

    def __init__(
        self,
        topology: Topology,
        flows: Sequence[Flow] = (),
        *,
        seed: int = 1,
        packets: int = USUAL_PACKETS,
        least_size: int = LEAST_BYTES,
        spray: bool = False,
        shared_buffers: Sequence[int] = (),
    ) -> None:
        self.topology = topology
        self.state = make_state(
            topology,
            seed=seed,
            packets=packets + len(flows),  # a timer takes a row
            spray=spray,
            shared_buffers=shared_buffers,
        )
        self._room = packets
        self._least_size = least_size
        self._ports: dict[int, int] = {}
        for number, cable in enumerate(topology.cables):
            self._ports.setdefault(cable.source, number)
        for flow in flows:
            check_flow(flow, topology.hosts, least_size)
        self._flows = new_flows(flow_rows(flows, self._ports))
        self._window = self._new_window()
        arm(self.state, self._window, self._flows)

    @property
    def now_ps(self) -> int:
        """How far time has passed."""
        return int(self._window.clock[0]["now"])

    @property
    def flows(self) -> NDArray[np.void]:
        """What has become of each flow so far: rows of `FLOW`."""
        return self._flows.copy()

    @property
    def counts(self) -> NDArray[np.int64]:
        """What has been counted so far, by port, queue, color and `Count`."""
        return self.state.counts.copy()

    def inject(
        self,
        source: int,
        destination: int,
        *,
        size: int,
        at_ps: int,
        queue: int = 0,
        ecn: int = 0,
        key: int = 0,
    ) -> int:
        """Let a packet leave host `source` at `at_ps`, now or later; return its number.

        Raises `UsageError` if it is too small, too late, or the network has no room for it.
        """
        _check_ends(source, destination, queue, ecn, self.topology.hosts)
        row = take_row(self.state)
        problem = inject(
            self.state,
            self._window,
            row,
            self._ports[source],
            at_ps,
            size,
            destination,
            uint64(key),
            queue,
            ecn,
        )
        if problem and row >= 0:
            free_row(self.state, row)
        self._raise(problem)
        return int(self.state.packets[row]["number"])

    def advance(self, until_ps: int) -> None:
        """Let everything happen up to `until_ps`, itself included.

        Raises `UsageError` if more packets are inside than there is room for.
        """
        problem = run(self.state, self._window, self._flows, until_ps)
        self._raise(problem)
        check_packets(self.state)

    def finish(self) -> None:
        """Let time pass until nothing is under way and no flow has anything to send."""
        self.advance(NEVER)

    def delivered(self) -> list[PacketArrival]:
        """Return what was put in by hand and has arrived since this was called last, in order."""
        core = self.state.network[0]
        arrivals = []
        for row in self.state.delivered[: core["waiting"]].tolist():
            packet, at = self.state.packets[row], int(self.state.packets[row]["at"])
            names = ("destination", "size", "queue", "ecn", "flow")
            rest = [int(packet[name]) for name in names]
            arrivals.append(PacketArrival(int(packet["number"]), at, *rest))
            free_row(self.state, row)
        core["waiting"] = 0
        return arrivals

    def change(self, write: Callable[[State], None]) -> None:
        """Let `write` change settings of ports, links and routes from now on."""
        self._window = changed_window(self.state, self._window, write, least_size=self._least_size)

    def digest(self) -> str:
        """Return a hash of all that was counted and of what was delivered when, in its order."""
        summary = blake2b(self.state.counts.tobytes(), digest_size=16)
        summary.update(self._window.clock["digest"].tobytes())
        for name in ("next_number", "injected", "delivered", "delivered_bytes", "draws"):
            summary.update(self.state.network[name].tobytes())
        return summary.hexdigest()

    def _new_window(self) -> Window:
        return new_window(self.state, least_size=self._least_size)

    def _raise(self, problem: int) -> None:
        if problem == Problem.NONE:
            return
        full = (
            f"More than {self._room} packets are in the network at once: ask for room for more"
            " (packets=)."
        )
        said = {
            Problem.FULL: full,
            Problem.SMALL: _too_small(self._least_size),
            Problem.PAST: "Time has passed beyond that: a packet leaves now or later.",
        }
        raise UsageError(said[Problem(problem)])


def check_packets(state: State) -> None:
    """Raise `AssertionError` unless every packet is somewhere, or counted as gone."""
    core, gone = state.network[0], int(state.counts[..., GONE].sum())
    assert core["injected"] == core["delivered"] + gone + core["in_network"]


def flow_rows(
    flows: Sequence[Flow], ports: Sequence[int] | dict[int, int]
) -> list[tuple[int, ...]]:
    """Return what `new_flows` takes; hosts send through `ports`."""
    return [
        (
            flow.packets,
            flow.interval_ps,
            flow.start_ps,
            flow.key,
            flow.burst,
            flow.pause_ps,
            flow.room,
            flow.burst,
            flow.size,
            flow.destination,
            ports[flow.source],
            flow.queue,
            flow.ecn,
        )
        for flow in flows
    ]


def check_flow(flow: Flow, hosts: int, least_size: int) -> None:
    """Raise `UsageError` for a flow that cannot be among `hosts` hosts."""
    _check_ends(flow.source, flow.destination, flow.queue, flow.ecn, hosts)
    if flow.size < least_size:
        raise UsageError(_too_small(least_size))
    if flow.interval_ps < 1 or flow.start_ps < 0 or flow.packets < 0:
        message = (
            "A flow begins at 0 ps or later, has 0 packets or more and at least 1 ps between"
            f" them, not {flow.start_ps} ps, {flow.packets} and {flow.interval_ps} ps."
        )
        raise UsageError(message)


def _check_ends(source: int, destination: int, queue: int, ecn: int, hosts: int) -> None:
    if not (0 <= source < hosts and 0 <= destination < hosts):
        message = f"Hosts are 0 to {hosts - 1}, not {source} and {destination}."
        raise UsageError(message)
    if not (0 <= queue < QUEUES and 0 <= ecn <= _ECN_BITS):
        message = f"Queues are 0 to 7 and ECN bits 0 to 3, not {queue} and {ecn}."
        raise UsageError(message)


def _too_small(least_size: int) -> str:
    return f"No packet may be smaller than {least_size} bytes here (least_size=)."
