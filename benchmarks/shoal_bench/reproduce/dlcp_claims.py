"""DLCP's and MLT's claims beside what was found: the paper's number, ours, and what differs.

Rivals over TCP count with Linux's least timeout; the tables have them with shorter ones as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from shoal_bench.reproduce.claim import Claim, verdict
from shoal_bench.reproduce.dlcp import (
    ASSUMED_SHARE,
    BEST_OWN,
    BEST_PRIOR,
    BOUND,
    DCTCP,
    DLCP,
    PFABRIC,
    TCP,
    TESTBED,
    Trial,
)

if TYPE_CHECKING:
    from shoal.sweeps import Spread
    from shoal_bench.reproduce.dlcp import DlcpComparison, Measured, Rival, Tolerance

_FABRIC: Final = (
    "fabric, job and thresholds are assumed; ours is one synchronous job, theirs is not known"
)
_TESTBED: Final = "compute times are estimated from the GPU; the papers' are not known"
_CLOCK: Final = "compute times are estimated from the share of its rate that another GPU reaches"
_END_TO_END: Final = {
    "ps-layers": ("up to 84.3 % faster (PS)", 84.3),
    "all-reduce": ("about 11 % faster (ring)", 11.0),
}
EQUAL: Final = 0.01
"""The difference of the metric within which accuracy counts as kept."""


def claims(
    plan: DlcpComparison,
    measured: Mapping[Trial, Measured],
    learned: Mapping[tuple[Tolerance, float], Spread],
) -> list[Claim]:
    """Return the claims about the parts of `plan` beside what was found."""
    found = []
    if plan.flows:
        largest = plan.flows[-1].cluster
        found += [
            _flow_claim(plan, measured, largest, DCTCP, 43.1, 91.8),
            _flow_claim(plan, measured, largest, PFABRIC, 35.5, 88.6),
        ]
    for trials, differs in ((plan.end_to_end, _TESTBED), (plan.clock, _CLOCK)):
        if trials:
            found += [_step_claim(trials, measured, sync, differs) for sync in _END_TO_END]
    if plan.gray:
        found.append(_gray_claim(measured, plan.gray))
    return [*found, *(_tolerance_claim(each, learned) for each in plan.tolerances)]


def _flow_claim(
    plan: DlcpComparison,
    measured: Mapping[Trial, Measured],
    cluster: str,
    rival: Rival,
    mean: float,
    tail: float,
) -> Claim:
    fair = [each for each in plan.flows if each.cluster == cluster and each.is_usual]
    at = {each.rival: measured[each] for each in fair}
    theirs, ours = at[rival], at[DLCP]
    found_mean = 100 * (1 - ours.flow_ms / theirs.flow_ms)
    found_tail = 100 * (1 - ours.flow_p99_ms / theirs.flow_p99_ms)
    return Claim(
        f"Flow time, {cluster} hosts: DLCP less than {rival.name}, mean / tail",
        f"{mean:g} / {tail:g} %",
        f"{found_mean:.1f} / {found_tail:.1f} % (99th percentile)",
        verdict(found_mean >= mean and found_tail >= tail),
        _FABRIC,
    )


def _step_claim(
    trials: Sequence[Trial], measured: Mapping[Trial, Measured], sync: str, differs: str
) -> Claim:
    rival, own = BEST_PRIOR[sync], BEST_OWN[sync]
    found = []
    for theirs in trials:
        ours = replace(theirs, rival=own, min_timeout_s=None)
        if theirs.sync == sync and theirs.rival == rival and theirs.is_usual:
            ratio = measured[theirs].step_ms / measured[ours].step_ms
            found.append((100 * (ratio - 1), f"{ours.job}, {ours.servers_words}"))
    best, where = max(found)
    paper, least = _END_TO_END[sync]
    clock = "" if trials[0].share == ASSUMED_SHARE else ", computing as a GPU was measured"
    return Claim(
        f"Step on {TESTBED} hosts: {own.name} over {rival.name}, best case{clock}",
        paper,
        f"{best:.1f} % faster ({where})",
        verdict(best >= least),
        differs,
    )


def _gray_claim(measured: Mapping[Trial, Measured], gray: Sequence[Trial]) -> Claim:
    worst = max(each.loss for each in gray)

    def slower(rival: Rival) -> float:
        fair = [each for each in gray if each.rival == rival and each.is_usual]
        at = {each.loss: measured[each].step_ms for each in fair}
        return at[worst] / at[0.0]

    return Claim(
        f"All-reduce step with {worst:.0%} loss on one worker's link / without",
        "MLT: speed kept (no figures found)",
        f"DLCP {slower(DLCP):.2f}, DCTCP {slower(DCTCP):.2f}, {TCP.name} {slower(TCP):.2f}",
        verdict(slower(DLCP) < min(slower(DCTCP), slower(TCP))),
        _TESTBED,
    )


def _tolerance_claim(
    tolerance: Tolerance, learned: Mapping[tuple[Tolerance, float], Spread]
) -> Claim:
    exact, lossy = learned[tolerance, 0.0], learned[tolerance, BOUND]
    return Claim(
        f"{tolerance.model} on {tolerance.dataset}: metric with {BOUND:.0%} lost / without",
        "accuracy kept at 10 %",
        f"{lossy.mean:.4f} / {exact.mean:.4f}",
        verdict(lossy.mean >= exact.mean - EQUAL),
        "a small model on data that is there; zeros for what is lost, as in the papers",
    )
