"""What no paper measured: its scenario files, its combinations, and that each is what it says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.reproduce.combined import (
    CARRIERS,
    CONDITIONS,
    SCALES,
    Combination,
    combinations,
    found_of,
    measure,
    scenario_of,
)
from shoal.sweeps import Finished

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


def test_a_combination_is_carried_by_what_it_names_and_loses_what_it_may() -> None:
    found = {
        carrier: found_of(each, Finished(measure(each, 1), 0.0))
        for carrier in CARRIERS
        for each in [replace(ANY, carrier=carrier, condition=CONDITIONS[1])]
    }
    lossy, exact, tcp = (found[each] for each in CARRIERS)
    assert lossy.lost_share is not None
    assert 0 < lossy.lost_share <= CARRIERS[0].loss_bound
    assert exact.lost_share is None
    assert tcp.lost_share is None
    assert lossy.step_ms < exact.step_ms < tcp.step_ms
