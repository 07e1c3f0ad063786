"""Runs ns-3 and SimGrid, and writes what they say into tests/core/sim/reference.

    PYTHONPATH=src python tools/record_references.py [--ns3 PYTHON] [--simgrid]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from shoal.bench.reference_networks import cross_traffic, incast, lossy_path
from shoal.bench.reference_tools import run_ns3

REFERENCE = Path(__file__).parents[1] / "tests" / "core" / "sim" / "reference"
SEEDS = range(1, 11)


def ns3_scenarios() -> dict[str, dict[str, Any]]:
    scenarios = {}
    for load in (0.5, 1.0, 2.0):
        scenarios[f"tail {load:g}"] = cross_traffic(load, 2_000_000)
    for load in (0.9, 1.5):
        scenarios[f"bands {load:g}"] = cross_traffic(load, 2_000_000, "bands")
    scenarios |= {
        "incast 7:1, one switch, 1000": incast(8, 1, 8, 1_000),
        "incast 31:1, one switch, 200": incast(32, 1, 32, 200),
        "incast 7:1, sprayed, 1000": incast(16, 4, 8, 1_000),
        "incast 7:1, sprayed, 500": incast(64, 8, 8, 500),
        "incast 31:1, sprayed, 200": incast(64, 8, 32, 200),
        "incast 7:1, sprayed, 100": incast(16, 4, 8, 100),
    }
    for control in ("newreno", "cubic"):
        for loss in (0.001, 0.01):
            for seed in SEEDS:
                name = f"{control}, loss {loss:g}, seed {seed}"
                scenarios[name] = lossy_path(control, loss, 20_000, seed)
    return scenarios


def record(path: Path, tool: str, cases: list[dict[str, Any]]) -> None:
    head = json.dumps({"tool": tool})[1:-1]
    lines = ",\n".join(json.dumps(each, separators=(",", ":")) for each in cases)
    path.write_text(f'{{{head}, "cases": [\n{lines}\n]}}\n', encoding="utf-8")


def record_ns3(python: Path) -> None:
    scenarios = ns3_scenarios()
    results = run_ns3(python, list(scenarios.values()))
    tool = results[0].pop("version")
    cases = []
    for name, result in zip(scenarios, results, strict=True):
        kept = {key: each for key, each in result.items() if key not in ("processor_s", "version")}
        cases.append({"name": name, "scenario": scenarios[name], "result": kept})
    record(REFERENCE / "ns3.json", tool, cases)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ns3", type=Path, metavar="PYTHON", help="of an environment with ns-3")
    chosen = parser.parse_args()
    if chosen.ns3:
        record_ns3(chosen.ns3)


if __name__ == "__main__":
    main()
