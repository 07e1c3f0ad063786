"""Against recorded runs of ns-3 3.44 and SimGrid 3.32: `tools/` has the scripts that made them.

Scenarios, seeds and results are in `reference/`; nobody has tuned anything until they matched. What
is random (spraying, losses) is drawn otherwise in ns-3, so there means over seeds are compared, and
a difference may be the accepted one or three standard errors.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal_bench import reference_flows, reference_networks

REFERENCE = Path(__file__).parent / "reference"
DIFFERS = {
    # ns-3 shrinks windows over a round trip: queues drain later, more is marked, flows end together
    "DCTCP 7:1, 64 hosts, 8 leaves, 500 packets, prr": (-0.056, 0.0, 0.0),
    # In ns-3 windows fall below a packet and wait 200 ms for the timer; Shoal's keep two packets.
    "DCTCP 31:1, 64 hosts, 8 leaves, 200 packets, classic": (-0.865, -0.963, -0.963),
}
"""Measured differences of the mean, the 99th percentile and the largest time that are too large."""


QUEUES_DIFFER = {"DCTCP 31:1, 64 hosts, 8 leaves, 200 packets, prr": -0.106}
"""Measured differences of what waits, on the mean, that are too large."""
MOSTLY_SILENT = "DCTCP 31:1, 64 hosts, 8 leaves, 200 packets, classic"
"""Of ns-3's run nobody sends most of the time, see above."""


def load(file: str) -> list[dict[str, Any]]:
    return json.loads((REFERENCE / file).read_text(encoding="utf-8"))["cases"]


DELAYS_DIFFER = {("8 priorities, one switch, load 1.5", 4): 0.0101}
"""By case and band. Nothing is random there; the likely cause, not looked into, is the order of
what happens at the same nanosecond."""


NS3 = {case["name"]: case for case in load("ns3.json")}
SIMGRID = load("simgrid.json")


def named(*beginnings: str) -> list[str]:
    return [name for name in NS3 if name.startswith(beginnings)]


@cache
def ours(name: str) -> list[dict[str, Any]]:
    """Return what Shoal's simulator makes of a case, by seed."""
    case = NS3[name]
    return [reference_networks.run(case["scenario"] | {"seed": seed}) for seed in case["seeds"]]


def check_means(mine: list[float], theirs: list[float], accepted: float) -> None:
    """Compare means over seeds."""
    difference = float(np.mean(mine) - np.mean(theirs))
    seeds = len(mine)
    error = float(np.sqrt((np.var(mine) + np.var(theirs)) / (seeds - 1))) if seeds > 1 else 0.0
    assert abs(difference) <= max(accepted * abs(float(np.mean(theirs))), 3 * error)


@pytest.mark.parametrize("name", named("tail drop", "8 priorities"))
def test_as_many_packets_arrive_and_are_dropped_as_in_ns3(name: str) -> None:
    sent = sum(flow[3] for flow in NS3[name]["scenario"]["flows"])
    for mine, theirs in zip(ours(name), NS3[name]["results"], strict=True):
        assert sum(mine["delivered"]) == pytest.approx(sum(theirs["delivered"]), rel=0.005)
        assert mine["dropped"] == pytest.approx(theirs["dropped"], rel=0.01, abs=10)
        assert sum(mine["delivered"]) + mine["dropped"] == sent


@pytest.mark.parametrize("name", named("8 priorities"))
def test_priorities_get_what_they_get_in_ns3(name: str) -> None:
    bands = np.array(NS3[name]["scenario"]["flows"])[:, 6]
    for band in range(8):
        delivered, delays = [
            [
                [float(np.array(result[what])[bands == band].sum()) for result in results]
                for results in (ours(name), NS3[name]["results"])
            ]
            for what in ("delivered", "delay_ns")
        ]
        check_means(*delivered, accepted=0.005)
        means = [list(np.divide(*pair)) for pair in zip(delays, delivered, strict=True)]
        check_means(*means, accepted=DELAYS_DIFFER.get((name, band), 0.01))


@pytest.mark.parametrize("name", named("hashed"))
def test_flows_take_the_spines_that_they_take_in_ns3(name: str) -> None:
    for mine, theirs in zip(ours(name), NS3[name]["results"], strict=True):
        assert mine["dropped"] == theirs["dropped"] == 0
        assert mine["uplinks"] == theirs["uplinks"]
        assert mine["delivered"] == theirs["delivered"]
        assert max(mine["uplinks"]) > 1.2 * min(mine["uplinks"])  # hashes are not even


@pytest.mark.parametrize("name", named("colors"))
def test_as_many_of_either_color_are_dropped_as_in_ns3(name: str) -> None:
    flows = np.array(NS3[name]["scenario"]["flows"])
    for color, accepted in ((0, 0.02 if "by chance" in name else 0.01), (1, 0.01)):
        chosen = flows[:, 6] % 2 == color
        sent = int(flows[chosen, 3].sum())
        dropped = [
            [float(sent - np.array(result["delivered"])[chosen].sum()) for result in results]
            for results in (ours(name), NS3[name]["results"])
        ]
        check_means(*dropped, accepted=accepted)
        if color == 0:
            assert min(min(each) for each in dropped) > 0.05 * sent


@pytest.mark.parametrize("name", named("ring"))
def test_a_ring_takes_what_it_does_in_ns3(name: str) -> None:
    mine, theirs = ours(name), NS3[name]["results"]
    check_means(*([max(each["took_ns"]) for each in side] for side in (mine, theirs)), 0.02)


@pytest.mark.parametrize("name", named("DCTCP"))
def test_dctcp_ends_when_it_does_in_ns3(name: str) -> None:
    figures = (np.mean, lambda took: np.percentile(took, 99), np.max)
    measured = []
    for figure in figures:
        mine, theirs = (
            np.mean([figure(result["took_ns"]) for result in results])
            for results in (ours(name), NS3[name]["results"])
        )
        measured.append(mine / theirs - 1)
    expected = DIFFERS.get(name, (0.0, 0.0, 0.0))
    accepted = (0.05, 0.05, 0.02) if name not in DIFFERS else (0.01, 0.01, 0.01)
    for is_now, was, most in zip(measured, expected, accepted, strict=True):
        assert is_now == pytest.approx(was, abs=most)
    assert all(each["dropped"] == 0 for each in (*ours(name), *NS3[name]["results"]))


@pytest.mark.parametrize("name", [each for each in named("DCTCP") if each != MOSTLY_SILENT])
def test_as_much_waits_under_dctcp_as_in_ns3(name: str) -> None:
    mine, theirs = (
        np.mean([result["queue_packets"] for result in results])
        for results in (ours(name), NS3[name]["results"])
    )
    was, most = (QUEUES_DIFFER[name], 0.01) if name in QUEUES_DIFFER else (0.0, 0.1)
    assert mine / theirs - 1 == pytest.approx(was, abs=most)


@pytest.mark.parametrize("name", named("newreno", "cubic"))
def test_loss_costs_what_it_does_in_ns3(name: str) -> None:
    mine, theirs = ours(name), NS3[name]["results"]
    for figure in (lambda result: 1 / result["took_ns"][0], lambda result: result["lost"]):
        check_means([figure(each) for each in mine], [figure(each) for each in theirs], 0.1)


OVERFLOWS_DIFFER = {
    # ns-3 halves what is under way without what is lost, where Shoal as Linux halves the window; at
    # once after slow start has filled a buffer that is next to nothing (27 of 259 packets). With
    # ns-3's rule the trunk and incast are within chance (docs/simulator-accuracy.md).
    "overflow, buffer of 100, newreno": (-0.52, -0.52),
    "overflow, shared trunk, newreno": (0.05, -0.17),
    "overflow, incast beside a ring, least timeout 0.2 s, newreno": (0.41, 0.01),
    # 3.44 counts a duplicate acknowledgement twice, sends more in recovery, and loses of it; with
    # "plain-prr", which does not, the difference is gone.
    "overflow, buffer of 20, cubic": (-0.20, -0.20),
}
"""Measured differences of the mean and the largest time that are too large."""


@pytest.mark.parametrize("name", named("overflow"))
def test_ports_that_overflow_cost_tcp_what_they_do_in_ns3(name: str) -> None:
    mine, theirs = ours(name), NS3[name]["results"]
    assert all(each["dropped"] > 0 for each in (*mine, *theirs))
    expected = OVERFLOWS_DIFFER.get(name, (0.0, 0.0))
    for figure, differs in zip((np.mean, np.max), expected, strict=True):
        is_now, was = ([float(figure(each["took_ns"])) for each in side] for side in (mine, theirs))
        if differs:
            assert np.mean(is_now) / np.mean(was) - 1 == pytest.approx(differs, abs=0.02)
        else:
            check_means(is_now, was, 0.1)


@pytest.mark.parametrize("case", SIMGRID, ids=lambda case: f"{case['pattern']}, {case['hosts']}")
def test_flows_end_when_they_do_in_simgrid(case: dict[str, Any]) -> None:
    how = {name: case[name] for name in ("pattern", "hosts", "rounds", "seed")}
    ends = reference_flows.ends_of(reference_flows.scenario_of(**how))
    assert max(ends) == pytest.approx(case["makespan_s"], rel=1e-6)
    assert np.mean(ends) == pytest.approx(case["mean_end_s"], rel=1e-6)
    assert ends[:: case["every"]] == pytest.approx(case["ends_s"], rel=1e-6)
