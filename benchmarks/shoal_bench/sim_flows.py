"""Section `sim-flows`: flows that the flow network carries per second of one core's time.

Two patterns of simulation.md, section 3, with sizes that all differ: a ring, in which a flow meets
no other, and incasts of 15 to 1, in which every end changes the rates of all that are left. Flows
begin in rounds, a round's time after another; nothing is skipped or repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal_bench.reference_flows import CASES, run, scenario_of
from shoal_bench.rows import Row, figure

if TYPE_CHECKING:
    from shoal_bench.stand import Stand

NAME = "sim-flows"


def measure(stand: Stand) -> list[Row]:
    """Return the rates of both patterns for few and for many hosts."""
    flows = stand.choose(full=400_000, quick=40_000)
    repeats = stand.choose(full=5, quick=2)
    rows = []
    for case, (pattern, hosts) in stand.each(CASES):
        run(scenario_of(pattern, hosts, 2, seed=1))  # compiles
        scenario = scenario_of(pattern, hosts, -(-flows // hosts), seed=1, overlap=0.0)
        rates = [len(scenario["flows"]) / run(scenario)[0] for _ in range(repeats)]
        rows.append(figure(case, "flows carried", "flows/s", rates))
    return rows
