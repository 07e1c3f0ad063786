# SPDX-License-Identifier: LGPL-2.1-only
"""Runs flows over a star by SimGrid; scenarios come as JSON on standard input, results go out.

A scenario is {"hosts", "rate" (bits/s), "delay_ns" (of a link), "flows": [[start_ns, source,
target, bytes], ...]}, a result {"ends_s", "processor_s", "version"}. The model is CM02 without
cross-traffic and TCP-gamma, precisions as fine as they go: plain max-min. Needs g++ and SimGrid's
headers (Debian: libsimgrid-dev), nothing of Python beyond its library.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

MODEL = (
    "--cfg=network/model:CM02",
    "--cfg=network/crosstraffic:0",
    "--cfg=network/TCP-gamma:1e12",
    "--cfg=surf/precision:1e-12",
    "--cfg=maxmin/precision:1e-9",
    "--log=root.thres:error",
)


def main() -> None:
    scenarios = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory) / "star"
        source = Path(__file__).with_name("star.cpp")
        build = ["g++", "-O2", "-std=c++17", str(source), "-o", str(program), "-lsimgrid"]
        subprocess.run(build, check=True)
        json.dump([run(program, scenario) for scenario in scenarios], sys.stdout)


def run(program: Path, scenario: dict) -> dict:
    flows = sorted(scenario["flows"])
    assert flows == scenario["flows"], "flows come by the time of their beginning"
    lines = [
        f"{scenario['hosts']} {scenario['rate'] / 8} {scenario['delay_ns'] / 1e9} {len(flows)}"
    ]
    lines += [f"{at / 1e9!r} {source} {target} {size}" for at, source, target, size in flows]
    done = subprocess.run(
        [str(program), *MODEL], input="\n".join(lines), capture_output=True, text=True, check=True
    )
    processor_s, *ends_s = [float(line) for line in done.stdout.split()]
    return {"ends_s": ends_s, "processor_s": processor_s, "version": version(program)}


def version(program: Path) -> str:
    said = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=False)
    words = said.stdout.split()
    return " ".join(words[words.index("SimGrid") : words.index("version") + 2])


if __name__ == "__main__":
    main()
