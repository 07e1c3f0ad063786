"""Has the lab's switch compiled, or its code loaded, without a network of its own."""

from __future__ import annotations

from shoal.compiled import compiling_once
from shoal.lab.network.switch_loop import forward, new_cables
from shoal.switching import CLASS_SELECTORS, Link, Materials, Port, make_state, star


def load_switch() -> None:
    """Let a switch of two hosts run that has been told to stop already."""
    port = Port(1_000_000)
    topology = star(["host0", "host1"], Materials(port, port, Link()))
    state = make_state(topology, seed=0, packets=16)
    ports = [topology.access_port(host) for host in range(topology.hosts)]
    cables = new_cables(state, [-1, -1], ports, CLASS_SELECTORS, wake_fd=-1)
    cables.loop["wanted"] = 1
    with compiling_once("switch"):
        forward(state, cables)
