"""Trials of the cluster suite without a cluster: variants, counters, rows, and going on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

pytest.importorskip("torch")

from shoal.jobs.environment import describe_environment
from shoal.switching.routes import check_paths
from shoal.switching.settings import CLASS_SELECTORS
from shoal.switching.tables import CAPABLE, COLORS, PLAIN, QUEUES, Count
from shoal_bench.bench_file import write_bench_file
from shoal_bench.cluster.cluster_file import ClusterFile, read_cluster_file
from shoal_bench.cluster.contenders import CONTENDERS
from shoal_bench.cluster.outcome import Figures, Key, Outcome
from shoal_bench.cluster.scenarios import SCENARIOS, SHALLOW_BYTES, oversubscribed
from shoal_bench.cluster.suite import run_parts
from shoal_bench.cluster.task import Task
from shoal_bench.cluster.trials import dlcp, ds_sync, hidden, ripples
from shoal_bench.cluster.trials.figures import Trial, TrialFigures, TrialKey
from shoal_bench.cluster.trials.networks import MIDDLE_CLASS
from shoal_bench.cluster.trials.ripples import rows_of_ripples
from shoal_bench.cluster.trials.studies import (
    CASES,
    STUDIES,
    TrialPart,
    left_to_try,
    make_trials,
)
from shoal_bench.cluster.trials.traffic import Passed, Sent, passed, together
from shoal_bench.cluster.trials.trial import figures_of
from shoal_bench.cluster.trials.trial_rows import rows_of_trials
from shoal_bench.cluster.trials.trial_worker import StepRecord
from shoal_bench.cluster.trials.work import Work

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.scenario.cluster_spec import ClusterSpec
    from shoal_bench.cluster.trials.trial import Variant
    from shoal_bench.rows import Row

WORK = Work(
    dataset="digits",
    model="mlp:8",
    workers=8,
    steps=30,
    layer_ms=1.0,
    megabits=20,
    bucket_bytes=1000,
)


def sent(**changes: object) -> Sent:
    numbers = Sent(
        sent=1000,
        again=10,
        important=600,
        by_class=[800, 200],
        received=940,
        received_important=597,
        received_by_class=[792, 148],
        due_bytes=1000,
        missing_bytes=60,
        probes=1,
    )
    return msgspec.structs.replace(numbers, **changes)


def figures(step_ms: float, accuracy: float = 90.0, **changes: object) -> TrialFigures:
    made = TrialFigures(
        step_ms=[step_ms] * 4,
        iteration_ms=step_ms,
        front_wait_ms=[1.0] * 4,
        back_wait_ms=[2.0] * 4,
        accuracy=accuracy,
        consensus_distance=0.0,
        processors_busy=0.5,
        switch_late_ms=0.1,
    )
    return msgspec.structs.replace(made, **changes)


def trial(case: str, variant: str, made: TrialFigures, repeat: int = 0) -> Trial:
    key = TrialKey(case=case, variant=variant, repeat=repeat, work=WORK)
    return Trial(key=key, figures=made)


def row_of(rows: list[Row], case: str, metric: str) -> Row:
    found = [row for row in rows if (row.case, row.metric) == (case, metric)]
    assert len(found) == 1, [(row.case, row.metric) for row in rows]
    return found[0]


# ---- variants ----------------------------------------------------------------------------------


def variant(name: str, setting: dlcp.Setting = dlcp.BURSTS) -> Variant:
    return next(each for each in setting.variants(WORK, every=True) if each.name == name)


def is_on(chosen: Variant) -> dict[str, bool]:
    """Read off the network and the environment which mechanisms a variant has."""
    spec = chosen.build(WORK)
    queues = [cable.port.queues[0] for cable in spec.topology.cables if cable.source < 0]
    assert spec.spray == bool(chosen.environment)
    return {
        dlcp.SPRAYING: spec.spray,
        dlcp.QUEUEING: spec.queues == CLASS_SELECTORS,
        dlcp.DROPPING: all(queue.plain and queue.capable for queue in queues),
        dlcp.LOSS: "p = 10%" in chosen.library.title,
    }


def test_mechanisms_are_on_where_a_variant_s_name_says_so() -> None:
    assert all(is_on(variant(dlcp.ON)).values())
    assert not any(is_on(variant(dlcp.OFF)).values())
    assert not any(is_on(variant(dlcp.GLOO)).values())
    ring = variant(dlcp.RING, dlcp.INCAST)
    assert ring.environment == (("SHOAL_ALL_REDUCE", "ring"),)
    assert not any(is_on(replace(ring, environment=())).values())
    for one in dlcp.ALL:
        assert is_on(variant(dlcp.without(one))) == {other: other != one for other in dlcp.ALL}
        assert is_on(variant(dlcp.alone(one))) == {other: other == one for other in dlcp.ALL}


def test_switches_that_ignore_tags_have_one_queue_and_no_profile() -> None:
    spec = variant(dlcp.OFF, dlcp.INCAST).build(WORK)
    assert set(spec.queues) == {0}
    ports = [cable.port for cable in spec.topology.cables if cable.source < 0]
    assert {port.limit_bytes for port in ports} == {SHALLOW_BYTES}
    assert all(queue.plain is queue.capable is None for port in ports for queue in port.queues)


def test_a_quick_look_has_the_pair_and_the_reference() -> None:
    for setting in (dlcp.INCAST, dlcp.PUSH, dlcp.BURSTS):
        names = [each.name for each in setting.variants(WORK, every=False)]
        assert names == [dlcp.ON, dlcp.OFF, dlcp.GLOO]
    names = [each.name for each in dlcp.INCAST.variants(WORK, every=True)]
    assert dlcp.alone(dlcp.SPRAYING) not in names  # a star has one path
    assert dlcp.RING in names
    assert dlcp.RING not in [each.name for each in dlcp.PUSH.variants(WORK, every=True)]


def rate_between(spec: ClusterSpec, source: str, target: str) -> int:
    cable = next(c for c in spec.topology.cables if c.name == f"{source}-{target}")
    return cable.port.rate


def test_networks_are_as_wide_as_they_say() -> None:
    narrow = oversubscribed(WORK)
    check_paths(narrow.topology)
    rate = WORK.megabits * 1_000_000
    up = sum(rate_between(narrow, "leaf0", spine) for spine in ("spine0", "spine1"))
    assert 4 * up == 4 * rate  # a quarter of what a leaf's four hosts send together
    wide = variant(dlcp.OFF).build(WORK)
    check_paths(wide.topology)
    assert [rate_between(wide, "leaf0", f"spine{n}") for n in range(2)] == [rate, rate]
    leaf_of = {c.source: c.target for c in wide.topology.cables if c.source >= 0}
    for flow in wide.flows:  # others' traffic crosses the spines, and is nobody's of the job
        assert leaf_of[flow.source] != leaf_of[flow.target]
        assert min(flow.source, flow.target) >= WORK.workers
        assert flow.dscp == MIDDLE_CLASS
    assert 0 < CLASS_SELECTORS[MIDDLE_CLASS] < QUEUES - 1


def test_every_way_of_averaging_goes_over_every_transport_that_has_it() -> None:
    names = [each.name for each in ds_sync.variants(WORK, every=True)]
    assert len(set(names)) == len(names)
    assert ds_sync.name_of(ds_sync.HIERARCHICAL, "gloo") not in names
    for over in ds_sync.OVERS:
        for way in (ds_sync.RING, ds_sync.AWARE, ds_sync.UNAWARE, ds_sync.GRID):
            assert ds_sync.name_of(way, over) in names


# ---- counters ----------------------------------------------------------------------------------


def test_what_workers_have_sent_is_added_field_by_field() -> None:
    both = together([sent(), sent(again=5, by_class=[1, 2])])
    assert both is not None
    assert (both.sent, both.again, both.by_class) == (2000, 15, [801, 202])
    assert together([]) is None


def test_ports_are_added_and_unused_queues_left_out() -> None:
    counts = np.zeros((3, QUEUES, COLORS, len(Count)), np.int64)
    counts[:, 2, PLAIN, Count.ARRIVED] = (1, 10, 100)
    counts[:, 2, PLAIN, Count.DROPPED_FULL] = (1, 2, 3)
    counts[:, 2, PLAIN, Count.DROPPED_SHARED] = (0, 0, 1)
    counts[:, 5, CAPABLE, Count.ARRIVED] = 7
    counts[:, 5, CAPABLE, Count.MARKED] = 2
    plain, capable = passed(counts, [1, 2])
    assert (plain.queue, plain.is_capable, plain.arrived, plain.dropped) == (2, False, 110, 6)
    assert (capable.queue, capable.is_capable, capable.marked) == (5, True, 4)


def test_a_step_lasts_as_long_as_its_slowest_worker() -> None:
    work = msgspec.structs.replace(WORK, workers=2, steps=3, warm_up=1)
    model = np.zeros(64 * 8 + 8 + 8 * 10 + 10, np.float32)
    records = [
        StepRecord(begins=begins, fronts=fronts, backs=backs, model=model + rank)
        for rank, (begins, fronts, backs) in enumerate(
            (
                ([0.0, 9.0, 10.0], [1.0, 9.1, 10.5], [2.0, 9.3, 10.6]),
                ([0.0, 9.0, 11.0], [1.0, 9.2, 11.1], [2.0, 9.3, 11.5]),
            )
        )
    ]
    topology = variant(dlcp.OFF).build(WORK).topology
    counts = np.zeros((len(topology.cables), QUEUES, COLORS, len(Count)), np.int64)
    made = figures_of(work, records, counts, topology, None)
    assert made.step_ms == [2000.0]
    assert made.iteration_ms == 2000.0
    assert made.front_wait_ms == pytest.approx([200.0, 500.0])
    assert made.back_wait_ms == pytest.approx([200.0, 400.0])
    assert made.consensus_distance > 0
    assert made.to_spines == [[], []]


def test_iterations_of_workers_that_are_late_by_turns_take_less_than_their_slowest_steps() -> None:
    work = msgspec.structs.replace(WORK, workers=2, steps=3, warm_up=0)
    model = np.zeros(64 * 8 + 8 + 8 * 10 + 10, np.float32)
    records = [
        StepRecord(begins=begins, fronts=begins, backs=begins, model=model)
        for begins in ([0.0, 3.0, 4.0], [0.0, 1.0, 4.0])
    ]
    topology = variant(dlcp.OFF).build(WORK).topology
    counts = np.zeros((len(topology.cables), QUEUES, COLORS, len(Count)), np.int64)
    made = figures_of(work, records, counts, topology, None)
    assert made.step_ms == [3000.0, 3000.0]
    assert made.iteration_ms == 2000.0


# ---- rows --------------------------------------------------------------------------------------


def test_ratios_are_taken_within_repeats() -> None:
    rows = rows_of_trials(
        [
            trial("dlcp-incast-trained", dlcp.ON, figures(100.0, 90.0)),
            trial("dlcp-incast-trained", dlcp.OFF, figures(300.0, 90.4)),
            trial("dlcp-incast-trained", dlcp.ON, figures(200.0, 91.0), repeat=1),
            trial("dlcp-incast-trained", dlcp.OFF, figures(400.0, 91.4), repeat=1),
            trial("dlcp-incast-trained", dlcp.OFF, figures(1.0), repeat=2),  # no partner
        ]
    )
    faster = row_of(rows, "dlcp-incast-trained: all on", "step time p99, all off / all on")
    assert (faster.ratio, faster.spread, faster.met) == (2.5, [2.0, 3.0], True)
    accuracy = row_of(rows, "dlcp-incast-trained", "final accuracy, all off minus all on")
    assert accuracy.value == pytest.approx(0.4)
    assert accuracy.met
    assert not any(row.quick for row in rows)


def test_a_mechanism_is_held_against_all_on_and_against_all_off() -> None:
    rows = rows_of_trials(
        [
            trial("dlcp-bursts", dlcp.ON, figures(100.0)),
            trial("dlcp-bursts", dlcp.OFF, figures(200.0)),
            trial("dlcp-bursts", dlcp.without(dlcp.SPRAYING), figures(150.0)),
            trial("dlcp-bursts", dlcp.alone(dlcp.SPRAYING), figures(160.0)),
            trial("dlcp-bursts", dlcp.RING, figures(140.0)),
        ]
    )
    metric = "step time mean, all off, ring / all on"
    assert row_of(rows, "dlcp-bursts: all on", metric).ratio == 1.4
    metric = "step time mean, without spraying / all on"
    assert row_of(rows, "dlcp-bursts: all on", metric).ratio == 1.5
    metric = "step time mean, all off / spraying alone"
    assert row_of(rows, "dlcp-bursts: spraying alone", metric).ratio == 1.25
    metric = "step time p99, all off / all on"
    assert row_of(rows, "dlcp-bursts: all on", metric).target is None  # asked for under incast


def test_what_hides_is_held_against_the_whole_model_over_the_same_transport() -> None:
    overs = ("shoal", "gloo")
    names = [hidden.name_of(each, over) for over in overs for each in ("none", "layers")]
    found = [figures(value) for value in (300.0, 200.0, 500.0, 400.0)]
    rows = rows_of_trials(
        [trial("hidden-pushes", name, made) for name, made in zip(names, found, strict=True)]
    )
    for over, ratio, met in zip(overs, (1.5, 1.25), (True, None), strict=True):
        layers, whole = (hidden.name_of(each, over) for each in ("layers", "none"))
        row = row_of(rows, f"hidden-pushes: {layers}", f"step time mean, {whole} / {layers}")
        assert (row.ratio, row.met) == (ratio, met)


def test_losses_are_told_by_importance_class_and_color() -> None:
    ports = [
        Passed(
            queue=queue,
            is_capable=is_capable,
            arrived=100,
            sent_bytes=queue * 100,
            marked=0,
            dropped_early=early,
            dropped_full=1,
        )
        for queue, is_capable, early in ((0, True, 0), (3, False, 9))
    ]
    made = figures(1.0, sent=sent(), to_hosts=ports, to_spines=[ports[1:], ports[1:] * 3])
    rows = rows_of_trials([trial("dlcp-bursts", dlcp.ON, made)])
    case = "dlcp-bursts, all on"
    for metric, value in (
        ("packets lost, important", 0.5),
        ("packets lost, not important", 14.25),
        ("packets lost, layer class 0", 1.0),
        ("packets lost, layer class 1", 26.0),
        ("packets sent again", 1.0),
        ("contributions left out of sums", 6.0),
        ("dropped by switches, ECN-capable (important)", 1.0),
        ("dropped by switches, plain", 10.0),
        ("bytes through the busier spine", 75.0),
    ):
        assert row_of(rows, case, metric).value == pytest.approx(value), metric


def test_ds_sync_s_target_is_against_the_ring_of_the_same_transport() -> None:
    rows = rows_of_trials(
        trial("ds-sync-oversubscribed", ds_sync.name_of(way, over), figures(step_ms))
        for over in ds_sync.OVERS
        for way, step_ms in ((ds_sync.RING, 300.0), (ds_sync.AWARE, 100.0), (ds_sync.GRID, 120.0))
    )
    for over in ds_sync.OVERS:
        aware = ds_sync.name_of(ds_sync.AWARE, over)
        metric = f"step time mean, {ds_sync.name_of(ds_sync.RING, over)} / {aware}"
        row = row_of(rows, f"ds-sync-oversubscribed: {aware}", metric)
        assert (row.ratio, row.target, row.met) == (3.0, 1.5, True)


def test_few_steps_are_an_indication() -> None:
    key = TrialKey(
        case="dlcp-push", variant=dlcp.ON, repeat=0, work=msgspec.structs.replace(WORK, steps=5)
    )
    assert all(row.quick for row in rows_of_trials([Trial(key=key, figures=figures(1.0))]))


def test_ripples_is_held_against_the_all_reduce_of_its_transport() -> None:
    task = Task(
        dataset="digits",
        model="mlp:8",
        workers=2,
        compute_ms=1.0,
        seconds=1.0,
        target_loss=1.0,
        megabits=50,
    )

    def outcome(contender: str, steps: list[int], repeat: int) -> Outcome:
        key = Key(scenario="slow-link", contender=contender, repeat=repeat, task=task)
        made = Figures(
            seconds_to_target=None,
            final_loss=1.0,
            final_accuracy=0.5,
            consensus_distance=0.0,
            steps=steps,
            step_ms_p50=1.0,
            step_ms_p99=1.0,
            step_ms_max=1.0,
            curve=[],
            sent_bytes=0,
            processors_busy=0.0,
            switch_late_ms=0.0,
            says=[],
        )
        return Outcome(key=key, figures=made)

    rows = rows_of_ripples(
        [
            outcome("shoal-ripples", [30, 10], 0),
            outcome("shoal-all-reduce-p10", [10, 10], 0),
            outcome("shoal-ripples", [50, 10], 1),
            outcome("shoal-all-reduce-p10", [10, 10], 1),
            outcome("shoal-ripples-gloo", [50, 10], 0),  # whose partner is missing
            outcome("shoal-ripples", [1, 1], 2),
        ]
    )
    assert [(row.case, row.ratio, row.spread) for row in rows] == [
        ("slow-link: shoal-ripples", 2.5, [2.0, 3.0])
    ]
    known = {each.name for each in (*SCENARIOS, *CONTENDERS)}
    assert set(ripples.names()) <= known


# ---- going through them ------------------------------------------------------------------------


class Silent:
    def begin(self, section: TrialPart) -> None:
        pass

    def say(self, text: str) -> None:
        self.said = text


def test_every_case_belongs_to_a_study_and_has_its_own_name() -> None:
    assert {case.study for case in CASES} == set(STUDIES)
    assert len({case.name for case in CASES}) == len(CASES)
    assert {part.case.study for part in make_trials(["dlcp"], quick=True)} == {"dlcp"}
    assert {part.name for part in make_trials(["dlcp-push"], quick=True)} == {"dlcp-push"}
    assert len(make_trials(STUDIES, quick=True)) < len(make_trials(STUDIES, quick=False)) / 2


def test_trainings_to_the_end_are_of_all_on_and_all_off_and_not_for_a_quick_look() -> None:
    trained = [part for part in make_trials(STUDIES, quick=False) if "trained" in part.name]
    assert {part.summary for part in trained} == {dlcp.ON, dlcp.OFF}
    assert len(trained) == 3 * 2 * 6  # cases, variants, repeats
    assert not any("trained" in part.name for part in make_trials(STUDIES, quick=True))


def test_variants_take_turns_within_a_repeat() -> None:
    parts = make_trials(["ds-sync"], quick=True, repeats=2)
    half = len(parts) // 2
    assert [p.key.repeat for p in parts] == [0] * half + [1] * half
    assert [p.summary for p in parts[:half]] == [p.summary for p in parts[half:]]


def test_trials_that_failed_are_tried_again_and_others_are_not(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    parts = make_trials(["dlcp"], quick=True)[:3]
    shows = Silent()

    def run(part: TrialPart, _file: ClusterFile) -> Trial:
        if part is parts[1]:
            return Trial(key=part.key, failed="it broke")
        return Trial(key=part.key, figures=figures(100.0))

    def save(file: ClusterFile) -> None:
        write_bench_file(path, file)

    empty = ClusterFile(environment=describe_environment())
    made = run_parts(parts, empty, run, shows, save, describe_environment)
    assert read_cluster_file(path) == made
    assert shows.said == "dlcp-incast: all off failed: it broke"
    assert made.skipped == ["dlcp-incast: all off: it broke"]
    assert left_to_try(parts, made) == [parts[1]]
    again = run_parts(
        [parts[1]],
        made,
        lambda part, _file: Trial(key=part.key, figures=figures(200.0)),
        shows,
        save,
        describe_environment,
    )
    assert len(again.trials) == 3
    assert not again.skipped
    metric = "step time mean, all off / all on"
    assert row_of(again.rows, "dlcp-incast: all on", metric).ratio == 2.0
