"""A benchmark's result file: the environment and the rows, grown section by section.

Owns reading, merging and writing. Rows of a section that is measured again replace its old ones, so
a long suite can be interrupted, resumed and repaired in pieces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from shoal.cli import require_writable
from shoal.jobs import Environment, describe_environment, indented_json, read_json, write_whole
from shoal_bench.rows import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


F = TypeVar("F", bound="BenchFile")


class BenchFile(msgspec.Struct, frozen=True, kw_only=True):
    """What a benchmark leaves behind."""

    environment: Environment
    """The environment in which the latest section was measured."""

    rows: list[Row] = []
    skipped: list[str] = []
    """One sentence for each thing that could not be measured, beginning with its section's name."""

    def sections(self) -> set[str]:
        """Return the names of the sections that have rows."""
        return {row.bench for row in self.rows}

    def merged(
        self, environment: Environment, section: str, rows: Sequence[Row], skipped: Sequence[str]
    ) -> BenchFile:
        """Return this file with what `section` has just measured in place of its old results."""
        begin = f"{section}: "
        return BenchFile(
            environment=environment,
            rows=[row for row in self.rows if row.bench != section] + list(rows),
            skipped=[text for text in self.skipped if not text.startswith(begin)]
            + [begin + text for text in skipped],
        )


def open_file(path: Path | None, kind: type[F], read: Callable[[Path], F]) -> F:
    """Return what `path` holds already, or an empty file; make sure it can be written."""
    require_writable(path)
    if path is not None and path.exists():
        return read(path)
    return kind(environment=describe_environment())


def read_bench_file(path: Path) -> BenchFile:
    """Read a result file. Raises `DataError` when it is absent, truncated or of another kind."""
    return read_json(path, BenchFile, "a file of `shoal bench`", "choose another name")


def write_bench_file(path: Path, file: BenchFile) -> None:
    """Write `file` as indented JSON; `ResourceError` if that cannot be."""
    write_whole(path, indented_json(file))
