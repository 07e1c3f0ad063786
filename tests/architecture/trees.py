"""The files that are looked at: the product, the package that measures it, its scripts."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHOAL = ROOT / "src" / "shoal"
SHOAL_BENCH = ROOT / "benchmarks" / "shoal_bench"
SCRIPTS = sorted((ROOT / "benchmarks").glob("*.py"))
FILES = sorted([*SHOAL.rglob("*.py"), *SHOAL_BENCH.rglob("*.py")])


def name_of(path: Path) -> str:
    """Return what messages call a file."""
    return str(path.relative_to(ROOT))


def by_folder(files: list[Path]) -> dict[str, list[Path]]:
    """Return the files of each folder, by its name.

    A case of its own for each of hundreds of files would take longer than what it looks at.
    """
    folders: dict[str, list[Path]] = {}
    for path in files:
        folders.setdefault(str(path.parent.relative_to(ROOT)), []).append(path)
    return folders


def nodes_of(path: Path) -> list[ast.AST]:
    """Return what `ast.walk` yields of a file, whose tree comes first."""
    return _nodes()[path]


def nodes_in(text: str) -> list[ast.AST]:
    """Return the same of a text."""
    return list(ast.walk(ast.parse(text)))


@cache
def _nodes() -> dict[Path, list[ast.AST]]:
    """Read every file, once for all tests.

    They stay, and the garbage collector is kept from them: it takes longer than the parser.
    """
    gc.disable()
    try:
        return {path: nodes_in(path.read_text()) for path in (*FILES, *SCRIPTS)}
    finally:
        gc.freeze()
        gc.enable()
