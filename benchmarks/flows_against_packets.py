"""Holds calibrated flows against packets on the same scenarios: rows of docs/simulator-accuracy.md.

    python benchmarks/flows_against_packets.py [--json FILE]

One star with links of 1 Gbit/s and 20 us (a round trip of 80 us), a model of 4 MB, 10 ms of
computing, means over seeds.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path

import msgspec

from shoal.jobs import describe_environment
from shoal.scenario import StrategySpec, parse_scenario
from shoal.sim import CARRIERS, simulate

HOSTS = (8, 16)
LOSSES = (0.001, 0.01)
"""Shares of packets that are lost on the way from one host to another."""
STRATEGIES = {
    "all-reduce": {},
    "ds-sync": {},
    "ripples": {"group_size": 3},
    "ps-bsp": {},
}
SEEDS = range(1, 6)
TEXT = """
seed = {seed}
[hosts]
count = {hosts}
[access]
rate = "1 Gbit/s"
delay = "20 us"
loss = {loss:.9f}
[training]
parameters = 1_000_000
compute = "10 ms"
steps = 6
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for carrier, sync, hosts, loss in itertools.product(CARRIERS, STRATEGIES, HOSTS, LOSSES):
        step_ms = {"packets": 0.0, "flows": 0.0}
        lost = {"packets": 0.0, "flows": 0.0}
        for seed, level in itertools.product(SEEDS, step_ms):
            link_loss = 1 - (1 - loss) ** 0.5
            scenario = parse_scenario(TEXT.format(seed=seed, hosts=hosts, loss=link_loss))
            spec = StrategySpec(
                sync,
                STRATEGIES[sync],
                transport=carrier.transport,
                loss_bound=carrier.loss_bound,
                level=level,
            )
            assert scenario.training is not None
            out = simulate(scenario.cluster, scenario.training, spec)
            step_ms[level] += out.step_ms / len(SEEDS)
            lossy = out.counters.get("lossy_bytes", 0.0)
            if lossy:
                lost[level] += out.counters["lost_bytes"] / lossy / len(SEEDS)
        rows.append(
            {
                "transport": str(carrier),
                "strategy": sync,
                "hosts": hosts,
                "loss": loss,
                "step_ms": step_ms,
                "ratio": step_ms["flows"] / step_ms["packets"],
                "lost_share": lost,
            }
        )
        print(rows[-1], flush=True)
    if options.json is not None:
        environment = msgspec.to_builtins(describe_environment())
        found = {"environment": environment, "scenario": TEXT, "seeds": list(SEEDS), "rows": rows}
        text = json.dumps(found, indent=1)
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
