"""The README states no figure that a result file does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from shoal.jobs.result import read_results
from shoal.report.picture import make_picture
from shoal.report.reported_scenario import group_scenarios

ROOT = Path(__file__).parents[2]


def test_readme_figures_are_those_of_the_result_file() -> None:
    script = ROOT / "benchmarks" / "update_readme.py"
    done = subprocess.run(
        [sys.executable, script, "--check"], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_picture_is_that_of_the_result_file() -> None:
    results = read_results(ROOT / "benchmarks" / "results" / "demo.json")
    drawn = make_picture(group_scenarios([results]))
    assert (ROOT / "docs" / "demo.svg").read_text(encoding="utf-8") == drawn


def test_files_that_the_readme_links_to_exist() -> None:
    text = (ROOT / "README.md").read_text()
    links = {part.split(")")[0].split("#")[0] for part in text.split("](")[1:]}
    local = {link for link in links if not link.startswith("http")}
    missing = sorted(link for link in local if not (ROOT / link).exists())
    assert not missing
