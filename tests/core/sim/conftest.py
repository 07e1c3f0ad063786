"""The switch's slow descriptions serve here too; kernels are compiled before time is taken."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "switching"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let a test's time limit be generous, and not count its fixtures: one of them compiles."""
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300, func_only=True))


@pytest.fixture(scope="session", autouse=True)
def compiled_kernels() -> None:
    """Run the compiled entry points once."""
    from kernels import compile_kernels

    compile_kernels()
