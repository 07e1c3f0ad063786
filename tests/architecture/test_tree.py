"""The habits that a machine can check: sizes, docstrings, light imports, names that resolve."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from trees import FILES, ROOT, by_folder, name_of, nodes_of

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 80
BANNED_NAMES = {"utils.py", "helpers.py", "common.py", "misc.py", "base.py"}


def docstring_of(path: Path) -> str | None:
    tree = nodes_of(path)[0]
    assert isinstance(tree, ast.Module)
    return ast.get_docstring(tree)


@pytest.mark.parametrize("files", by_folder(FILES).values(), ids=by_folder(FILES))
def test_files_open_with_their_rules_and_stay_small(files: list[Path]) -> None:
    for path in files:
        assert docstring_of(path), f"a module docstring says what {name_of(path)} owns"
        assert path.read_text().count("\n") <= MAX_FILE_LINES, name_of(path)
        assert path.name not in BANNED_NAMES, name_of(path)
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno is not None
                is_small = node.end_lineno - node.lineno < MAX_FUNCTION_LINES
                assert is_small, f"{name_of(path)}: {node.name}"


def test_test_files_have_names_of_their_own() -> None:
    """pytest takes two of one name in different folders for one module, and collects neither."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_module_docstrings_are_not_copies() -> None:
    docstrings = [docstring_of(path) for path in FILES]
    assert len(set(docstrings)) == len(docstrings)


@pytest.mark.parametrize(
    "module", ["shoal", "shoal.groups", "shoal.collectives", "shoal.control", "shoal.cli"]
)
def test_importing_loads_no_torch(module: str) -> None:
    program = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)


def test_every_public_name_resolves() -> None:
    pytest.importorskip("torch")
    import shoal

    for name in shoal.__all__:
        assert getattr(shoal, name) is not None
        assert name in dir(shoal)
    with pytest.raises(AttributeError, match="no attribute"):
        shoal.no_such_name  # noqa: B018 - the access is the test
