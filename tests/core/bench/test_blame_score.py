"""How verdicts are scored: what counts as right, found, and as a false alarm."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

pytest.importorskip("shoal_bench")

from shoal.watch import Verdict
from shoal_bench.blame.faults import NETWORK, WORKERS, Fault, Score, draw


def said(kind: str, rank: int | None = None, to: int | None = None) -> Verdict:
    return Verdict(kind=kind, sentence="So it is.", rank=rank, to=to)  # type: ignore[arg-type]


SLOW, LOSSY = Fault(WORKERS, 2, 1.5), Fault("loss", 1, 0.01)


@pytest.mark.parametrize(
    ("faults", "verdicts", "right", "found"),
    [
        ((SLOW,), [said("slow worker", 2)], 1, 1),
        ((SLOW,), [said("slow worker", 1)], 0, 0),
        ((SLOW,), [said("slow link", 2)], 0, 0),
        ((SLOW,), [said("nothing")], 0, 0),
        ((LOSSY,), [said("lossy link", 1), said("lossy link", 3, 1)], 2, 1),
        ((LOSSY,), [said("slow link", 0, 1), said("lossy link", 0, 3)], 1, 1),
        ((LOSSY,), [said("slow worker", 1)], 0, 0),
        ((SLOW, LOSSY), [said("slow worker", 2)], 1, 1),
        ((SLOW, LOSSY), [said("lossy link", 1), said("slow worker", 2)], 2, 2),
    ],
)
def test_what_is_right(
    faults: tuple[Fault, ...], verdicts: list[Verdict], right: int, found: int
) -> None:
    score = Score()
    score.add(faults, verdicts)
    assert (score.num_right, score.num_found, score.num_faults) == (right, found, len(faults))
    num_said = sum(each.kind != "nothing" for each in verdicts)
    assert score.num_verdicts == num_said
    assert score.precision == (right / num_said if num_said else 1.0)
    assert score.recall == found / len(faults)


def test_false_alarms_are_those_of_healthy_trials() -> None:
    score = Score()
    score.add((), [said("nothing")])
    score.add((), [said("slow worker", 0), said("long way", 0, 1)])
    assert (score.num_healthy, score.num_false_alarms, score.precision) == (2, 1, 0.0)


def test_all_kinds_of_faults_are_drawn() -> None:
    random = Random(3)
    drawn = [draw(random, 4) for _ in range(1000)]
    kinds = Counter(fault.what for faults in drawn for fault in faults)
    assert set(kinds) == {WORKERS, *NETWORK}
    assert 200 < sum(not faults for faults in drawn) < 300
    assert 60 < sum(len(faults) == 2 for faults in drawn) < 140
    assert {fault.rank for faults in drawn for fault in faults} == set(range(4))
    slow = [f.size for faults in drawn for f in faults if f.what == WORKERS]
    assert 1.2 <= min(slow) < 1.3 < 4.5 < max(slow) <= 5.0
    for fault in (f for faults in drawn for f in faults):
        changes = dict(fault.link())
        assert bool(changes) or fault.what in (WORKERS, "slow port")
        assert (fault.rate(1e8) is not None) == (fault.what == "slow port")
