"""Hosts as namespaces, joined by a software switch that runs in a thread of this process.

Owns the namespaces, the links into them, the packet sockets and the thread. Everything is gone when
it is closed or the process ends, however it ends: nothing of it has a name outside.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Final, TypeVar

from shoal.compiled import announce, compiling_once, is_cold
from shoal.errors import DeadlineExceeded, ResourceError
from shoal.lab.closing import Closing
from shoal.lab.network.host_interfaces import (
    CHECKSUM,
    INTERFACE,
    SEGMENTATION,
    address_of,
    link_lines,
    set_up_lines,
    tells_how_to_cut,
    turn_off,
)
from shoal.lab.network.namespaces import Namespace, inside, obstacle
from shoal.lab.network.promptness import be_prompt
from shoal.lab.network.shaper import HOST_QUEUE_BYTES, pace_lines, shape_lines
from shoal.lab.network.switch_loop import forward, new_cables
from shoal.switching import (
    CLASS_SELECTORS,
    PICOSECONDS,
    USUAL_PACKETS,
    make_state,
    set_link,
    set_port,
    set_routes,
)
from shoal.wire import enlarge_buffer

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from shoal.switching import Link, Port, State, Topology

# Not pyroute2 (0.9.7): it drops the limit of a bfifo and the peak rate of a tbf without a word, and
# makes a message in Python for every neighbor of every host, one after the other.
COMMANDS: Final = ("ip", "tc")
"""What must be installed."""

_ETH_P_ALL: Final = 0x0003
_SOL_PACKET: Final = 263
_PACKET_STATISTICS: Final = 6
_PACKET_VNET_HDR: Final = 15
_STATISTICS: Final = struct.Struct("II")
"""Frames that came to a socket and frames that it had no room for, since this was last asked."""
_PACKET_QDISC_BYPASS: Final = 20
_PACKET_IGNORE_OUTGOING: Final = 23
_SOCKET_BUFFER: Final = 8 << 20
_PATIENCE_S: Final = 10.0

Result = TypeVar("Result")


class Fabric(Closing):
    """A context manager: leaving it removes everything. Raises `ResourceError` if refused.

    `queues` says for each DSCP which queue of a port it goes to; `spray` that packets and not flows
    choose among equal paths; `shared_buffers` as for `make_state`. With `offloads` hosts hand over
    and are given many packets as one frame if the kernel can do that, and the switch cuts and joins
    them; without, each packet is a frame, which takes the kernel several times as long.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        seed: int = 1,
        spray: bool = False,
        queues: Sequence[int] = CLASS_SELECTORS,
        shared_buffers: Sequence[int] = (),
        packets: int = USUAL_PACKETS,
        offloads: bool = True,
    ) -> None:
        self.topology = topology
        self._state = make_state(
            topology, seed=seed, packets=packets, spray=spray, shared_buffers=shared_buffers
        )
        self._open = contextlib.ExitStack()
        self._changes: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None
        self.has_offloads = False
        """Whether hosts hand over frames with many packets, and are given them."""
        self.paces_hosts = True
        """Whether programs wait when their host's link is busy; else what is too much is lost."""
        self._unread = 0
        self._paced: dict[int, int] = {}
        """The bits per second that programs on each host are given."""
        self.is_prompt = False
        """Whether the switch runs before ordinary programs; else it is late when they are busy."""
        try:
            self._switch = self._open.enter_context(Namespace())
            self._hosts = [self._open.enter_context(Namespace()) for _ in range(topology.hosts)]
            self._join()
            self._sockets = self._open_sockets()
            self._set_up(offloads=offloads)
            self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._open.callback(os.close, self._wake_fd)
            ports = [topology.access_port(host) for host in range(topology.hosts)]
            self._cables = new_cables(
                self._state,
                [each.fileno() for each in self._sockets],
                ports,
                queues,
                wake_fd=self._wake_fd,
            )
            self._start()
        except BaseException:
            self.close()
            raise

    @property
    def hosts(self) -> list[str]:
        """Paths of the hosts' namespaces, for `inside`, while this is open."""
        return [host.path for host in self._hosts]

    def alter(self, number: int, port: Port, link: Link) -> None:
        """Let port `number` and its link be like these from now on."""

        def write(state: State) -> None:
            set_port(state, number, port, int(state.ports[number]["buffer"]))
            set_link(state, number, link)

        source = self.topology.cables[number].source
        if source >= 0 and self.paces_hosts and self._paced.get(source) != port.rate:
            self._shape(source, port.rate, change=True)
        self.change(write)

    def avoid(self, cables: Collection[int]) -> None:
        """Send by shortest paths without these cables from now on."""
        self.change(lambda state: set_routes(state, self.topology, cables))

    def counts(self) -> NDArray[np.int64]:
        """Return what has been counted so far, by port, queue, color and `Count`."""
        return self.change(lambda state: state.counts.copy())

    def loop_counts(self) -> dict[str, int]:
        """Return what the loop has counted: frames, and how late it was (picoseconds)."""
        row = self._cables.loop[0]
        wanted = (
            "received",
            "strangers",
            "oversized",
            "refused",
            "unsent",
            "rounds",
            "waits",
            "busy",
            "latest",
        )
        return {name: int(row[name]) for name in wanted}

    def overruns(self) -> int:
        """Return how many frames the machine has lost: not read in time, no memory, not taken.

        None of the network's counts has them, and no figure of a lab with many of them is right.
        """
        for each in self._sockets:
            _, dropped = _STATISTICS.unpack(
                each.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, _STATISTICS.size)
            )
            self._unread += dropped
        counts = self.loop_counts()
        return self._unread + counts["refused"] + counts["unsent"]

    def take_lateness(self) -> float:
        """Return by how many seconds an event was handled late, at most, since the last call."""
        row = self._cables.loop[0]
        latest = int(row["latest"])
        row["latest"] = 0
        return latest / PICOSECONDS

    def processor_s(self) -> float:
        """Return the processor time that the switch has taken so far."""
        assert self._thread is not None
        assert self._thread.ident is not None
        return time.clock_gettime(time.pthread_getcpuclockid(self._thread.ident))

    def change(self, work: Callable[[State], Result]) -> Result:
        """Return what `work` returns, called with the tables while nothing moves.

        Raises what it raises, or `DeadlineExceeded` if the switch does not come to a stop.
        """
        outcome: Future[Result] = Future()

        def attempt() -> None:
            try:
                outcome.set_result(work(self._state))
            except BaseException as error:  # noqa: BLE001 - raised in the thread that asked
                outcome.set_exception(error)

        if self._thread is None:
            return work(self._state)
        self._changes.append(attempt)
        self._interrupt()
        if not wait([outcome], _PATIENCE_S).done:
            message = f"The switch did not stop within {_PATIENCE_S:g} s."
            raise DeadlineExceeded(message)
        return outcome.result()

    def close(self) -> None:
        """Stop the switch and let go of everything. Safe to call twice."""
        if self._thread is not None:
            self._stopping = True
            self._interrupt()
            self._thread.join()
            self._thread = None
        self._open.close()

    def _join(self) -> None:
        """Make every host's link, with its other end in the switch's namespace."""
        keep = [host.fileno for host in self._hosts]
        self._switch.batch("ip", link_lines("host", keep), keep=keep)
        for index, host in enumerate(self._hosts):
            host.batch("ip", set_up_lines(index, len(self._hosts)))

    def _set_up(self, *, offloads: bool) -> None:
        """Give both ends of every link the offloads, and each host the pace, that they are to have.

        Hosts cannot have offloads if the kernel does not say how frames are to be cut, or has no
        bucket that takes them whole. The kernel's own joining (GRO) is off in any case.
        """
        first = self._hosts[0].path
        self.has_offloads = (
            offloads
            and len(self._hosts) > 1
            and tells_how_to_cut(first, address_of(1), self._sockets[0])
        )
        self.paces_hosts = self._pace()
        if self.has_offloads and not self.paces_hosts:
            self.has_offloads, self.paces_hosts = False, self._pace()
        off = {"gro": SEGMENTATION["gro"]} if self.has_offloads else SEGMENTATION
        turn_off(self._switch.path, [f"host{k}" for k in range(len(self._hosts))], off.values())
        off = off if self.has_offloads else {**off, **CHECKSUM}
        for host in self._hosts:
            turn_off(host.path, [INTERFACE], off.values())

    def _pace(self) -> bool:
        """Make the hosts' programs wait for their links; return whether the kernel can."""
        cables = self.topology.cables
        try:
            for host in range(len(self._hosts)):
                self._shape(host, cables[self.topology.access_port(host)].port.rate)
        except ResourceError:  # no such buckets in this kernel
            return False
        return True

    def _shape(self, host: int, rate: int, *, change: bool = False) -> None:
        self._paced[host] = rate
        lines_of = pace_lines if self.has_offloads else shape_lines
        lines = lines_of(INTERFACE, rate, HOST_QUEUE_BYTES, change=change)
        self._hosts[host].batch("tc", lines)

    def _open_sockets(self) -> list[socket.socket]:
        sockets = []
        with inside(self._switch.path):
            for index in range(len(self._hosts)):
                made = self._open.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
                made.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
                made.setsockopt(_SOL_PACKET, _PACKET_QDISC_BYPASS, 1)
                made.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
                for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                    enlarge_buffer(made, option, _SOCKET_BUFFER)
                made.bind((f"host{index}", _ETH_P_ALL))
                sockets.append(made)
        return sockets

    def _start(self) -> None:
        self._stopping = False
        self._cables.loop["started"] = time.monotonic_ns()
        if is_cold("switch"):
            announce("the lab's switch", "half a minute")
        with compiling_once("switch"):
            self._cables.loop["wanted"] = 1
            forward(self._state, self._cables)
        self._cables.loop["wanted"] = 0
        self._thread = threading.Thread(target=self._run, name="shoal-switch", daemon=True)
        self._thread.start()
        self.is_prompt = self.change(lambda _state: be_prompt())

    def _run(self) -> None:
        while not self._stopping:
            forward(self._state, self._cables)
            self._cables.loop["wanted"] = 0
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake_fd)
            while self._changes:
                self._changes.popleft()()

    def _interrupt(self) -> None:
        self._cables.loop["wanted"] = 1
        os.eventfd_write(self._wake_fd, 1)


def why_not() -> str | None:
    """Return a sentence on why there can be no fabric here; None if there can."""
    found = obstacle(COMMANDS)
    if found is not None:
        return found
    try:
        with Namespace() as namespace, inside(namespace.path):
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()
    except (OSError, ResourceError) as error:
        return f"Packet sockets cannot be opened: {error}."
    return None
