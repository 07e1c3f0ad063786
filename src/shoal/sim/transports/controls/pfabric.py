"""A control like pFabric: the queue says how little of a flow is left, hosts hardly hold back.

Flows begin with the window that fills their path, grow as Reno does, find losses by a small fixed
timer only, and begin at one packet after it (Alizadeh et al., SIGCOMM 2013, section 4.3). The real
one lets the switch send the packet of the flow with the fewest bytes left and drop that with the
most, exactly and out of order within a flow; a switch of eight queues knows eight ranks, serves
each in order of arrival, and drops what arrives. What the paper calls probes are whole packets
here.
"""

from __future__ import annotations

from typing import Final

from shoal.compiled import inlined
from shoal.switching import QUEUES

STEP: Final = 4.0
"""The factor by which each rank spans more than the one before."""


@inlined
def queue_of(left: int, bdp: float) -> int:
    """Return the rank of a flow with `left` packets left: 0 if they fill its path at most once."""
    queue, most = 0, bdp
    while queue < QUEUES - 1 and left > most:
        queue += 1
        most *= STEP
    return queue
