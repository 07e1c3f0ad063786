"""Runs PyTorch's own conformance tests with the backend "shoal", and with gloo to compare.

    python tests/conformance/run.py                               # everything
    python tests/conformance/run.py -k all_reduce -k ^test_gather # names that match one of these
    python tests/conformance/run.py --json FILE                   # keep it for table.py

Needs the packages torch and expecttest. Every test runs at the first of a backend's `Setting`s at
which torch does not skip it; so a test that needs four ranks gets four, and a test that torch
reserves for gloo by name is run as if the name were gloo. A test in which torch refuses the backend
for its name, as `reasons.py` knows, is run again without that check, and its outcome is "refused".
Exit code 1 if a test fails with shoal, or does without the check.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reasons import REFUSED

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Setting:
    """One way to run the tests: the backend's name that torch's decorators see, and the ranks."""

    gates: str
    world_size: int


SETTINGS = {
    "shoal": (
        Setting("shoal", 3),
        Setting("gloo", 3),
        Setting("mpi", 3),
        Setting("gloo", 4),
        Setting("mpi", 4),
        Setting("gloo", 8),
        Setting("mpi", 8),
    ),
    "gloo": (
        Setting("gloo", 3),
        Setting("mpi", 3),
        Setting("gloo", 4),
        Setting("mpi", 4),
        Setting("gloo", 8),
        Setting("mpi", 8),
    ),
}
"""By backend, from the most ordinary to the least."""

FINAL_SKIP = re.compile(
    r"CUDA is not|\d CUDA devices?$|CUDA allReduce|Only NCCL (supports|backend)"
    r"|NCCL (Batch )?Send|NCCL only|one of \{'nccl'\}|torchvision|github\.com|flak",
    re.IGNORECASE,
)
"""Reasons to skip a test that no setting changes."""


def run_suite(
    backend: str, setting: Setting, choice: list[str], *, opens: bool = False
) -> Iterator[dict[str, Any]]:
    """Run the tests that the regular expressions in `choice` choose; yield the outcome of each.

    With `opens`, functions of torch's that check the backend's name see the setting's.
    """
    environment = os.environ | {
        "BACKEND": backend,
        "GATES": setting.gates,
        "WORLD_SIZE": str(setting.world_size),
        "OPEN": str(int(opens)),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(HERE / "suite.py"), *choice]
    where = f"{backend}, as {setting.gates}, {setting.world_size} ranks"
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stdout is not None
        total = process.stdout.readline().strip()
        for number, line in enumerate(process.stdout, 1):
            found = json.loads(line)
            sys.stderr.write(f"{where}: {number}/{total} {found['test']}: {found['outcome']}\n")
            yield found | {"gates": setting.gates, "world_size": setting.world_size}
    if process.returncode:
        sys.exit(f"The tests ended with exit code {process.returncode}.")


def run_backend(backend: str, choice: list[str], logs: Path | None) -> dict[str, dict[str, Any]]:
    """Run the tests with one backend at its settings; return the last outcome of each by name."""
    outcomes: dict[str, dict[str, Any]] = {}
    for setting in SETTINGS[backend]:
        for found in run_suite(backend, setting, choice):
            name, log = found.pop("test"), found.pop("log")
            _keep(outcomes, name, found)
            if logs is not None and found["outcome"] == "failed":
                (logs / f"{backend}.{name}.log").write_text(log)
        choice = [f"^{name}$" for name, found in outcomes.items() if _may_run_elsewhere(found)]
        if not choice:
            break
    _run_refused(backend, outcomes, logs)
    return outcomes


def _run_refused(backend: str, outcomes: dict[str, dict[str, Any]], logs: Path | None) -> None:
    """Run those tests again in which torch refused the backend for its name, without the check."""
    for name, refused in outcomes.items():
        if refused["outcome"] != "failed" or not is_refused(refused["reason"]):
            continue
        setting = Setting(refused["gates"], refused["world_size"])
        (found,) = run_suite(backend, setting, [f"^{name}$"], opens=True)
        refused |= {"outcome": "refused", "by_method": found["outcome"]}
        if found["outcome"] != "passed":
            refused["reason"] += f"; by method: {found['reason']}"
            if logs is not None:
                (logs / f"{backend}.{name}.by_method.log").write_text(found["log"])


def is_refused(reason: str) -> bool:
    """Return whether torch, by what it says, refused the backend for its name."""
    return any(re.search(said, reason) for said in REFUSED)


def _keep(outcomes: dict[str, dict[str, Any]], name: str, found: dict[str, Any]) -> None:
    """Keep an outcome; the first skip stands unless the test runs, or is skipped for good."""
    known = outcomes.get(name)
    if known is None or found["outcome"] != "skipped" or not _may_run_elsewhere(found):
        outcomes[name] = found


def _may_run_elsewhere(found: dict[str, Any]) -> bool:
    return found["outcome"] == "skipped" and not FINAL_SKIP.search(found["reason"])


def surprises(outcomes: dict[str, dict[str, Any]]) -> list[str]:
    """Return a line for each test of shoal that fails."""
    return [
        f"{name} fails: {found['reason']}"
        for name, found in sorted(outcomes.items())
        if found["outcome"] == "failed" or found.get("by_method", "passed") != "passed"
    ]


def environment() -> dict[str, str]:
    """Return what the outcomes depend on."""
    import importlib.metadata

    return {
        "torch": importlib.metadata.version("torch"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "taken_at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-k", action="append", default=[], metavar="REGEX", help="names to run")
    parser.add_argument("--json", type=Path, help="write the outcomes to this file")
    parser.add_argument("--logs", type=Path, help="folder for what failing tests wrote")
    parser.add_argument("--backend", choices=[*SETTINGS], action="append", help="default: both")
    given = parser.parse_args()
    if given.logs is not None:
        given.logs.mkdir(parents=True, exist_ok=True)
    chosen = given.backend or [*SETTINGS]
    choice = given.k or ["^test_"]
    found = {backend: run_backend(backend, choice, given.logs) for backend in chosen}
    if not all(found.values()):
        sys.exit(f"No test's name matches {' or '.join(given.k)}.")
    if given.json is not None:
        result = {"environment": environment(), "outcomes": found}
        given.json.write_text(json.dumps(result, indent=1, sort_keys=True) + "\n")
    for backend, outcomes in found.items():
        kinds = [each["outcome"] for each in outcomes.values()]
        counts = ", ".join(
            f"{kinds.count(k)} {k}" for k in ("passed", "skipped", "refused", "failed")
        )
        print(f"{backend}: {counts}")
    unexpected = surprises(found.get("shoal", {}))
    print(*unexpected, sep="\n", end="\n" if unexpected else "")
    sys.exit(1 if unexpected else 0)


if __name__ == "__main__":
    main()
