"""A lab: hosts on a fabric, commands on the hosts, and what the spec lets happen to them.

Owns the order in which these come and go. Everything is gone when a lab is closed or its process
ends, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from shoal.errors import UsageError
from shoal.lab.closing import Closing
from shoal.lab.hosts.background import BackgroundFlow
from shoal.lab.hosts.processes import HostProcess, Stream
from shoal.lab.hosts.variables import launcher_variables, rack_variables
from shoal.lab.network.fabric import Fabric
from shoal.lab.network.host_interfaces import INTERFACE, address_of
from shoal.lab.network.switch_loop import SLOT_BYTES
from shoal.lab.open_files import raise_limit, refused_as
from shoal.memory import check_room
from shoal.scenario import (
    USUAL_QUEUE_BYTES,
    HostEvent,
    LinkEvent,
    WorkerEvent,
    changed,
    packets_inside,
    racks_of,
    rerouted,
    with_finite_ports,
)
from shoal.switching import USUAL_PACKETS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from shoal.scenario import ClusterSpec


@dataclass(frozen=True, slots=True)
class LabHost:
    """How a host is called, and how a process gets into it."""

    name: str
    address: str
    path: str
    """The path of the host's namespace, for `inside`."""


class Lab(Closing):
    """A context manager: leaving it ends all commands and removes all hosts.

    Raises `ResourceError` where the system does not allow it.
    """

    def __init__(self, spec: ClusterSpec) -> None:
        # memory ends somewhere, and a port that took all of it would stop the others
        self.spec = spec = with_finite_ports(spec, USUAL_QUEUE_BYTES)
        self._open = contextlib.ExitStack()
        self._processes: list[tuple[int, HostProcess]] = []
        self._slower: dict[int, float] = {}
        self._job_key = secrets.token_hex()
        self._hosts_of_newcomers: dict[int, int] = {}
        self._lock = threading.Lock()
        self.flows: dict[int, BackgroundFlow] = {}
        """The flows by their place in the spec, once they have been made."""
        self.trouble = ""
        """Why events and flows ended before their time, if they did."""
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        topology = spec.topology
        buffer, switches = spec.shared_buffer, len(topology.switches)
        shared = () if buffer is None else (buffer,) * switches
        self._files = raise_limit()
        try:
            with refused_as(f"Cannot build a lab of {topology.hosts} hosts"):
                self.fabric = self._open.enter_context(
                    Fabric(
                        topology,
                        seed=spec.seed,
                        spray=spec.spray,
                        queues=spec.queues,
                        shared_buffers=shared,
                        packets=_packets(spec),
                    )
                )
        except BaseException:
            self.close()
            raise
        self._topology = topology
        self.hosts = [
            LabHost(name, address_of(number), path)
            for number, (name, path) in enumerate(
                zip(topology.host_names, self.fabric.hosts, strict=True)
            )
        ]
        # The second form is how a socket of IPv6 sees a peer that speaks IPv4.
        names = [
            f"{host.address} {host.name}\n::ffff:{host.address} {host.name}\n"
            for host in self.hosts
        ]
        self._names = "127.0.0.1 localhost\n" + "".join(names)

    def begin(self) -> None:
        """Let the events and flows of the spec happen from now on."""
        if self._thread is None and (self.spec.events or self.spec.flows):
            self._thread = threading.Thread(target=self._live, name="shoal-events", daemon=True)
            self._thread.start()

    def start(
        self,
        host: int,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        stdin: Stream = subprocess.DEVNULL,
        stdout: Stream = None,
        stderr: Stream = None,
        directory: str | None = None,
    ) -> HostProcess:
        """Start a command on a host and return it; it ends with this lab, if not before.

        `environment` replaces this process's own; what says where the command is comes on top.
        Raises `UsageError` for what cannot be, `ResourceError` if the system refuses it.
        """
        if not command:
            raise UsageError("A command is missing: give a list of its name and arguments.")
        if not 0 <= host < len(self.hosts):
            message = f"There is no host {host}: this lab has hosts 0 to {len(self.hosts) - 1}."
            raise UsageError(message)
        self._require_open()
        here = self.hosts[host]
        with refused_as(f"Cannot start a command on {here.name}"):
            process = HostProcess(
                command,
                namespace=here.path,
                name=here.name,
                names=self._names,
                files=self._files,
                environment={
                    **(os.environ if environment is None else environment),
                    **_place(here),
                },
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                directory=directory,
            )
        with self._lock:
            if self._closing.is_set():  # meanwhile, in another thread
                process.close()
                self._require_open()
            ended = [each for each in self._processes if each[1].poll() is not None]
            for each in ended:
                self._processes.remove(each)
                each[1].kill()  # what it has written may still be read
            self._processes.append((host, process))
            if host in self._slower:
                process.slow_down(self._slower[host])
        return process

    def start_workers(
        self,
        command: Sequence[str],
        *,
        stdout: Stream = None,
        stderr: Stream = None,
    ) -> list[HostProcess]:
        """Start `command` for every worker, with what torchrun puts into the environment.

        As well as a key for the job, SHOAL_JOB_KEY, if this process has none.
        """
        self._job_key = secrets.token_hex()
        size = self.spec.workers * len(self.hosts)
        return [self.start_worker(r, command, stdout=stdout, stderr=stderr) for r in range(size)]

    def start_worker(
        self,
        rank: int,
        command: Sequence[str],
        *,
        host: int | None = None,
        stdout: Stream = None,
        stderr: Stream = None,
    ) -> HostProcess:
        """Start `command` as one worker of the last job; on `host` if nobody has had its rank."""
        here = self.spec.workers
        variables = launcher_variables(rank, hosts=len(self.hosts), workers_per_host=here)
        if host is not None:
            self._hosts_of_newcomers[rank] = host
        where = self._hosts_of_newcomers.get(rank, rank // here)
        said = {**self.rack_variables(where), **os.environ, **variables}
        said["SHOAL_JOB_KEY"] = os.environ.get("SHOAL_JOB_KEY") or self._job_key
        return self.start(
            where,
            command,
            environment=said,
            stdout=stdout,
            stderr=stderr,
        )

    def rack_variables(self, host: int) -> dict[str, str]:
        """Return what a worker on `host` may know of its rack, as variables."""
        return rack_variables(host, racks_of(self.spec.topology, range(len(self.hosts))))

    def counts(self) -> NDArray[np.int64]:
        """Return what has been counted, by cable of the topology, queue, color and `Count`."""
        return self.fabric.counts()

    def doubts(self) -> list[str]:
        """Return why what happens in this lab is not what its spec says, if it is not."""
        found = []
        if self.trouble:
            found.append(f"events and flows have ended early: {self.trouble}")
        crowded = self.fabric.loop_counts()["refused"]
        if crowded:
            found.append(
                f"{crowded} packets found no memory, whosever they were: ports and links hold more"
                " small ones than there is room for; give ports a lower limit (port_packets)"
            )
        lost = self.fabric.overruns() - crowded
        if lost:
            found.append(f"this machine itself has lost {lost} frames: it is too slow for this lab")
        if not self.fabric.paces_hosts:
            found.append("programs do not wait for their link: this kernel has no token bucket")
        return found

    def slow_down(self, host: int, factor: float) -> None:
        """Let all commands on a host, also later ones, run one part in `factor` of the time."""
        with self._lock:
            self._slower[host] = factor
            for place, process in self._processes:
                if place == host:
                    process.slow_down(factor)

    def change(self, event: LinkEvent) -> None:
        """Let the cables of `event` be what it says, now; its time is not looked at."""
        with self._lock:
            self._topology = changed(self._topology, event, self.spec.topology)
        for number in event.cables:
            cable = self._topology.cables[number]
            self.fabric.alter(number, cable.port, cable.link)

    def reroute(self) -> None:
        """Let switches avoid links that are down, and use links that are up again."""
        cables = self._topology.cables
        self.fabric.avoid([k for k, cable in enumerate(cables) if cable.link.down])

    def close(self) -> None:
        """End and remove everything. Safe to call twice."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        with self._lock:
            for _, process in self._processes:
                process.kill()
            for _, process in self._processes:
                process.close()
            self._processes.clear()
        self._open.close()

    def _require_open(self) -> None:
        if self._closing.is_set():
            raise UsageError("This lab has been closed: nothing can be started in it any more.")

    def _live(self) -> None:
        try:
            self._happen()
        except Exception as error:  # noqa: BLE001 - nobody could catch it here
            self.trouble = f"{type(error).__name__}: {error}"

    def _happen(self) -> None:
        """Do what the spec says when it says so, until this closes."""
        began = time.monotonic()
        with contextlib.ExitStack() as flows:
            agenda = self._agenda(flows)
            for at_s, what in agenda:
                if self._closing.wait(max(0.0, began + at_s - time.monotonic())):
                    return
                what()
            self._closing.wait()

    def _agenda(self, flows: contextlib.ExitStack) -> list[tuple[float, Callable[[], None]]]:
        """Return what happens and after how many seconds, in order."""
        agenda: list[tuple[float, Callable[[], None]]] = []
        for event in self.spec.events:
            if isinstance(event, HostEvent):
                agenda.append((event.at_s, partial(self.slow_down, event.host, event.slower)))
                continue
            if isinstance(event, WorkerEvent):
                continue  # of commands that are run for every worker (`run_on_hosts`)
            agenda.append((event.at_s, partial(self.change, event)))
            later = rerouted(self.spec, event)
            if later is not None:
                agenda.append((later, self.reroute))
        for number, flow in enumerate(self.spec.flows):
            made = flows.enter_context(BackgroundFlow(flow, self.fabric.hosts))
            self.flows[number] = made
            agenda.append((flow.start_s, made.begin))
            if flow.stop_s is not None:
                agenda.append((flow.stop_s, made.stop))
        return sorted(agenda, key=lambda entry: entry[0])


def _packets(spec: ClusterSpec) -> int:
    """Return how many packets the fabric is to have room for; raise `ResourceError`."""
    inside = packets_inside(spec)
    wanted = USUAL_PACKETS + sum(inside.values())
    largest = max(inside, key=inside.__getitem__)
    remedy = f"make them smaller, {largest!r} first"
    check_room(wanted * SLOT_BYTES, "This lab with its buffers and delays", remedy)
    return wanted


def _place(host: LabHost) -> dict[str, str]:
    """Return what tells a command where it is; gloo asks for the interface by name."""
    return {
        "SHOAL_LAB_HOST": host.name,
        "SHOAL_LAB_ADDRESS": host.address,
        "SHOAL_LAB_INTERFACE": INTERFACE,
        "GLOO_SOCKET_IFNAME": INTERFACE,
    }
