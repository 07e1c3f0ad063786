"""DCTCP: the window shrinks by half the share of packets that came with a mark (RFC 8257).

The share's running mean and what follows from it are `transport.rates.dctcp`'s, whose reports come
twice a window and move the window at its end only. Here every packet is acknowledged with its mark:
the first mark of a window shrinks it at once (3.3), and between reductions it grows like Reno's. A
loss counts as it does there (3.5).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.compiled import inlined
from shoal.sim.transports.controls.newreno import SMALLEST_THRESHOLD
from shoal.sim.transports.transport_tables import Mode
from shoal.transport import next_fraction, reduced

if TYPE_CHECKING:
    from shoal.sim.transports.transport_tables import Row

OPEN: Final = int(Mode.OPEN)


@inlined
def note_echo(flow: Row, echo: int) -> bool:
    """Note whether an acknowledgement tells of a mark, 1 or 0; return whether it lets grow."""
    flow.echoes += 1
    flow.marked += echo
    if flow.una >= flow.observed_to:
        flow.fraction = next_fraction(flow.fraction, int(flow.marked), int(flow.echoes))
        flow.echoes, flow.marked, flow.observed_to = 0, 0, flow.nxt
    if echo and flow.mode == OPEN and flow.una > flow.reduced_to:
        flow.threshold = max(SMALLEST_THRESHOLD, reduced(flow.window, flow.fraction))
        flow.window = flow.threshold
        flow.reduced_to = flow.nxt
    return bool(flow.una > flow.reduced_to)
