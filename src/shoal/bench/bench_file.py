"""A benchmark's result file: the environment and the rows, grown section by section.

Owns reading, merging and writing. Rows of a section that is measured again replace its old ones, so
a long suite can be interrupted, resumed and repaired in pieces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from shoal.bench.rows import Row
from shoal.errors import DataError, ResourceError
from shoal.jobs.result import Environment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class BenchFile(msgspec.Struct, frozen=True, kw_only=True):
    """What a benchmark leaves behind."""

    environment: Environment
    """Where the latest section was measured."""

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


def read_bench_file(path: Path) -> BenchFile:
    """Read a result file. Raises `DataError` when it is absent, truncated or of another kind."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=BenchFile)
    except OSError as error:
        message = f"Cannot read {path}: {error.strerror}."
        raise DataError(message) from error
    except msgspec.DecodeError as error:
        message = f"{path} is not a file of `shoal bench sync` ({error}); choose another name."
        raise DataError(message) from error


def write_bench_file(path: Path, file: BenchFile) -> None:
    """Write `file` as indented JSON, whole or not at all; `ResourceError` if that cannot be."""
    draft = path.with_name(f"{path.name}.part")
    try:
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(file), indent=1) + b"\n")
        draft.replace(path)
    except OSError as error:
        message = f"Cannot write {path}: {error.strerror}."
        raise ResourceError(message) from error
