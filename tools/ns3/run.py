# SPDX-License-Identifier: GPL-2.0-only
"""Runs scenarios by ns-3: a list comes as JSON on standard input, a list of results goes out.

Needs the Python of an environment with ns-3 (`pip install ns3 cppyy==3.5.0`) and nothing else.
README.md says what a scenario is.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import version
from pathlib import Path
from random import Random

DISCIPLINES = ("tail", "bands", "priority-red", "mark", "colors")
CONTROLS = {"dctcp": "ns3::TcpDctcp", "newreno": "ns3::TcpNewReno", "cubic": "ns3::TcpCubic"}
RECOVERIES = {
    "classic": "ns3::TcpClassicRecovery",
    "prr": "ns3::TcpPrrRecovery",
    "plain-prr": "shoal_reference::PlainPrr",
}
BEGIN_S = 1.0
"""On ns-3's clock, when messages may begin; connections are made before."""
LIMIT_S = 1000.0
SEGMENT_BYTES = 1446
"""Of payload: with time stamps, IP and PPP they are 1,500 on the link."""


def main() -> None:
    scenarios = json.load(sys.stdin)
    answer = os.dup(1)
    os.dup2(2, 1)  # what ns-3 says is no result
    import cppyy
    from ns import ns  # noqa: F401 - loads the libraries and headers

    cppyy.cppdef(Path(__file__).with_name("network.cc").read_text(encoding="utf-8"))
    results = [run(cppyy.gbl.shoal_reference, scenario) for scenario in scenarios]
    with os.fdopen(answer, "w", encoding="utf-8") as file:
        json.dump(results, file)


def run(reference, scenario: dict) -> dict:
    settings = make_settings(reference, scenario)
    if "messages" in scenario:
        tcp = reference.Tcp()
        tcp.control = CONTROLS[scenario["control"]]
        tcp.recovery = RECOVERIES[scenario["recovery"]]
        tcp.firstWindow = scenario["first_window"]
        tcp.mostWindow = scenario["most_window"]
        tcp.segmentBytes = SEGMENT_BYTES
        tcp.minTimeout = scenario["min_timeout_s"]
        spread = scenario.get("start_spread_ns", 0)
        for number, message in enumerate(scenario["messages"]):
            source, target, packets, start_ns, *after = message
            if spread:
                start_ns += Random(1000 * scenario["seed"] + number).randrange(spread)
            tcp.Add(source, target, packets * SEGMENT_BYTES, start_ns, *(after or [-1]))
        tcp.sampleEvery = scenario.get("sample_ns", 0)
        counts = tcp.Run(settings, BEGIN_S, LIMIT_S)
        result = {"took_ns": [int(each.end) for each in tcp.messages]}
        if tcp.sampleEvery > 0:
            result["queue_packets"] = float(tcp.MeanQueue())
    else:
        cbr = reference.Cbr()
        for flow in scenario["flows"]:
            cbr.Add(*flow)
        counts = cbr.Run(settings, LIMIT_S)
        result = {
            "delivered": [int(each.delivered) for each in cbr.flows],
            "delay_ns": [int(each.delay) for each in cbr.flows],
        }
    return result | {
        "hops": int(counts.hops),
        "dropped": int(counts.deviceDrops + counts.discDrops),
        "marked": int(counts.marks),
        "lost": int(counts.lost),
        "uplinks": [int(each) for each in counts.uplinks],
        "processor_s": float(counts.processor),
        "version": f"ns-3 {version('ns3')}",
    }


def make_settings(reference, scenario: dict):
    settings = reference.Settings()
    for name, theirs in (
        ("hosts", "hosts"),
        ("leaves", "leaves"),
        ("spines", "spines"),
        ("rate", "rate"),
        ("delay_ns", "delay"),
        ("limit_packets", "limitPackets"),
        ("seed", "seed"),
    ):
        setattr(settings, theirs, scenario[name])
    settings.trunkRate = scenario.get("trunk_rate", scenario["rate"])
    settings.trunkDelay = scenario.get("trunk_delay_ns", scenario["delay_ns"])
    settings.hostLimitPackets = scenario.get("host_limit_packets", scenario["limit_packets"])
    settings.discipline = DISCIPLINES.index(scenario["discipline"])
    settings.leastPackets = scenario.get("least_packets", 0)
    settings.mostPackets = scenario.get("most_packets", 0)
    if scenario["discipline"] == "mark":
        # A packet waits in the device beside those that wait in the queue disc.
        settings.mostPackets -= 1
    settings.weight = scenario.get("average_weight", 1.0)
    settings.probability = scenario.get("probability", 1.0)
    settings.loss = scenario.get("loss", 0.0)
    settings.slowHost = scenario.get("slow_host", -1)
    settings.slowRate = scenario.get("slow_rate", 0)
    settings.isHashed = scenario.get("hashed", False)
    return settings


if __name__ == "__main__":
    main()
