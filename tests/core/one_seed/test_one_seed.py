"""Whole jobs under one seed: whatever dies, stands still, is cut off or comes, promises hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
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
RARE = [kind for kind in VARIANTS if kind not in OFTEN]


@pytest.fixture(autouse=True)
def worlds() -> Iterator[None]:
    with simulated():
        yield


@pytest.mark.timeout(900)  # 80 histories take half a minute of a core that nobody else uses
@pytest.mark.parametrize("kinds", seldom([OFTEN, *([each] for each in RARE)], often=[OFTEN]))
def test_promises_hold_whatever_happens(kinds: list[str], tmp_path: Path) -> None:
    """In a process of its own: threads that other tests leave would take part in a history."""
    count, found = examples(MANY, least=5), tmp_path / "fired.json"
    command = [sys.executable, "-m", "simulated", "--count", str(count), "--json", str(found)]
    here = [str(Path(__file__).parent), *sys.path]
    done = subprocess.run(
        [*command, *(f"--kind={each}" for each in kinds)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(here)},
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for kind, fired in json.loads(found.read_text()).items():
        assert sum(fired.values()) >= count / 2, kind
        assert count < MANY or set(fired) == set(FAULTS), kind


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
