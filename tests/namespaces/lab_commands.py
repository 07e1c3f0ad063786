"""The commands of `shoal lab`, run as a user does or forked, and small labs for them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "processes"))

from forked_process import ForkedProcess, run_command

STAR = 'hosts.count = {hosts}\naccess = {{ rate = "1 Gbit/s" }}\n'
DEADLINE_S = 20.0
SHOAL_LAB = (sys.executable, "-m", "shoal.cli", "lab")
_ENDS_S = 180.0


def shoal_lab(*arguments: str, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run the command in an interpreter of its own behind `prefix`; without one, forked."""
    if prefix:
        return subprocess.run(
            [*prefix, *SHOAL_LAB, *arguments],
            capture_output=True,
            text=True,
            timeout=_ENDS_S,
            check=False,
        )
    return forked(run_command, ["lab", *arguments])


def forked(
    function: Callable[[list[str]], None], words: list[str]
) -> subprocess.CompletedProcess[str]:
    """Have a process of its own, forked where torch is loaded, be the command of these words."""
    process = ForkedProcess(os.environ, function, words)
    try:
        written = process.communicate(timeout=_ENDS_S)
    finally:
        process.kill()
    assert process.returncode is not None
    return subprocess.CompletedProcess(words, process.returncode, *written)
