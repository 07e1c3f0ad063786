"""What no paper measured: its scenario files, its combinations, and that each is what it says."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from shoal.sweeps import Finished
from shoal_bench.cli.reproduce_combined import combined
from shoal_bench.reproduce.combined import (
    CARRIERS,
    CONDITIONS,
    SCALES,
    Combination,
    combinations,
    found_of,
    measure,
    scenario_of,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(300)
"""The first run of a kernel compiles it."""

ANY = Combination("DS-Sync, topology", CARRIERS[0], "64", CONDITIONS[0])


def test_every_strategy_meets_every_carrier_at_every_scale() -> None:
    whole = combinations(quick=False)
    assert len(whole) == len(set(whole))
    assert {each.scale for each in whole} == set(SCALES)
    for scale in SCALES:
        scenario = scenario_of(scale)
        assert scenario.training is not None
        assert scenario.cluster.topology.hosts == int(scale)
        wanted = {(s.name, c.name) for s in scenario.training.strategies for c in CARRIERS}
        missing = wanted - {(e.strategy, e.carrier.name) for e in whole if e.scale == scale}
        rings = {("ring all-reduce", each.name) for each in CARRIERS[:2]}
        assert missing == (rings if scale == SCALES[-1] else set())


@pytest.mark.long
def test_a_combination_is_carried_by_what_it_names_and_loses_what_it_may() -> None:
    found = {
        carrier: found_of(each, Finished(measure(each, 1), 0.0))
        for carrier in CARRIERS
        for each in [replace(ANY, carrier=carrier, condition=CONDITIONS[2])]
    }
    lossy, exact, tcp = (found[each] for each in CARRIERS)
    assert lossy.lost_share is not None
    assert 0 < lossy.lost_share <= CARRIERS[0].loss_bound
    assert exact.lost_share is None
    assert tcp.lost_share is None
    assert lossy.step_ms < exact.step_ms < tcp.step_ms  # at 0.1 % loss it depends on the seed


def test_the_command_writes_and_draws_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    some = [replace(ANY, carrier=each) for each in CARRIERS[1:]]
    monkeypatch.setattr("shoal_bench.reproduce.combined.combinations", lambda *, quick: some)
    file, plot = tmp_path / "found.json", tmp_path / "found.svg"
    combined(jobs=1, runs=tmp_path / "runs", json=file, plot=plot)
    found = json.loads(file.read_text())["found"]
    steps = [each["step_ms"] for each in found]
    assert [each["combination"]["carrier"]["name"] for each in found] == [
        each.name for each in CARRIERS[1:]
    ]
    printed, drawn = capsys.readouterr().out, plot.read_text()
    for step in steps:
        assert f"{step:.1f}" in printed
        assert f"{step:.1f}" in drawn
    assert drawn.count("not simulated") == 1
