"""Section `sim-simgrid`: flows per second of one core's time, Shoal's flow network and SimGrid.

Both are given the same flows over a star, in turns; SimGrid, from C++, in a process of its own.
What is timed is the run, not the making of the network. Both must end at the same time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.switching import PICOSECONDS
from shoal_bench.reference_flows import CASES, run, scenario_of
from shoal_bench.reference_tools import missing_for_simgrid, run_simgrid
from shoal_bench.rows import Row, at_least, comparison

if TYPE_CHECKING:
    from shoal_bench.stand import Stand

NAME: Final = "sim-simgrid"
_TARGET_FROM: Final = 1024
"""Hosts."""


def measure(stand: Stand) -> list[Row]:
    """Return the rates side by side; none if SimGrid is not here."""
    missing = missing_for_simgrid()
    if missing:
        stand.skip(f"SimGrid is not compared: {missing} would be needed.")
        return []
    rows = []
    flows = stand.choose(full=40_000, quick=10_000)
    repeats = stand.choose(full=3, quick=1)
    for case, (pattern, hosts) in stand.each(CASES):
        scenario = scenario_of(pattern, hosts, -(-flows // hosts), seed=1)
        run(scenario)  # compiles
        pairs = []
        for _ in range(repeats):
            theirs = run_simgrid([scenario])[0]
            took_s, end = run(scenario)
            assert abs(end / PICOSECONDS / max(theirs["ends_s"]) - 1) < 1e-6
            count = len(scenario["flows"])
            pairs.append((count / took_s, count / theirs["processor_s"]))
        target = at_least(20) if hosts >= _TARGET_FROM else None
        rows.append(
            comparison(case, "flows carried", "flows/s", pairs, peer="SimGrid", target=target)
        )
    return rows
