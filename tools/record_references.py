"""Runs ns-3 and SimGrid, and writes what they say into tests/core/sim/reference.

PYTHONPATH=src python tools/record_references.py [--ns3 PYTHON [--only BEGINNING]] [--simgrid]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from shoal_bench.reference_flows import PATTERNS, scenario_of
from shoal_bench.reference_networks import (
    cross_traffic,
    full_buffer,
    incast,
    incast_beside_ring,
    lossy_path,
    ring,
    shared_trunk,
    slow_link,
    with_colors,
)
from shoal_bench.reference_tools import run_ns3, run_simgrid

REFERENCE = Path(__file__).parents[1] / "tests" / "core" / "sim" / "reference"
MANY_SEEDS = tuple(range(1, 41))
"""Of what is random; ns-3's and Shoal's random numbers differ."""
TEN_SEEDS = tuple(range(1, 11))
FEW_SEEDS = tuple(range(1, 6))


def ns3_cases() -> list[dict[str, Any]]:
    cases = []

    def add(name: str, scenario: dict[str, Any], seeds: tuple[int, ...] = (1,)) -> None:
        cases.append({"name": name, "scenario": scenario, "seeds": seeds})

    for load in (0.9, 1.5):
        star = cross_traffic(load, 2_000_000, "bands", leaves=1)
        add(f"8 priorities, one switch, load {load:g}", star)
    for load in (0.5, 1.0, 2.0):
        scenario = cross_traffic(load, 2_000_000)
        add(f"tail drop, sprayed, load {load:g}", scenario, FEW_SEEDS)
    for load in (0.9, 1.5):
        scenario = cross_traffic(load, 2_000_000, "bands")
        add(f"8 priorities, sprayed, load {load:g}", scenario, FEW_SEEDS)
    scenario = cross_traffic(0.9, 2_000_000) | {"hashed": True, "limit_packets": 10_000}
    add("hashed, load 0.9", scenario, FEW_SEEDS)
    for load in (1.5, 2.0):
        scenario = cross_traffic(load, 2_000_000, "bands", leaves=1)
        add(f"colors, one switch, from 30 packets, load {load:g}", with_colors(scenario, 30, 30))
        scenario = with_colors(cross_traffic(load, 2_000_000, "bands"), 20, 80, 0.5)
        add(f"colors, sprayed, by chance, load {load:g}", scenario, TEN_SEEDS)
    for hosts, leaves, packets in ((8, 1, 200), (16, 4, 100)):
        scenario = ring(hosts, leaves, packets)
        seeds = FEW_SEEDS if leaves > 1 else (1,)
        add(f"ring, {hosts} hosts, {leaves} leaves, {packets} packets", scenario, seeds)
    for recovery in ("classic", "prr"):
        for hosts, leaves, group, packets in (
            (8, 1, 8, 1_000),
            (32, 1, 32, 200),
            (16, 4, 8, 1_000),
            (64, 8, 8, 500),
            (64, 8, 32, 200),
            (16, 4, 8, 100),
        ):
            name = f"DCTCP {group - 1}:1, {hosts} hosts, {leaves} leaves, {packets} packets"
            scenario = incast(hosts, leaves, group, packets, recovery) | {"sample_ns": 10_000}
            add(f"{name}, {recovery}", scenario, FEW_SEEDS if leaves > 1 else (1,))
    for control in ("newreno", "cubic"):
        for loss in (0.001, 0.01):
            scenario = lossy_path(control, loss, 10_000)
            add(f"{control}, loss {loss:g}", scenario, MANY_SEEDS)
    return cases + overflow_cases()


def overflow_cases() -> list[dict[str, Any]]:
    """Return cases of TCP over ports that drop at their limit."""
    cases = []

    def add(name: str, scenario: dict[str, Any], seeds: tuple[int, ...] = (1,)) -> None:
        cases.append({"name": f"overflow, {name}", "scenario": scenario, "seeds": seeds})

    for control in ("newreno", "cubic"):
        add(f"slow link, {control}", slow_link(control))
        for limit in (20, 100):
            add(f"buffer of {limit}, {control}", full_buffer(control, limit, 8_000))
        add(f"shared trunk, {control}", shared_trunk(control), TEN_SEEDS)
        for wait in (0.2, 0.01):
            scenario = incast_beside_ring(control, wait)
            add(f"incast beside a ring, least timeout {wait:g} s, {control}", scenario, TEN_SEEDS)
    scenario = full_buffer("cubic", 20, 8_000) | {"recovery": "plain-prr"}
    add("buffer of 20, cubic, plain-prr", scenario)
    return cases


def record_ns3(python: Path, only: str) -> None:
    """Record the cases whose names begin with `only`; the others stay as they are recorded."""
    path = REFERENCE / "ns3.json"
    known = {case["name"]: case for case in json.loads(path.read_text(encoding="utf-8"))["cases"]}
    every = ns3_cases()
    cases = [case for case in every if case["name"].startswith(only)]
    scenarios = [case["scenario"] | {"seed": seed} for case in cases for seed in case["seeds"]]
    results = iter(run_ns3(python, scenarios))
    tool = ""
    for case in cases:
        case["results"] = []
        for _ in case["seeds"]:
            result = next(results)
            tool = result.pop("version")
            del result["processor_s"]
            case["results"].append(result)
    known |= {case["name"]: case for case in cases}
    record(path, tool, [known[case["name"]] for case in every if case["name"] in known])


def simgrid_cases() -> list[dict[str, Any]]:
    return [
        {"pattern": pattern, "hosts": hosts, "rounds": rounds, "seed": 1}
        for pattern in PATTERNS
        for hosts, rounds in ((64, 20), (1024, 3), (4096, 2))
    ]


def record_simgrid() -> None:
    cases = simgrid_cases()
    results = run_simgrid([scenario_of(**case) for case in cases])
    for case, result in zip(cases, results, strict=True):
        ends = result["ends_s"]
        case["makespan_s"], case["mean_end_s"] = max(ends), sum(ends) / len(ends)
        case["every"] = max(1, len(ends) // 100)
        case["ends_s"] = ends[:: case["every"]]
    record(REFERENCE / "simgrid.json", results[0]["version"], cases)


def record(path: Path, tool: str, cases: list[dict[str, Any]]) -> None:
    """Write a case a line."""
    lines = ",\n".join(json.dumps(each, separators=(",", ":")) for each in cases)
    path.write_text(f'{{"tool":{json.dumps(tool)},"cases":[\n{lines}\n]}}\n', encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ns3", type=Path, metavar="PYTHON", help="of an environment with ns-3")
    parser.add_argument("--only", default="", help="the beginning of ns-3's cases to record")
    parser.add_argument("--simgrid", action="store_true")
    chosen = parser.parse_args()
    if chosen.ns3:
        record_ns3(chosen.ns3, chosen.only)
    if chosen.simgrid:
        record_simgrid()


if __name__ == "__main__":
    main()
