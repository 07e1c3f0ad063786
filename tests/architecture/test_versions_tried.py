"""What `make test-versions` tries is what pyproject.toml claims."""

from __future__ import annotations

import runpy
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TOOL = runpy.run_path(str(ROOT / "tools" / "test_versions.py"))


def test_every_python_that_is_claimed_is_tried() -> None:
    prefix = "Programming Language :: Python :: "
    named = [each.removeprefix(prefix) for each in PROJECT["classifiers"] if prefix in each]
    claimed = [each for each in named if each != "3 :: Only"]
    assert sorted({pair.python for pair in TOOL["matrix"]()}) == claimed
    assert PROJECT["requires-python"] == f">={claimed[0]}"


def test_the_least_torch_is_tried_and_the_pinned_one_with_every_python() -> None:
    pairs = [(pair.python, pair.requirement) for pair in TOOL["matrix"]()]
    (least,) = PROJECT["optional-dependencies"]["torch"]
    assert (TOOL["PYTHONS"][0], least.replace(">=", "==") + ".*") in pairs
    pinned = f"torch=={TOOL['pinned_torch']()}"
    assert all((python, pinned) in pairs for python in TOOL["PYTHONS"])


def test_the_forge_tries_pairs_of_the_matrix() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    rows = workflow["jobs"]["versions"]["strategy"]["matrix"]["include"]
    known = {(pair.python, pair.requirement.removeprefix("torch==")) for pair in TOOL["matrix"]()}
    for row in rows:
        assert any(
            python == row["python"] and least.startswith(row["torch"]) for python, least in known
        ), row
    assert {row["python"] for row in rows} == {python for python, _ in known}


def test_its_tests_exist() -> None:
    assert all((ROOT / each).exists() for each in TOOL["TESTS"])
