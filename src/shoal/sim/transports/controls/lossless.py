"""A window of a given size that nothing changes: an ideal for networks that drop nothing.

Where something does get lost it is sent again as by the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.compiled import inlined

if TYPE_CHECKING:
    from shoal.sim.transports.transport_tables import Row


@inlined
def begin(rules: Row, flow: Row) -> None:
    """Give a flow the window that the rules name, or what fills its path."""
    flow.window = rules.fixed_window if rules.fixed_window > 0 else flow.bdp
    flow.threshold = flow.window
