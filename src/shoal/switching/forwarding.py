"""Which of several equal ports a packet takes: by flow (ECMP), or each packet by itself (spraying).

(docs/papers.md, 1.7.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from numpy import uint64

from shoal.compiled import inlined
from shoal.switching.random_bits import mixed

if TYPE_CHECKING:
    from shoal.switching.tables import Row, State


@inlined
def next_port(state: State, node: int, packet: Row) -> int:
    """Return the port by which `packet` leaves `node`; -1 if nothing leads to its destination.

    Nodes hash differently, so that flows which share a port here part at the next node.
    """
    route = state.routes[node, packet.destination]
    first, choices = route[0], route[1]
    if choices == 0:
        return -1
    if choices == 1:
        return int(state.choices[first])
    network = state.network[0]
    key = uint64(packet.flow) + mixed(uint64(network.seed) + uint64(node))
    if network.spray:
        key += mixed(uint64(packet.number))
    word, most = mixed(key), uint64(choices - 1)
    if uint64(choices) & most == uint64(0):  # mostly: a division takes ten times as long
        return int(state.choices[first + int(word & most)])
    return int(state.choices[first + int(word % uint64(choices))])
