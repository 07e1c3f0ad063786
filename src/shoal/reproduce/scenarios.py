"""The papers' scenarios as this package has them in TOML, whole or in parts."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

from shoal.scenario.spec_file import parse_scenario

if TYPE_CHECKING:
    from shoal.scenario.training_spec import Scenario


def scenario_text(*names: str) -> str:
    """Return the files of these names one after another: a cluster's, a job's, strategies'."""
    folder = resources.files("shoal.reproduce")
    return "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names)


def read_parts(*names: str) -> Scenario:
    """Return the scenario that the files of these names make together."""
    return parse_scenario(scenario_text(*names), " + ".join(names))
