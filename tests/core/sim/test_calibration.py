"""Flows that lose some: what packets took, looked up, and what that comes to for whole jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shoal.errors import UsageError
from shoal.scenario.spec_file import parse_scenario
from shoal.scenario.training_spec import StrategySpec
from shoal.sim.calibration.calibrated_network import CalibratedNetwork, CalibratedSums
from shoal.sim.calibration.calibration_table import log_units, share_units, table_of
from shoal.sim.calibration.carriers import CARRIERS, FRAME_BYTES, CalibratedCarrier
from shoal.sim.calibration.measuring import MeasuredWay, measure
from shoal.sim.training.simulation import check, simulate
from shoal.switching.settings import Link, Port
from shoal.switching.tables import NEVER, PICOSECONDS
from shoal.switching.topology import Materials, Topology, host_names, star
from thoroughness import seldom

if TYPE_CHECKING:
    from shoal.sim.training.outcome import Outcome

EXACT, BOUNDED, CUBIC = (
    CalibratedCarrier("shoal"),
    CalibratedCarrier("shoal", 0.1),
    CalibratedCarrier("cubic"),
)
IN_THREES = {"group_size": 3}

TEXT = """
seed = 1
[hosts]
count = 8
[access]
rate = "1 Gbit/s"
delay = "20 us"
loss = "0.5 %"
[training]
parameters = 1_000_000
compute = "10 ms"
steps = 6
level = "flows"
[[training.strategy]]
sync = "all-reduce"
transport = "cubic"
"""


def pair(way: MeasuredWay) -> Topology:
    link = Link(delay_s=way.round_trip_s / 4, loss=1 - (1 - way.loss) ** 0.5)
    port = Port(round(way.rate))
    return star(host_names(2), Materials(port, port, link))


def looked_up(
    carrier: CalibratedCarrier, way: MeasuredWay, draws: list[float]
) -> tuple[list[float], float]:
    n = np.ones(len(draws))
    ratios, lost = table_of(carrier).ratios(
        way.loss * n, way.round_trip_s * n, way.rate * n, way.packets * n, np.array(draws)
    )
    return ratios.tolist(), float(lost[0])


@pytest.mark.parametrize("carrier", CARRIERS, ids=str)
@pytest.mark.parametrize(
    "way",
    seldom(
        [MeasuredWay(1e-2, 4e-4, 1e9, 10), MeasuredWay(1e-3, 4e-3, 1e8, 100)],
        often=[MeasuredWay(1e-3, 4e-3, 1e8, 100)],
    ),
)
def test_entries_are_what_packets_take_today(carrier: CalibratedCarrier, way: MeasuredWay) -> None:
    cell = measure(carrier, way)
    table = table_of(carrier)
    ratios, lost = looked_up(carrier, way, table.levels)
    assert [log_units(each) for each in ratios] == [log_units(each) for each in cell.ratios]
    assert share_units(lost) == share_units(cell.lost_share)


@pytest.mark.parametrize("carrier", CARRIERS, ids=str)
def test_between_entries_is_between_them(carrier: CalibratedCarrier) -> None:
    draws = [0.0, 0.2, 0.5, 0.8, 1.0]
    low = MeasuredWay(1e-3, 4e-4, 1e9, 1_000)
    ways = low, replace(low, loss=3e-3**0.5 * 1e-3**0.5), replace(low, loss=3e-3)
    below, middle, above = (looked_up(carrier, each, draws)[0] for each in ways)
    assert middle == pytest.approx([(a * b) ** 0.5 for a, b in zip(below, above, strict=True)])
    assert middle == sorted(middle)
    beyond, _ = looked_up(carrier, replace(low, packets=10**7), draws)
    assert beyond == looked_up(carrier, replace(low, packets=50_000), draws)[0]
    half_of_the_least, _ = looked_up(carrier, replace(low, loss=5e-5), [0.5])
    ends = [looked_up(carrier, replace(low, loss=loss), [0.5])[0][0] for loss in (0.0, 1e-4)]
    assert half_of_the_least[0] == pytest.approx((ends[0] * ends[1]) ** 0.5)


def test_a_flow_alone_takes_what_the_table_says() -> None:
    way = MeasuredWay(1e-2, 4e-4, 1e9, 300)
    least, most = (looked_up(CUBIC, way, [draw])[0][0] * way.ideal_s for draw in (0.0, 1.0))
    took = []
    for seed in range(40):
        network = CalibratedNetwork(
            pair(way), table_of(CUBIC), local_rate=8e10, spray=False, seed=seed
        )
        network.start(0, [0], [1], [way.packets * FRAME_BYTES])
        assert network.run(NEVER)
        took.append(network.now / PICOSECONDS)
    assert least * 0.9999 <= min(took) < max(took) <= most * 1.0001
    median = looked_up(CUBIC, way, [0.5])[0][0] * way.ideal_s
    assert sorted(took)[10] * 0.9 < median < sorted(took)[30] * 1.1


def test_what_is_lost_for_good_is_counted() -> None:
    way = MeasuredWay(1e-2, 4e-4, 1e9, 1_000)
    network = CalibratedSums(
        pair(way), table_of(EXACT), table_of(BOUNDED), local_rate=8e10, spray=False
    )
    network.start(0, [0], [1], [1e6], contributes=True)
    network.start(0, [1], [0], [1e6])
    assert network.lossy_bytes == pytest.approx(1e6 / network.header_factor, abs=1)
    assert 0 < network.lost_bytes <= 0.1 * network.lossy_bytes


def test_others_traffic_and_what_stays_on_a_host_lose_nothing() -> None:
    way = MeasuredWay(1e-1, 4e-4, 1e9, 1_000)
    network = CalibratedNetwork(pair(way), table_of(CUBIC), local_rate=1e9, spray=False)
    network.start(0, [0], [0], [1.25e6])
    network.run(NEVER)
    assert network.now == pytest.approx(0.01 * PICOSECONDS, rel=1e-6)
    network.start(network.now, [0], [1], [1.25e5], most=1e8)
    network.run(NEVER)
    assert network.now == pytest.approx((0.02 + 2e-4) * PICOSECONDS, rel=1e-6)


def both(text: str, seeds: int, **strategy: Any) -> tuple[float, float, float, float]:
    """Return ms per step and shares lost, of packets and of flows, over some seeds."""
    steps: list[list[float]] = [[], []]
    lost: list[list[float]] = [[], []]
    for seed in range(1, seeds + 1):
        scenario = parse_scenario(text.replace("seed = 1", f"seed = {seed}"))
        assert scenario.training is not None
        for place, level in enumerate(("packets", "flows")):
            spec = StrategySpec(**strategy, level=level)
            out = simulate(scenario.cluster, scenario.training, spec)
            steps[place].append(out.step_ms)
            lossy = out.counters.get("lossy_bytes", 0.0)
            lost[place].append(out.counters["lost_bytes"] / lossy if lossy else 0.0)
    means = [float(np.mean(each)) for each in (*steps, *lost)]
    return means[0], means[1], means[2], means[3]


@pytest.mark.parametrize("loss", seldom(["0.05 %", "0.5 %"], often=["0.5 %"]))
@pytest.mark.parametrize(
    ("sync", "options", "carrier"),
    seldom(
        [
            (sync, options, carrier)
            for sync, options in (("all-reduce", {}), ("ds-sync", {}), ("ripples", IN_THREES))
            for carrier in (EXACT, BOUNDED, CUBIC)
        ],
        often=[("ds-sync", {}, BOUNDED), ("ripples", IN_THREES, CUBIC)],
    ),
)
def test_jobs_take_about_what_packets_take(
    sync: str, options: dict[str, Any], carrier: CalibratedCarrier, loss: str
) -> None:
    """Losses are those of one link: a way has two. docs/simulator-accuracy.md has the ratios.

    What sums lose is said too high: it is that of messages to one host.
    """
    packets, flows, lost, lost_by_flows = both(
        TEXT.replace("0.5 %", loss),
        3,
        strategy=sync,
        options=options,
        transport=carrier.transport,
        loss_bound=carrier.loss_bound,
    )
    assert 0.55 * packets < flows < 1.7 * packets
    assert lost - 0.005 <= lost_by_flows <= carrier.loss_bound
    assert (lost_by_flows > 0) == (carrier.loss_bound > 0)


def outcome(text: str, **changes: Any) -> Outcome:
    scenario = parse_scenario(text)
    assert scenario.training is not None
    strategy = replace(scenario.training.strategies[0], **changes)
    return simulate(scenario.cluster, scenario.training, strategy)


@pytest.mark.parametrize("transport", seldom(["cubic", "shoal"], often=["shoal"]))
def test_the_same_seed_gives_the_same_run(transport: str) -> None:
    first = outcome(TEXT, transport=transport)
    assert outcome(TEXT, transport=transport) == first
    other = TEXT.replace("seed = 1", "seed = 2")
    assert outcome(other, transport=transport).digest != first.digest


def test_a_link_that_begins_to_lose_slows_flows_from_then_on() -> None:
    clean = TEXT.replace('loss = "0.5 %"', "")
    later = '\n[[event]]\nat = "80 ms"\nbetween = ["host0", "switch"]\nloss = "5 %"\n'
    always = '\n[[link]]\nbetween = ["host0", "switch"]\nloss = "5 %"\n'
    nothing, some, all_of_it = (outcome(clean + more).seconds for more in ("", later, always))
    assert nothing < some < all_of_it


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("0.5 %", "8 %"), r"from host0 to host1 has a loss of 0.154; .* for 0 to 0.1: take level"),
        (("20 us", "20 ms"), r"has a round trip of 0.08 s; .* calibrated for 4e-06 to 0.04 s"),
        (("1 Gbit/s", "40 Gbit/s"), r"has a rate of 4e\+10 bit/s; .* for 1e\+08 to 1e\+10 bit/s"),
        (("0.5 %", '0.5 %"\nto_bad = 0.01\nto_good = 0.1\nbad_loss = "9 %'), "not in bursts"),
        (("steps = 6", "steps = 6\nmtu = 4000"), "for the usual mtu, tick, min_timeout and tags"),
        (("cubic", "pfabric"), "Flows are calibrated for shoal, .*, not for pfabric"),
        (('"cubic"', '"shoal"\nloss_bound = 0.3'), "not for shoal with a loss bound of 0.3"),
        (('"cubic"', '"shoal"\nloss_bound = 0.1\ntags = false'), "mtu, tick, min_timeout and tags"),
    ],
)
def test_what_is_not_calibrated_is_refused_before_anything_runs(
    change: tuple[str, str], sentence: str
) -> None:
    assert change[0] in TEXT
    scenario = parse_scenario(TEXT.replace(*change))
    with pytest.raises(UsageError, match=sentence):
        check(scenario)


def test_what_a_link_will_lose_is_looked_at_as_well() -> None:
    later = '\n[[event]]\nat = "80 ms"\nbetween = ["host3", "switch"]\nloss = "30 %"\n'
    scenario = parse_scenario(TEXT + later)
    with pytest.raises(UsageError, match=r"host3 .*loss of 0\.3"):
        check(scenario)


def test_a_ring_that_may_lose_is_refused() -> None:
    with pytest.raises(UsageError, match="not calibrated for the bounds of a ring's hops"):
        outcome(TEXT, transport="shoal", loss_bound=0.1, options={"algorithm": "ring"})
    assert outcome(TEXT, transport="shoal", options={"algorithm": "ring"}).seconds > 0


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ('level = "packet"', r"scenario, line 9: level: It takes one of packets, flows, closed-"),
        (
            'level = "packets"\n[[training.strategy]]\nsync = "ds-sync"',
            "line 10: Packets are those of",
        ),
        ('level = "closed-form"\ntransport = "cubic"', "line 9: level: A closed form knows no t"),
        (
            'level = "closed-form"\n[[training.strategy]]\nsync = "ds-sync"\ntransport = "cubic"',
            "line 12: transport: A closed form knows no transport",
        ),
        (
            'transport = "cubic"\n[[training.strategy]]\nsync = "ds-sync"\nlevel = "closed-form"',
            "line 12: level: A closed form knows no transport",
        ),
    ],
)
def test_levels_that_cannot_be_say_their_line(more: str, sentence: str) -> None:
    text = '[hosts]\ncount = 2\n[access]\nrate = "1 Gbit/s"\n[training]\nsize = "1 MB"\n'
    with pytest.raises(UsageError, match=sentence):
        parse_scenario(f'{text}compute = "1 s"\nsteps = 1\n{more}\n')


@pytest.mark.parametrize("bound", seldom([0.0, 0.1], often=[0.1]))
def test_a_thousand_workers_over_links_that_lose(bound: float) -> None:
    """DS-Sync's groups of 32 wait for the slowest of their members, and lose what they may."""
    many = TEXT.replace("count = 8", "count = 1024").replace("steps = 6", "steps = 1")
    out = outcome(many, strategy="ds-sync", transport="shoal", loss_bound=bound)
    alone = outcome(many, strategy="ds-sync", transport="", level="flows")
    assert alone.step_ms < out.step_ms < 3 * alone.step_ms
    assert ("lost_bytes" in out.counters) == (bound > 0)
