"""What Prometheus reads of a job's training, parsed by its own parser."""

from __future__ import annotations

import math
from collections import Counter

import msgspec
import pytest

pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families

from shoal.watch.exposition import exposition
from told import shown


def read(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation.endswith(("1.", ".", "slow.", "be.")), family.name
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def of(rank: int, **more: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted({"rank": str(rank), **more}.items()))


def test_every_figure_is_under_its_name() -> None:
    found = read(exposition(shown()))
    assert found["shoal_members"] == {(): 3}
    assert found["shoal_view_epoch"] == {(): 4}
    assert found["shoal_staleness_steps"] == {(): 2}
    (info,) = found["shoal_info"]
    assert dict(info)["strategy"] == "all-reduce"
    assert found["shoal_steps"][of(1)] == 101
    assert found["shoal_step_own_seconds"] == {of(0): 0.04, of(1): 0.08, of(2): 0.04}
    assert found["shoal_step_wait_seconds"] == {of(0): 0.04, of(1): 0, of(2): 0.04}
    assert found["shoal_step_exchange_seconds"][of(0)] == pytest.approx(0.01)
    assert found["shoal_loss"][of(2)] == 0.5
    assert found["shoal_step_hidden_seconds"] == {of(1): pytest.approx(0.005)}
    assert found["shoal_consensus_distance"] == {(): 0.25}
    assert found["shoal_effective_loss_ratio"] == {of(1): 0.02}
    assert found["shoal_worker_up"] == {of(0): 1, of(1): 1, of(2): 0}
    assert found["shoal_slow_ratio"] == {of(0): 1, of(1): 2, of(2): 1}
    assert found["shoal_held_up_seconds"] == {of(1, kind="slow worker"): pytest.approx(0.04)}
    assert found["shoal_step_seconds_count"][of(0)] == 120
    assert found["shoal_step_seconds_sum"][of(0)] == pytest.approx(0.09 * 120)
    buckets = found["shoal_step_seconds_bucket"]
    assert [buckets[of(0, le=le)] for le in ("0.02", "0.05", "0.1", "+Inf")] == [0, 114, 120, 120]


def test_who_has_finished_is_neither_up_nor_down() -> None:
    found = read(exposition(shown(states={0: "alive", 1: "lost", 2: "finished"})))
    assert found["shoal_worker_up"] == {of(0): 1, of(1): 0}


def test_a_worker_has_few_series_however_many_there_are() -> None:
    series = Counter(
        labels.get("rank", "")
        for family in text_string_to_metric_families(exposition(shown(40)))
        for labels in (sample.labels for sample in family.samples)
    )
    assert max(series.values()) <= 40


def test_a_job_that_has_told_nothing_can_be_read() -> None:
    found = read(exposition(shown(told_of=0)))
    assert found["shoal_members"] == {(): 3}
    assert "shoal_loss" not in found
    assert "shoal_step_seconds_count" not in found


def test_texts_cannot_break_out_and_odd_figures_are_read() -> None:
    plain = shown()
    worker = msgspec.structs.replace(plain.workers[0], loss=math.nan)
    odd = msgspec.structs.replace(plain, strategy='a"b\\c\nd', workers=(worker,))
    found = read(exposition(odd))
    (info,) = found["shoal_info"]
    assert dict(info)["strategy"] == 'a"b\\c\nd'
    assert math.isnan(found["shoal_loss"][of(0)])
