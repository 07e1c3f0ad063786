"""Independent runs, made in parallel processes or on Ray, each written down as soon as it ends.

Knows nothing of what a run computes. Importing it loads neither torch nor Ray.
"""

from __future__ import annotations

from shoal.sweeps.interval import Spread, spread_of, spread_of_all, with_deviation, with_interval
from shoal.sweeps.journal import Journal
from shoal.sweeps.run import Run
from shoal.sweeps.sweep import Finished, make_runs, usable_cores

__all__ = [
    "Finished",
    "Journal",
    "Run",
    "Spread",
    "make_runs",
    "spread_of",
    "spread_of_all",
    "usable_cores",
    "with_deviation",
    "with_interval",
]
