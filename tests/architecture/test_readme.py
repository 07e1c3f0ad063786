"""The README states no figure that a result file does not."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.jobs.result import read_results
from shoal.report.picture import make_picture
from shoal.report.reported_scenario import group_scenarios

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[2]


def test_readme_figures_are_those_of_the_result_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The script says which page is not, and exits: here, where what it imports is there."""
    script = ROOT / "benchmarks" / "update_readme.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--check"])
    monkeypatch.syspath_prepend(str(script.parent))
    runpy.run_path(str(script), run_name="__main__")


def test_the_picture_is_that_of_the_result_file() -> None:
    results = read_results(ROOT / "benchmarks" / "results" / "demo.json")
    drawn = make_picture(group_scenarios([results]))
    assert (ROOT / "docs" / "demo.svg").read_text(encoding="utf-8") == drawn


def test_the_papers_pictures_are_those_of_the_result_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = ROOT / "benchmarks" / "redraw.py"
    drawings = runpy.run_path(str(script))["DRAWINGS"]
    for name, draw in drawings.items():
        path = ROOT / "docs" / f"reproduce-{name}.svg"
        assert path.read_text(encoding="utf-8") == draw(), f"python benchmarks/redraw.py: {name}"


def test_files_that_the_readme_links_to_exist() -> None:
    text = (ROOT / "README.md").read_text()
    links = {part.split(")")[0].split("#")[0] for part in text.split("](")[1:]}
    local = {link for link in links if not link.startswith("http")}
    missing = sorted(link for link in local if not (ROOT / link).exists())
    assert not missing
