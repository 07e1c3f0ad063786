"""What an extra is missing for says so in one sentence, and what needs none goes on without."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from thoroughness import seldom

WITHOUT = """\
import sys
for name in sys.argv.pop(1).split(","):
    sys.modules[name] = None
from shoal.cli import main
main()
"""
EXAMPLES = Path(__file__).parents[2] / "src" / "shoal" / "scenario" / "examples"


def shoal(folder: Path, without: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT, without, *arguments],
        cwd=folder,
        env=os.environ | {"COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


@pytest.mark.parametrize(
    "command",
    seldom(
        [
            *("train", "demo", "profile-loss --quick"),
            *("bench sync", "bench cluster --quick", "plan {plan}"),
        ],
        often=["train", "plan {plan}"],
    ),
)
def test_without_torch_a_command_says_what_it_needs(tmp_path: Path, command: str) -> None:
    words = command.format(plan=EXAMPLES / "slow-worker.toml").split()
    found = shoal(tmp_path, "torch", *words)
    assert found.returncode == 2
    assert found.stdout == ""
    (line,) = found.stderr.splitlines()
    assert line.startswith("error: This command needs torch: pip install ")


@pytest.mark.parametrize(
    "command",
    seldom(
        ["--version", "--help", "train --help", "schedule ripples-static --workers 8"],
        often=["schedule ripples-static --workers 8"],
    ),
)
def test_what_needs_no_torch_goes_on_without(tmp_path: Path, command: str) -> None:
    found = shoal(tmp_path, "torch", *command.split())
    assert (found.returncode, found.stderr) == (0, "")


def test_python_m_shoal_is_shoal(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "shoal", "--version"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True)
    assert found.stdout.startswith("shoal ")
