"""What a section of the benchmark measures with: counts, worker processes, data and progress.

Owns the worker processes between sections: the next section that wants as many takes them over.
Knows no section and prints nothing.
"""

from __future__ import annotations

import multiprocessing
from typing import TYPE_CHECKING, Self, TypeVar

from shoal.errors import DataError
from shoal.workloads import load_dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from shoal.jobs import WorkerPool
    from shoal.workloads import Dataset
    from shoal_bench.rows import Row

Count = TypeVar("Count", int, float)
T = TypeVar("T")


class Stand:
    """A context manager: leaving it ends every process.

    `on_progress` is told what is being measured and the share of the section that is done, 0 to 1;
    `on_rows` is given the rows of a long section when there are more of them;
    `data_directory` is where data sets are cached, None for the default place; `ns3` is the Python
    of an environment with ns-3, None if there is none.
    """

    def __init__(
        self,
        *,
        quick: bool,
        on_progress: Callable[[str, float], None] = lambda _text, _share: None,
        on_rows: Callable[[Sequence[Row]], None] = lambda _rows: None,
        data_directory: Path | None = None,
        ns3: Path | None = None,
    ) -> None:
        self.quick = quick
        self.ns3 = ns3
        self.skipped: list[str] = []
        """Sentences on what could not be measured."""
        self._on_progress, self._on_rows = on_progress, on_rows
        self.data_directory = data_directory
        self._pool: WorkerPool | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self.close_pool()

    def choose(self, *, full: Count, quick: Count) -> Count:
        """Return how many, or how long, by what the user asked for."""
        return quick if self.quick else full

    def note(self, text: str, done: int, total: int) -> None:
        """Tell the user that part `done` + 1 of `total` begins."""
        self._on_progress(text, done / total)

    def each(self, parts: Mapping[str, T]) -> Iterator[tuple[str, T]]:
        """Yield the parts of a section with their names, and tell the user which one begins."""
        for done, (name, part) in enumerate(parts.items()):
            self.note(name, done, len(parts))
            yield name, part

    def keep(self, rows: Sequence[Row]) -> None:
        """Hand over the section's rows so far, in case it is interrupted."""
        self._on_rows(rows)

    def skip(self, text: str) -> None:
        """Record in one sentence what cannot be measured here, and why."""
        self.skipped.append(text)

    def pool(self, workers: int) -> WorkerPool:
        """Return started worker processes, those of the section before if there are as many."""
        if self._pool is not None and self._pool.settings.workers == workers:
            return self._pool
        self.close_pool()
        from shoal.jobs import (
            WorkerPool,  # brings torch, which sections without workers measure too
        )

        cache = None if self.data_directory is None else str(self.data_directory)
        self._pool = WorkerPool(workers, cache_directory=cache)
        self._pool.start()
        return self._pool

    def close_pool(self) -> None:
        """End the worker processes; needed after one of them has failed."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def dataset(self, *names: str) -> Dataset:
        """Return the first data set of `names` that can be had; the last must be."""
        for name in names[:-1]:
            try:
                return load_dataset(name, self.data_directory)
            except DataError as error:
                self._on_progress(f"{name} is not to be had ({error})", 0.0)
        return load_dataset(names[-1], self.data_directory)


def apart(work: Callable[..., T], *arguments: object) -> T:
    """Return what `work` finds in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments)
