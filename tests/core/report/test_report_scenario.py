"""Only runs that differ in nothing but the strategy are compared, each under a name of its own."""

from __future__ import annotations

import msgspec
import pytest
from report_samples import ENVIRONMENT, make_run

from shoal.errors import UsageError
from shoal.jobs.result import ResultFile, RunResult
from shoal.report.figures.timeline import worker_name
from shoal.report.findings import finding
from shoal.report.reported_scenario import group_scenarios
from shoal.report.wording import padding_sentence

SHORT_MS = 300.0
BASE = make_run("all-reduce", duration_ms=SHORT_MS)


def results(*runs: RunResult, **environment: object) -> ResultFile:
    return ResultFile(
        environment=msgspec.structs.replace(ENVIRONMENT, **environment), runs=list(runs)
    )


def changed(**fields: object) -> RunResult:
    return msgspec.structs.replace(BASE, **fields)


def labels(*runs: RunResult) -> list[str]:
    (scenario,) = group_scenarios(results(*runs))
    return [entry.label for entry in scenario.entries]


@pytest.mark.parametrize(
    "difference",
    [
        {"dataset": "other"},
        {"model": "other"},
        {"num_parameters": 3},
        {"metric": "loss"},
        {"target": 0.5},
        {"workers": 4},
        {"compute_ms": None},
        {"slow": {"1": 2.0}},
    ],
)
def test_runs_of_different_tasks_or_conditions_are_kept_apart(difference: dict[str, object]):
    assert len(group_scenarios(results(BASE, changed(**difference)))) == 2


@pytest.mark.parametrize(
    "difference",
    [{"strategy": "other"}, {"seed": 7}, {"learning_rate": 9.0}, {"slow": {"3": 1.0}}],
)
def test_runs_of_different_strategy_tuning_or_seed_are_compared(difference: dict[str, object]):
    assert len(group_scenarios(results(BASE, changed(**difference)))) == 1


def test_runs_of_different_machines_are_kept_apart_but_not_those_of_different_days():
    here = results(BASE)

    assert len(group_scenarios([here, results(BASE, cores=64)])) == 2
    assert len(group_scenarios([here, results(BASE, taken_at="2027-01-01T00:00:00Z")])) == 1


def test_runs_fresh_from_training_need_no_machine():
    (scenario,) = group_scenarios([BASE, changed(strategy="ripples")])

    assert scenario.environment is None
    assert len(scenario.entries) == 2
    assert padding_sentence(BASE, None) == (
        "Each step is padded to 20 ms by sleeping, so that 8 workers stand for 8 machines."
    )


def test_equal_workers_come_first():
    slow = changed(slow={"5": 5.0})

    titles = [scenario.title for scenario in group_scenarios(results(slow, BASE))]

    assert titles == ["Equal workers", "Worker 5 is 5× slower"]


def test_who_is_slow_at_random_is_another_scenario():
    always = changed(slow={"5": 5.0, "6": 5.0})
    at_times = changed(slow={"5": 5.0, "6": 5.0}, slow_probability={"5": 0.2})

    titles = [scenario.title for scenario in group_scenarios(results(always, at_times))]

    assert titles == [
        "Workers 5 and 6 are 5× slower",
        "Worker 5 is 5× slower in 20 % of its steps, worker 6 is 5× slower",
    ]
    assert worker_name(at_times, 5) == "worker 5 · 5× in 20 % of its steps"
    assert worker_name(at_times, 6) == "worker 6 · 5×"


@pytest.mark.parametrize(
    ("slow", "title"),
    [
        ({"2": 1.0}, "Equal workers"),
        ({"10": 2.0, "9": 2.0}, "Workers 9 and 10 are 2× slower"),
        ({"1": 2.5, "3": 5.0}, "Worker 1 is 2.5× slower, worker 3 is 5× slower"),
    ],
)
def test_a_scenario_is_called_by_who_was_slow(slow: dict[str, float], title: str):
    (scenario,) = group_scenarios(results(changed(slow=slow)))

    assert scenario.title == title


def test_runs_of_one_strategy_are_named_by_what_differs():
    assert labels(BASE, changed(seed=3)) == ["all-reduce (seed 0)", "all-reduce (seed 3)"]
    assert labels(BASE, changed(strategy_options={"interval": 4})) == [
        "all-reduce",
        "all-reduce (interval 4)",
    ]
    assert labels(BASE, BASE) == ["all-reduce #1", "all-reduce #2"]


def test_no_runs_are_an_error_that_says_what_to_do():
    with pytest.raises(UsageError, match="hold no runs"):
        group_scenarios(results())


def finding_of(*seconds: float | None, strategies: tuple[str, ...]) -> str:
    runs = [
        changed(strategy=strategy, time_to_target_seconds=time, duration_seconds=60.0)
        for strategy, time in zip(strategies, seconds, strict=True)
    ]
    return finding(group_scenarios(results(*runs))[0])


def test_the_first_to_reach_the_target_is_compared_with_the_baseline():
    words = finding_of(10.0, 5.0, 40.0, strategies=("all-reduce", "ripples", "ps-bsp"))

    assert words == (
        "ripples reached 90 % first, after 5.00 s; all-reduce took 10.0 s, 2 times as long."
    )


def test_a_baseline_that_never_got_there_is_not_given_a_time():
    words = finding_of(None, 5.0, strategies=("all-reduce", "ripples"))

    assert words == "ripples reached 90 % first, after 5.00 s; all-reduce had not within 60.0 s."


def test_a_baseline_that_wins_is_said_to():
    assert finding_of(4.0, 5.0, strategies=("all-reduce", "ripples")) == (
        "all-reduce reached 90 % first, after 4.00 s."
    )


def test_nobody_reaching_the_target_is_said_too():
    assert finding_of(None, None, strategies=("a", "b")) == "None of the 2 runs reached 90 %."
