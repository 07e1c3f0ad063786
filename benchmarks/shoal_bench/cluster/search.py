"""Which setting of which library is run in a scenario, and how often: one rule for both sides.

Each family of settings runs with one of them first. Of the families that did best on either side
all settings run. The fastest of either side then run again, with other batches. On a clean network
that took 63 jobs, where all settings three times would be 237; and neither side is searched more
closely than the other. A look ends as soon as its setting cannot be among the fastest any more:
that spares 19 of the 82 minutes that all these jobs take to their end on a clean network.
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
BEHIND: Final = 1.25
"""How many times as long one has taken that is out of it: repeats have differed by a tenth."""
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


def look_seconds(contender: Contender, ran: Iterable[ContenderRuns], whole_s: float) -> float:
    """Return how long the first run of `contender` lasts, at most `whole_s`.

    It ends once it is clearly behind those of `ran`, on its side, that would have all their runs
    now. Nobody's figures are cut that are compared: the setting named beforehand and the control
    have their whole time, as has every run but the first.
    """
    if contender.name == NAMED or contender.side is Side.CONTROL:
        return whole_s
    arrived = sorted(each.median_s for each in ran if each.side is contender.side and each.arrivals)
    return min(whole_s, BEHIND * arrived[FINALISTS - 1]) if len(arrived) >= FINALISTS else whole_s


def _ranked(ran: Iterable[ContenderRuns]) -> list[list[ContenderRuns]]:
    """Return each side's contenders, the fastest first; of those that never arrive, the closest."""
    ordered = sorted(ran, key=lambda each: (each.median_s, each.final_loss))
    return [[each for each in ordered if each.side is side] for side in (Side.PEER, Side.OURS)]
