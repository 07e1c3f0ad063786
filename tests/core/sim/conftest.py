"""The switch's slow descriptions serve here too; kernels are compiled before time is taken."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "switching"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let a test's time limit be generous, and not count its fixtures: one of them compiles."""
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300, func_only=True))


@pytest.fixture(scope="session", autouse=True)
def compiled_kernels() -> None:
    """Run the compiled entry points once."""
    from engines import Heap, Window
    from flows import star_of
    from tcp_networks import finish, network_of, send, star_with
    from tcp_networks import port as transfer_port

    from shoal.sim.packet.simulation import Flow, Simulation

    for engine in (Heap, Window):
        each = engine(star_of(2), seed=1)
        each.send(0, 1, 0, 1_500)
        each.finish()
    Simulation(star_of(2), [Flow(0, 1, 1_500, 1, 1)]).finish()
    network = network_of(star_with(2, transfer_port()))
    finish(network, [send(network, 0, 1, 2)])
