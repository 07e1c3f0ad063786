"""What the table of `shoal simulate` says beside a slow worker, and what it marks."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from rich.console import Console
from scenario_texts import SMALL

from shoal.cli.simulation_table import print_simulation
from shoal.scenario.spec_file import parse_scenario
from shoal.scenario.training_spec import StrategySpec
from shoal.sim.closed_form.prediction import predict
from shoal.sim.training.outcome import EventOutcome
from shoal.sim.training.simulation import model_of, simulate

if TYPE_CHECKING:
    from shoal.sim.training.outcome import Outcome

pytestmark = pytest.mark.timeout(300)
"""The first run of a kernel compiles it."""

ALONE = StrategySpec("local-sgd", {"interval": 10_000})
TOGETHER = StrategySpec("all-reduce", {})


def outcome(strategy: StrategySpec, *, steps: int = 50, level: str = "flows") -> Outcome:
    """Return the outcome of 4 workers; the first takes five times as long as the others, 20 ms."""
    text = SMALL[: SMALL.index("[[training.slow]]")].replace("spread = 0.1", "spread = 0.0")
    read = parse_scenario(text)
    assert read.training is not None
    job = replace(read.training, steps=steps, slow={0: 5.0})
    if level == "closed-form":
        return predict(read.cluster, job, strategy, model_of(job))
    return simulate(read.cluster, job, strategy)


def printed(*outcomes: Outcome, width: int = 120) -> str:
    file = io.StringIO()
    print_simulation([({}, [each]) for each in outcomes], Console(file=file, width=width))
    return file.getvalue()


@pytest.mark.parametrize("level", ["flows", "closed-form"])
def test_workers_that_wait_for_nobody_are_not_judged_by_the_slow_one(level: str) -> None:
    """Three make a step in 20 ms, one in 100: in the first's 50 steps the last makes 10."""
    alone = outcome(ALONE, level=level)
    assert alone.together_s == pytest.approx(1.0, rel=1e-3)
    assert alone.together_steps == 3 * 50 + 10
    assert alone.rate == pytest.approx(160.0, rel=1e-3)
    assert alone.milestones_s[79] == pytest.approx(1.0, rel=0.02)
    assert alone.milestones_s[-1] == pytest.approx(alone.seconds)
    assert list(alone.milestones_s) == sorted(alone.milestones_s)
    assert len(alone.milestones_s) == 100
    assert alone.rate > 2 * outcome(TOGETHER, level=level).rate


def test_workers_that_wait_for_all_train_together_to_the_end() -> None:
    found = outcome(TOGETHER)
    assert found.together_steps == found.steps == 200
    assert found.together_s == pytest.approx(found.seconds)


def test_the_faster_one_is_marked_in_rate_and_time_and_named_by_the_legend() -> None:
    together, alone = outcome(TOGETHER), replace(outcome(ALONE), name="alone")
    lines = printed(together, alone).splitlines()
    assert "s to 160 steps" in lines[0]
    first, second = lines[1].split(), lines[2].split()
    assert first[0] == "all-reduce"
    assert "*" not in lines[1]
    assert second[1] == f"{alone.rate:.1f}*"
    assert second[2] == f"{alone.milestones_s[79]:.1f}*"
    assert "*: the best of the column." in lines
    for heading in ("steps/s", "s to 160 steps", "ms/step", "exchange", "all done"):
        assert any(line.startswith(f"{heading}: ") for line in lines)


def test_of_one_alone_nothing_is_the_best() -> None:
    assert "*" not in printed(outcome(TOGETHER))


def test_names_stay_whole_in_a_narrow_terminal() -> None:
    found = outcome(TOGETHER)
    names = ("ripples-static", "ripples-random")
    text = printed(*(replace(found, name=name) for name in names), width=80)
    assert all(name in text for name in names)
    assert max(map(len, text.splitlines())) <= 80
    assert "Too narrow for all done; widen the terminal to see more." in text


def test_what_became_of_each_event_is_said_below_the_table() -> None:
    events = (
        EventOutcome("kill rank 3 at 1 s", 1.0, 0.0002, 0.25),
        EventOutcome("join rank 3 at 2 s", 2.0, 0.0005, 0.5),
        EventOutcome("freeze rank 1 at 3 s for 1 s", 3.0, None, None),
        EventOutcome("kill rank 1 at 99 s", None, remark="all steps were made before it"),
    )
    with_events = replace(outcome(TOGETHER), events=events)
    file = io.StringIO()
    longer = replace(events[0], step_s=0.35)
    never = replace(events[1], fired_s=None, view_s=None, step_s=None, remark="all steps were ...")
    other = replace(with_events, events=(longer, never, *events[2:]))
    print_simulation([({}, [with_events, other])], Console(file=file, width=160))
    lines = file.getvalue().splitlines()
    assert (
        "all-reduce: kill rank 3 at 1 s: a new view after 0.0002 ± 0 s; all others had made a step"
        " after 0.3 ± 0.635 s." in lines
    )
    assert (
        "all-reduce: join rank 3 at 2 s: a new view after 0.0005 s; its first step after 0.5 s; it"
        " happened in 1 of 2 runs; all steps were ...." in lines
    )
    assert "all-reduce: freeze rank 1 at 3 s for 1 s: nobody waited for it." in lines
    assert (
        "all-reduce: kill rank 1 at 99 s: it happened in 0 of 2 runs; all steps were made before"
        " it." in lines
    )
    plain = printed(outcome(TOGETHER))
    assert "kill" not in plain
