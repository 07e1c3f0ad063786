"""Whole jobs under one seed: whatever dies, stands still, is cut off or comes, promises hold."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from simulated.faults import FAULTS
from simulated.job import Job
from simulated.left_out import RULES, left_out
from simulated.stage import simulated
from simulated.variants import VARIANTS

from thoroughness import examples, seldom

if TYPE_CHECKING:
    from collections.abc import Iterator

MANY = 80
OFTEN = ["all-reduce", "all-reduce, low rank", "ripples", "samples"]


@pytest.fixture(autouse=True)
def worlds() -> Iterator[None]:
    with simulated():
        yield


@pytest.mark.timeout(600)  # 80 histories take half a minute of a core that nobody else uses
@pytest.mark.parametrize("kind", seldom(VARIANTS, often=OFTEN))
def test_promises_hold_whatever_happens(kind: str) -> None:
    fired: Counter[str] = Counter()
    for seed in range(examples(MANY)):
        job = Job(seed, **VARIANTS[kind])
        wrong = job.run()
        assert not wrong, f"seed {seed}: {wrong} {job.fired}"
        fired.update(job.fired)
    assert fired.total() >= examples(MANY) / 2
    assert examples(MANY) < MANY or set(fired) == set(FAULTS)


def test_a_seed_says_all_that_happens() -> None:
    def course(seed: int) -> object:
        job = Job(seed, "ripples")
        job.run()
        return job.world.num_switches, job.world.now_ns, job.fired, job.views

    assert [course(seed) for seed in (2, 3)] == [course(seed) for seed in (2, 3)]
    assert course(2) != course(3)


@pytest.mark.long
@pytest.mark.timeout(1200)  # one rule needs some 2,000 histories
@pytest.mark.parametrize("rule", RULES)
def test_a_rule_that_is_left_out_is_found(rule: str) -> None:
    with left_out(rule) as strategy:
        assert any(Job(seed, strategy).run() for seed in range(5000)), "no history showed it"
