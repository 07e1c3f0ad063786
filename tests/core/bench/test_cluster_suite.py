"""The cluster suite without a cluster: what records come to, who is ahead, and going on."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

pytest.importorskip("torch")

from cluster_figures import figures

from shoal.errors import UsageError
from shoal.jobs.environment import describe_environment
from shoal_bench.bench_file import read_bench_file, write_bench_file
from shoal_bench.cluster.cluster_file import ClusterFile, read_cluster_file
from shoal_bench.cluster.contenders import CONTENDERS, Side
from shoal_bench.cluster.outcome import Key, Outcome, curve_of, time_to
from shoal_bench.cluster.outcome_rows import RATIO, entries_of, share_that_names, verdict
from shoal_bench.cluster.records import Recorder, read_record
from shoal_bench.cluster.scenarios import SCENARIOS, ClusterScenario
from shoal_bench.cluster.suite import (
    SuitePart,
    SuitePlan,
    left_to_do,
    make_plan,
    run_parts,
    with_rows,
)
from shoal_bench.cluster.task import Task

if TYPE_CHECKING:
    from pathlib import Path


TASK = Task(
    dataset="digits",
    model="mlp:8",
    workers=2,
    compute_ms=1.0,
    seconds=10.0,
    target_loss=0.5,
    megabits=50,
)
OURS = next(contender for contender in CONTENDERS if contender.side is Side.OURS)
PEER = next(contender for contender in CONTENDERS if contender.side is Side.PEER)
SCENARIO = SCENARIOS[0]
SIDES = {
    "ours": Side.OURS,
    "our-second": Side.OURS,
    "peer": Side.PEER,
    "worse": Side.PEER,
    "alone": Side.CONTROL,
}


def outcome(contender: str, seconds: float | None, repeat: int = 0) -> Outcome:
    key = Key(scenario=SCENARIO.name, contender=contender, repeat=repeat, task=TASK)
    return Outcome(key=key, version="1", figures=figures(seconds))


# ---- records -----------------------------------------------------------------------------------


def test_a_record_holds_what_was_written_and_no_more(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, rank=1, size=3, looks=2, interval_s=1.0)
    recorder.add_model(0.0, np.zeros(3))
    assert not recorder.wants_model(0.9)
    assert recorder.wants_model(1.0)
    recorder.add_step(1.2, 0.7)
    recorder.add_model(1.2, np.ones(3))
    assert not recorder.wants_model(9.0)  # there is room for two
    record = read_record(tmp_path, 1)
    assert record.step_ends.tolist() == [1.2]
    assert record.losses.tolist() == [0.7]
    assert record.moments.tolist() == [0.0, 1.2]
    assert [record.model_at(at)[0] for at in (0.0, 1.19, 1.2, 5.0)] == [0, 0, 1, 1]


def test_a_model_is_due_at_the_next_multiple_of_the_interval(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, rank=0, size=1, looks=9, interval_s=1.0)
    taken = []
    for tenth in range(45):
        if recorder.wants_model(tenth / 10):
            recorder.add_model(tenth / 10, np.array([tenth]))
            taken.append(tenth)
    assert taken == [0, 10, 20, 30, 40]
    recorder.add_model(6.5, np.array([65]))  # after a long step the grid stays where it was
    assert not recorder.wants_model(6.9)
    assert recorder.wants_model(7.0)


def test_the_curve_is_that_of_the_mean_and_judges_no_model_twice(tmp_path: Path) -> None:
    for rank, models in enumerate(([(0.0, 4.0), (1.0, 2.0)], [(0.0, 4.0), (2.5, 0.0)])):
        recorder = Recorder(tmp_path, rank, size=1, looks=4, interval_s=0.1)
        for moment, value in models:
            recorder.add_model(moment, np.array([value]))
    judged = []

    def loss_of(vector: np.ndarray) -> float:
        judged.append(float(vector[0]))
        return judged[-1]

    records = [read_record(tmp_path, rank) for rank in range(2)]
    curve = curve_of(records, loss_of, [0.0, 0.5, 1.0, 2.0, 3.0])
    assert curve == [(0.0, 4.0), (0.5, 4.0), (1.0, 3.0), (2.0, 3.0), (3.0, 1.0)]
    assert judged == [4.0, 3.0, 1.0]
    assert time_to(curve, 3.0) == 1.0
    assert time_to(curve, 0.9) is None


# ---- verdicts ----------------------------------------------------------------------------------


def ratio_of(outcomes: list[Outcome], scenario: ClusterScenario = SCENARIO) -> list[float | None]:
    entries = entries_of(outcomes, SCENARIO.name, SIDES)
    return [row.ratio for row in verdict(scenario, entries)]


def test_the_best_of_each_side_meet_and_repeats_are_taken_pair_by_pair() -> None:
    outcomes = [
        outcome("ours", 2.0, 0),
        outcome("ours", 4.0, 1),
        outcome("ours", 2.0, 2),
        outcome("our-second", 9.0, 0),
        outcome("peer", 6.0, 0),
        outcome("peer", 6.0, 1),
        outcome("peer", 6.0, 2),
        outcome("worse", 7.0, 0),
        outcome("alone", 0.1, 0),
        outcome("of-an-older-version", 0.1, 0),
    ]
    entries = entries_of(outcomes, SCENARIO.name, SIDES)
    (row,) = verdict(SCENARIO, entries)
    assert (row.peer, row.metric, row.ratio) == ("peer", RATIO, 3.0)
    assert row.spread == [1.5, 3.0]
    assert row.case.endswith("ours")


def test_a_lone_lucky_run_does_not_beat_a_median() -> None:
    outcomes = [
        *(outcome("ours", seconds, repeat) for repeat, seconds in enumerate((2.0, 3.0, 4.0))),
        outcome("our-second", 1.0),
        *(outcome("peer", seconds, repeat) for repeat, seconds in enumerate((5.0, 6.0, 7.0))),
        outcome("worse", 1.5),
    ]
    (row,) = verdict(SCENARIO, entries_of(outcomes, SCENARIO.name, SIDES))
    assert row.case.endswith("ours")
    assert row.peer == "peer"
    assert (row.value, row.peer_value) == (3.0, 6.0)


@pytest.mark.parametrize(
    ("ours", "peers", "ratio"),
    [(2.0, None, 5.0), (None, 2.0, 0.2), (None, None, None)],
    ids=["only ours arrives", "only the peer arrives", "nobody arrives"],
)
def test_who_does_not_arrive_counts_with_the_whole_time(
    ours: float | None, peers: float | None, ratio: float | None
) -> None:
    found = ratio_of([outcome("ours", ours), outcome("peer", peers)])
    assert found == ([] if ratio is None else [ratio])


def test_a_scenario_is_won_only_above_its_target() -> None:
    outcomes = [outcome("ours", 2.0), outcome("peer", 2.5)]
    entries = entries_of(outcomes, SCENARIO.name, SIDES)
    easy = replace(SCENARIO, name="easy", target=1.0)
    even = replace(SCENARIO, name="even", target=1.25)
    hard = replace(SCENARIO, name="hard", target=1.5)
    assert [verdict(each, entries)[0].met for each in (easy, even, hard)] == [True, False, False]


def test_failures_become_sentences_and_no_rows() -> None:
    key = Key(scenario=SCENARIO.name, contender=PEER.name, repeat=0, task=TASK)
    file = ClusterFile(
        environment=describe_environment(),
        outcomes=[Outcome(key=key, failed="It hangs."), outcome(OURS.name, 1.0)],
    )
    made = with_rows(file)
    assert made.skipped == [f"{SCENARIO.name}: {PEER.name}: It hangs."]
    assert {row.case for row in made.rows} == {f"{SCENARIO.name}, {OURS.name}"}


def test_who_is_slow_counts_where_others_are_told() -> None:
    says = ["Rank 1 is late", "Rank 0 is late", "", "The way from rank 11 to rank 3 is slow"]
    assert share_that_names(1, says) == pytest.approx(1 / 3)
    assert share_that_names(0, says) == pytest.approx(1 / 3)
    assert share_that_names(2, says) == 0


# ---- the suite ---------------------------------------------------------------------------------


class Clockwork:
    """Runs jobs in no time; the `fails_at`-th is interrupted."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.ran: list[tuple[str, str, int]] = []
        self._fails_at = fails_at

    def run(self, job: SuitePart, _file: ClusterFile) -> Outcome:
        if len(self.ran) == self._fails_at:
            raise KeyboardInterrupt
        self.ran.append((job.name, job.summary, job.repeat))
        return Outcome(key=job.key, figures=figures(1.0))


class Silent:
    """Shows nothing."""

    def begin(self, section: SuitePart) -> None:
        pass

    def say(self, text: str) -> None:
        raise AssertionError(text)


def test_an_interrupted_suite_goes_on_with_the_job_it_was_at(tmp_path: Path) -> None:
    plan = SuitePlan(TASK, 2, SCENARIOS[:2], (PEER, OURS))
    path = tmp_path / "cluster.json"
    every = [(job.name, job.summary, job.repeat) for job in plan.jobs()]
    assert len(set(every)) == len(every) == 2 * len(plan.scenarios) * 2
    # so that a job is not shown as done while it trains
    assert all(job.seconds(quick=False) > TASK.seconds for job in plan.jobs())

    def go_on(runner: Clockwork) -> None:
        here = describe_environment()
        file = read_cluster_file(path) if path.exists() else ClusterFile(environment=here)
        run_parts(
            left_to_do(plan, file),
            file,
            runner.run,
            Silent(),
            lambda file: write_bench_file(path, file),
            lambda: here,
        )

    first = Clockwork(fails_at=3)
    with pytest.raises(KeyboardInterrupt):
        go_on(first)
    second, third = Clockwork(), Clockwork()
    go_on(second)
    go_on(third)
    assert first.ran + second.ran == every
    assert third.ran == []
    file = read_cluster_file(path)
    assert [each.key.repeat for each in file.outcomes].count(0) == len(every) / 2
    assert any(row.metric == RATIO for row in file.rows)
    assert read_bench_file(path).rows == file.rows  # what reads rows can read it


def test_another_task_is_another_job(tmp_path: Path) -> None:
    plan = SuitePlan(TASK, 1, SCENARIOS[:1], (PEER,))
    file = ClusterFile(environment=describe_environment(), outcomes=[outcome(PEER.name, 1.0)])
    assert left_to_do(plan, file) == []
    changed = msgspec.structs.replace(
        outcome(PEER.name, 1.0).key, task=msgspec.structs.replace(TASK, megabits=99)
    )
    other = msgspec.structs.replace(file, outcomes=[Outcome(key=changed)])
    assert len(left_to_do(plan, other)) == 1


def test_what_could_not_be_tried_is_tried_again_and_what_failed_is_not() -> None:
    plan = SuitePlan(TASK, 1, SCENARIOS[:1], (PEER, OURS))
    names = [job.key for job in plan.jobs()]
    file = ClusterFile(
        environment=describe_environment(),
        outcomes=[
            Outcome(key=names[0], skipped="It is not installed."),
            Outcome(key=names[1], failed="It hangs."),
        ],
    )
    assert [job.contender for job in left_to_do(plan, file)] == [PEER]


def test_only_chooses_scenarios_and_contenders_by_name() -> None:
    whole = make_plan(quick=True)
    assert 0 < len(whole.scenarios) < len(SCENARIOS)
    chosen = make_plan(quick=False, only=[OURS.name], repeats=2)
    assert chosen.contenders == (OURS,)
    assert chosen.scenarios == SCENARIOS
    assert {job.repeat for job in chosen.jobs()} == {0, 1}
    left_out = next(each for each in SCENARIOS if not each.in_quick)
    assert make_plan(quick=True, only=[left_out.name]).scenarios == (left_out,)
    with pytest.raises(UsageError, match="at least 1"):
        make_plan(quick=True, repeats=0)
    with pytest.raises(UsageError, match=f"Did you mean '{OURS.name}'"):
        make_plan(quick=True, only=[OURS.name + "x"])


def test_what_quick_leaves_out_changes_no_sides() -> None:
    """Every side and every kind of trouble is still there, so that it shows that all works."""
    plan = make_plan(quick=True)
    assert {each.side for each in plan.contenders} == set(Side)
    assert {each.target for each in plan.scenarios} == {each.target for each in SCENARIOS}
    assert sum(job.seconds(quick=True) for job in plan.jobs()) < 15 * 60


@pytest.mark.parametrize("quick", [False, True])
def test_a_scenario_trains_its_own_task_on_its_own_network(quick: bool) -> None:
    suite = make_plan(quick=quick).task
    for job in make_plan(quick=quick, only=[each.name for each in SCENARIOS]).jobs():
        changes = job.scenario.changes
        assert all(getattr(job.task, name) == value for name, value in changes.items())
        assert (job.task == suite) == (not changes)
        assert job.scenario.build(job.task).topology.hosts >= job.task.workers


def test_sites_are_joined_by_one_cable_that_half_of_all_pairs_share() -> None:
    (job, *_) = make_plan(quick=False, only=["two-sites"]).jobs()
    topology = job.scenario.build(job.task).topology
    trunks = [cable for cable in topology.cables if cable.source < 0 and cable.target < 0]
    assert [(cable.port.rate, cable.link.delay_s) for cable in trunks] == 2 * [(10_000_000, 0.04)]
    of_site = [cable.target for cable in topology.cables if cable.source >= 0]
    assert [of_site.count(site) for site in sorted(set(of_site))] == [4, 4]


def test_names_are_unique() -> None:
    names = [each.name for each in (*SCENARIOS, *CONTENDERS)]
    assert len(set(names)) == len(names)


def test_whoever_goes_over_our_transport_is_ours() -> None:
    for contender in CONTENDERS:
        assert (contender.side is Side.OURS) == contender.name.startswith("shoal-"), contender.name


def test_a_file_of_two_machines_says_which_job_ran_on_which() -> None:
    here = msgspec.structs.replace(describe_environment(), processor="this one")
    there = msgspec.structs.replace(here, processor="the other")
    file = ClusterFile(environment=here).with_result(here, outcome("ours", 1.0))
    file = file.with_result(there, outcome("peer", 2.0))
    found = {each.key.contender: each.processor for each in file.outcomes}
    assert found == {"ours": "this one", "peer": "the other"}


def test_a_training_that_diverged_can_be_read_again(tmp_path: Path) -> None:
    made = outcome(OURS.name, 1.0)
    assert made.figures is not None
    lost = msgspec.structs.replace(
        made.figures,
        seconds_to_target=None,
        final_loss=math.nan,
        consensus_distance=math.inf,
        curve=[(0.0, 3.0), (1.0, math.nan)],
    )
    diverged = msgspec.structs.replace(made, figures=lost)
    file = with_rows(ClusterFile(environment=describe_environment(), outcomes=[diverged]))
    path = tmp_path / "cluster.json"
    write_bench_file(path, file)
    found = read_cluster_file(path).outcomes[0].figures
    assert found is not None
    assert math.isnan(found.final_loss)
    assert math.isnan(found.consensus_distance)
    assert found.curve[0] == (0.0, 3.0)
    assert math.isnan(found.curve[1][1])
