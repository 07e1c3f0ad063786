"""Commands of whose output nobody reads the rest, as under `head`: they end without a word."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from report_samples import ENVIRONMENT, make_run
from scenario_texts import SMALL

from shoal.jobs.result import ResultFile, write_results
from thoroughness import seldom

pytestmark = pytest.mark.timeout(300)
"""The first run of a kernel compiles it."""


@pytest.mark.parametrize(
    "arguments",
    seldom(
        [
            ["version"],
            ["--help"],
            ["schedule", "ds-sync"],
            ["simulate", "job.toml", "--json", "made"],
            ["report", "run.json", "-o", "made"],
        ],
        often=[
            ["--help"],
            ["schedule", "ds-sync"],
            ["report", "run.json", "-o", "made"],
        ],
    ),
    ids=lambda arguments: arguments[0],
)
@pytest.mark.parametrize("unbuffered", seldom(["", "1"], often=[""]), ids=["at the end", "at once"])
def test_output_that_nobody_reads_ends_a_command_quietly(
    arguments: list[str], unbuffered: str, tmp_path: Path
) -> None:
    (tmp_path / "job.toml").write_text(SMALL)
    run = make_run("ripples", duration_ms=300)
    write_results(tmp_path / "run.json", ResultFile(environment=ENVIRONMENT, runs=[run]))
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        [sys.executable, "-m", "shoal.cli", *arguments],
        stdout=writing,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        timeout=250,
        check=False,
    )
    os.close(writing)
    assert ended.returncode == 128 + signal.SIGPIPE
    assert b"Traceback" not in ended.stderr
    assert b"Exception" not in ended.stderr
    assert (tmp_path / "made").exists() == ("made" in arguments)


def test_no_output_at_all_is_no_error() -> None:
    for closed in (">&-", "<&- >&-"):
        command = ["sh", "-c", f"{sys.executable} -m shoal.cli version {closed}"]
        ended = subprocess.run(command, stderr=subprocess.PIPE, timeout=50, check=False)
        assert (ended.returncode, ended.stderr) == (0, b"")
