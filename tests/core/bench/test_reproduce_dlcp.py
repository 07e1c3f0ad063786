"""DLCP's comparison: its scenario files, its trials and its claims."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from shoal.errors import UsageError
from shoal.sweeps import spread_of
from shoal_bench.reproduce.dlcp import (
    ABLATION,
    ASSUMED_SHARE,
    BOUND,
    DCTCP,
    DLCP,
    JOBS,
    TCP,
    TIMED,
    TIMEOUTS_S,
    Measured,
    Tolerance,
    Trial,
    lose,
    measure_trial,
    plan,
    timeout_words,
)
from shoal_bench.reproduce.dlcp_claims import claims
from shoal_bench.reproduce.scenarios import read_parts

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"

pytestmark = pytest.mark.timeout(300)
"""The first run of a kernel compiles it."""


@pytest.mark.parametrize("quick", [False, True])
def test_every_trial_has_its_scenario(quick: bool) -> None:
    whole = plan(quick=quick)
    assert len(whole.trials) > 15
    for trial in whole.trials:
        scenario = read_parts(*trial.files)
        assert scenario.training is not None
        assert scenario.cluster.topology.hosts == int(trial.cluster)


def test_each_of_the_papers_picture_models_is_carried_end_to_end() -> None:
    assert {trial.job for trial in plan(quick=False).end_to_end} == set(JOBS)
    assert {trial.job for trial in plan(quick=True).end_to_end} == {"resnet50"}


def test_a_clock_that_was_measured_is_that_of_the_result_file() -> None:
    rows = json.loads((RESULTS / "gpu-clock.json").read_text())["rows"]
    shares = {row["model"]: round(row["share_of_peak"], 2) for row in rows}
    clock = plan(quick=False, parts=("clock",)).trials
    assert {trial.job: trial.share for trial in clock} == {
        job: shares[job] for job in JOBS if job in shares
    }
    assumed = set(plan(quick=False, parts=("end-to-end",)).trials)
    assert {replace(trial, share=ASSUMED_SHARE) for trial in clock} < assumed


@pytest.mark.long
def test_a_clock_of_twice_the_rate_halves_a_step_that_computes() -> None:
    trial = Trial("8", "vgg16", DLCP, "all-reduce")
    faster = measure_trial(replace(trial, share=2 * trial.share), 1).step_ms
    assert faster == pytest.approx(measure_trial(trial, 1).step_ms / 2, rel=0.05)


def test_parts_can_be_chosen() -> None:
    some = plan(quick=True, parts=("gray",))
    assert some.trials == list(some.gray)
    assert not some.tolerances
    assert claims(some, {trial: measured(trial) for trial in some.trials}, {})
    with pytest.raises(UsageError, match="no part 'grey'; there are flows, ablation"):
        plan(quick=True, parts=("grey",))


def test_the_three_steps_end_with_the_whole() -> None:
    assert replace(ABLATION[-1], name=DLCP.name) == DLCP
    assert ABLATION[0].loss_bound == 0


def measured(trial: Trial) -> Measured:
    """Half the time and a third of the tail for DLCP; a lossy link costs only the others."""
    own = trial.rival.name == DLCP.name
    step = 100.0 if own or not trial.loss else 200.0
    return Measured(trial.name, step, 1.0 if own else 2.0, 3.0 if own else 9.0, 10, 10, 0, 0, "")


def test_claims_say_what_was_reached_and_what_was_missed() -> None:
    whole = plan(quick=True)
    results = {trial: measured(trial) for trial in whole.trials}
    learned = {(each, loss): spread_of([0.9]) for each in whole.tolerances for loss in whole.losses}
    found = {each.what: each for each in claims(whole, results, learned)}
    flow = found["Flow time, 16 hosts: DLCP less than DCTCP, mean / tail"]
    assert flow.ours == "50.0 / 66.7 % (99th percentile)"
    assert flow.verdict == "missed"  # the mean is better than the paper's, the tail is not
    assert "Step on 8 hosts: DLCP, layers by priority over TCP, layers by priority" in str(found)
    gray = next(each for what, each in found.items() if "loss on one worker's link" in what)
    assert gray.ours == "DLCP 1.00, DCTCP 2.00, TCP (Cubic) 2.00"
    assert gray.verdict == "reached"
    worse = {key: spread_of([0.9 if key[1] < BOUND else 0.8]) for key in learned}
    last = claims(whole, results, worse)[-1]
    assert last.verdict == "missed"


def test_rivals_over_tcp_have_every_timer_and_are_judged_by_linuxs() -> None:
    """A timer of 200 us, a thousandth of Linux's, makes steps and tails short; verdicts wait."""
    whole = plan(quick=True)
    for part in (whole.flows, whole.end_to_end, whole.gray):
        timed = [each for each in part if each.rival.transport in TIMED]
        assert {each.min_timeout_s for each in timed} == set(TIMEOUTS_S)
        others = [each for each in part if each.rival.transport not in TIMED]
        assert {each.min_timeout_s for each in others} == {None}
    assert all(trial.is_usual for trial in whole.clock)

    def found(trial: Trial) -> Measured:
        slow = trial.min_timeout_s == 0.2
        own = measured(trial)
        return (
            replace(own, step_ms=50 * own.step_ms, flow_ms=9.0, flow_p99_ms=90.0) if slow else own
        )

    results = {trial: found(trial) for trial in whole.trials}
    learned = {(each, loss): spread_of([0.9]) for each in whole.tolerances for loss in whole.losses}
    said = {each.what: each for each in claims(whole, results, learned)}
    assert said["Flow time, 16 hosts: DLCP less than DCTCP, mean / tail"].verdict == "reached"
    served = next(each for what, each in said.items() if "layers by priority over TCP" in what)
    assert served.ours.startswith("4900.0 % faster")


def test_the_least_timeout_is_the_trials() -> None:
    trial = Trial("8", "resnet50", TCP, "all-reduce", loss=0.01)
    short, usual = (measure_trial(replace(trial, min_timeout_s=s), 1) for s in (200e-6, 0.2))
    assert short.digest != usual.digest
    assert timeout_words(replace(trial, min_timeout_s=200e-6)) == "200 us"
    assert timeout_words(replace(trial, min_timeout_s=0.2)) == "200 ms"


@pytest.mark.long
def test_a_lossy_link_costs_tcp_more() -> None:
    trials = {
        (rival, loss): measure_trial(Trial("8", "resnet50", rival, "all-reduce", loss=loss), 1)
        for rival in (DLCP, TCP)
        for loss in (0.0, 0.01)
    }
    for rival in (DLCP, TCP):
        assert trials[rival, 0.01].lost > trials[rival, 0.0].lost == 0
    slower = {r: trials[r, 0.01].step_ms / trials[r, 0.0].step_ms for r in (DLCP, TCP)}
    assert slower[DLCP] < 1.1 < slower[TCP]


def test_what_gets_lost_is_missed_by_the_model() -> None:
    tolerance = Tolerance("digits", "mlp", 6)
    exact, lossy = lose(tolerance, 0.0, 1), lose(tolerance, 0.4, 1)
    assert lossy.digest != exact.digest
    assert lossy.final != exact.final


def test_ports_are_those_of_the_rival() -> None:
    marking = read_parts(*Trial("16", "resnet50", DCTCP).files).cluster.topology.cables[1].port
    dropping = read_parts(*Trial("16", "resnet50", DLCP).files).cluster.topology.cables[1].port
    assert marking.limit_bytes == dropping.limit_bytes == 2_250_000
    assert marking.queues[0].capable == dropping.queues[0].capable == dropping.queues[0].plain
    assert marking.queues[0].plain != dropping.queues[0].plain
