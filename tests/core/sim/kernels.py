"""Has the simulator's kernels compiled: before the time of any test is taken."""

from __future__ import annotations

from engines import Heap, Window
from flows import star_of
from tcp_networks import finish, network_of, send, star_with
from tcp_networks import port as transfer_port

from shoal.sim.flow.flow_network import FlowNetwork
from shoal.sim.packet.simulation import Flow, Simulation
from shoal.switching.tables import NEVER


def compile_kernels() -> None:
    """Run the compiled entry points once."""
    for engine in (Heap, Window):
        each = engine(star_of(2), seed=1)
        each.send(0, 1, 0, 1_500)
        each.finish()
    Simulation(star_of(2), [Flow(0, 1, 1_500, 1, 1)]).finish()
    network = network_of(star_with(2, transfer_port()))
    finish(network, [send(network, 0, 1, 2)])
    flows = FlowNetwork(star_of(2), local_rate=1e9)
    flows.start(0, [0], [1], [1.0])
    flows.run(NEVER)
