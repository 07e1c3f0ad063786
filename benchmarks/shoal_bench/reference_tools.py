"""Runs other simulators, each in a process of its own: ns-3 and SimGrid by the scripts in `tools/`.

Those scripts have the licences of what they are for, and are no part of the package: they are there
where Shoal's repository is. What goes in and comes out is JSON.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shoal.errors import ResourceError

if TYPE_CHECKING:
    from collections.abc import Sequence

TOOLS: Final = Path(__file__).parents[2] / "tools"
NS3: Final = TOOLS / "ns3" / "run.py"
SIMGRID: Final = TOOLS / "simgrid" / "run.py"
_SIMGRID_HEADER: Final = "simgrid/s4u.hpp"


def run_ns3(python: Path, scenarios: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what ns-3 makes of `scenarios` (`reference_networks`); `python` has it installed.

    Raises `ResourceError` if it fails.
    """
    return _run([str(python), str(NS3)], scenarios)


def run_simgrid(scenarios: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what SimGrid makes of `scenarios` (`reference_flows`); raise `ResourceError`."""
    return _run([sys.executable, str(SIMGRID)], scenarios)


def missing_for_simgrid() -> str:
    """Return what SimGrid cannot be run without and is not here; an empty string if nothing is."""
    if not SIMGRID.exists():
        return "tools/simgrid of Shoal's repository"
    compiler = shutil.which("g++")
    if compiler is None:
        return "g++"
    asked = [compiler, "-x", "c++", "-std=c++17", "-M", "-include", _SIMGRID_HEADER, "-"]
    found = subprocess.run(asked, input="", capture_output=True, text=True, check=False)
    return "" if found.returncode == 0 else "SimGrid's headers (Debian: libsimgrid-dev)"


def _run(command: list[str], scenarios: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    try:
        done = subprocess.run(
            command, input=json.dumps(scenarios), capture_output=True, text=True, check=False
        )
    except OSError as error:
        message = f"{command[0]} cannot be run: {error}."
        raise ResourceError(message) from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        message = f"{' '.join(command)} ended with {done.returncode}: {last}"
        raise ResourceError(message)
    results: list[dict[str, Any]] = json.loads(done.stdout)
    return results
