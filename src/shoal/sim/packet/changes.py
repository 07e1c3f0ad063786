"""Networks that change while packets are inside: what is written, and the window from then on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.sim.packet.window import take_over
from shoal.sim.packet.window_tables import new_window
from shoal.switching import set_link, set_port, set_routes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from shoal.sim.packet.window_tables import Window
    from shoal.switching import Cable, State, Topology


def changed_window(
    state: State, window: Window, write: Callable[[State], None], *, least_size: int
) -> Window:
    """Let `write` change settings of ports, links and routes; return the window that goes on.

    How far the kernel may look ahead depends on delays and rates: so `window` is not used again.
    """
    write(state)
    after = new_window(state, least_size=least_size)
    take_over(state, window, after)
    return after


def like(number: int, cable: Cable) -> Callable[[State], None]:
    """Return what makes the cable of this number like `cable`; its port keeps its buffer."""

    def write(state: State) -> None:
        set_port(state, number, cable.port, int(state.ports[number]["buffer"]))
        set_link(state, number, cable.link)

    return write


def avoiding(topology: Topology, cables: Collection[int]) -> Callable[[State], None]:
    """Return what makes switches send by shortest paths without `cables`."""
    return lambda state: set_routes(state, topology, cables)
