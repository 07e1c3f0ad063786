"""The files that are looked at: the product, the package that measures it, its scripts."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
SHOAL = ROOT / "src" / "shoal"
SHOAL_BENCH = ROOT / "benchmarks" / "shoal_bench"
SCRIPTS = sorted((ROOT / "benchmarks").glob("*.py"))
FILES = sorted([*SHOAL.rglob("*.py"), *SHOAL_BENCH.rglob("*.py")])


def names(files: list[Path]) -> list[str]:
    """Return what tests of `files` are called by."""
    return [str(path.relative_to(ROOT)) for path in files]
