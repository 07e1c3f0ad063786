"""What goes with a release says the same everywhere, and the files of a forge can be read."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import shoal

ROOT = Path(__file__).parents[2]
FORMS = sorted((ROOT / ".github").rglob("*.yml"))


def test_the_version_is_the_same_everywhere() -> None:
    version = shoal.__version__
    bench = tomllib.loads((ROOT / "benchmarks" / "pyproject.toml").read_text())["project"]
    assert bench["version"] == version
    assert bench["dependencies"] == [f"shoal=={version}"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == version


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_what_a_forge_reads_is_yaml_and_calls_targets_that_exist(path: Path) -> None:
    text = path.read_text()
    assert yaml.safe_load(text)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in re.findall(r"run: make (.*)$", text, re.MULTILINE):
        called = set(re.sub(r" [A-Z]+=.*", "", line).split())
        assert called <= targets, line


def test_the_newest_changes_fit_on_a_screen() -> None:
    newest = (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1]
    assert len(newest.splitlines()) <= 50


def test_the_readme_is_a_page() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120
