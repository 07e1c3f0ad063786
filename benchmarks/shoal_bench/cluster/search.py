"""Which setting of which library is run in a scenario, and how often: one rule for both sides.

Each family of settings runs with one of them first. Of the families that did best on either side
all settings run. The fastest of either side then run again, with other batches. On a clean network
that took 63 jobs, where all settings three times would be 237; and neither side is searched more
closely than the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal_bench.cluster.contenders import NAMED, Side

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shoal_bench.cluster.contenders import Contender
    from shoal_bench.cluster.outcome_rows import ContenderRuns

CLOSER: Final = 2
"""Families of each side of which every setting is tried, and of any that comes close to them."""
CLOSE: Final = 1.1
"""How many times as long one may take that comes close."""
FINALISTS: Final = 3
"""Contenders of each side that run as often as `--repeats` says."""

Wanted = list[tuple["Contender", int]]
"""Contenders with the numbers of their runs."""


def first_looks(contenders: Iterable[Contender], _ran: Iterable[ContenderRuns]) -> Wanted:
    """Return one run of each family's first setting."""
    return [(each, 0) for each in contenders if each.is_first]


def closer_looks(contenders: Sequence[Contender], ran: Iterable[ContenderRuns]) -> Wanted:
    """Return one run of every setting of the families that are fastest so far on either side."""
    of = {each.name: each.family for each in contenders}
    families: set[str] = set()
    for ranked in _ranked(ran):
        best: dict[str, ContenderRuns] = {}
        for each in ranked:
            best.setdefault(of[each.contender], each)
        limit_s = CLOSE * max((each.median_s for each in list(best.values())[:CLOSER]), default=0.0)
        families |= set(list(best)[:CLOSER])
        families |= {f for f, each in best.items() if each.arrivals and each.median_s <= limit_s}
    return [(each, 0) for each in contenders if each.family in families]


def finals(contenders: Iterable[Contender], ran: Iterable[ContenderRuns], repeats: int) -> Wanted:
    """Return all runs of the fastest so far on either side, and of the setting named beforehand."""
    names = {NAMED} | {each.contender for ranked in _ranked(ran) for each in ranked[:FINALISTS]}
    return [(each, run) for run in range(repeats) for each in contenders if each.name in names]


def _ranked(ran: Iterable[ContenderRuns]) -> list[list[ContenderRuns]]:
    """Return each side's contenders, the fastest first; of those that never arrive, the closest."""
    ordered = sorted(ran, key=lambda each: (each.median_s, each.final_loss))
    return [[each for each in ordered if each.side is side] for side in (Side.PEER, Side.OURS)]
