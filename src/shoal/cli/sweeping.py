"""The options of commands that make many runs: which seeds, how many at a time, what is kept."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from shoal.cli.simulation_progress import SimulationProgress
from shoal.compiled import is_cold, mark_warm, sentence_of
from shoal.errors import DataError, ResourceError, UsageError
from shoal.sweeps import Finished, Journal, Run, code_version, make_runs, usable_cores

T = TypeVar("T")

_MOST_SEEDS = 10_000

SeedsOption = Annotated[
    str | None, typer.Option(help="Repeat with these seeds, such as 1-5 or 1,3,7-9.")
]
JobsOption = Annotated[int | None, typer.Option(help="Runs at a time; default: one on each core.")]
RayOption = Annotated[
    bool,
    typer.Option("--ray", help="Make the runs on a Ray cluster, not on this machine."),
]
RunsOption = Annotated[
    Path | None,
    typer.Option(
        help="Keep every finished run here; those already here are not repeated."
        " Default: a file in the cache folder."
    ),
]


def parse_seeds(given: str | None, usual: str) -> tuple[int, ...]:
    """Return the seeds of a text such as "1-5" or "1,3,7-9"; raise `UsageError` for another.

    If none is `given`, not even an empty one, the seeds are the `usual` ones.
    """
    text = usual if given is None else given
    seeds: list[int] = []
    for word in text.split(","):
        first, _, last = word.strip().partition("-")
        whole = first.isdecimal() and (last or first).isdecimal()
        low, high = (int(first), int(last or first)) if whole else (1, 0)
        if not low <= high < 2**63 or len(seeds) + high - low >= _MOST_SEEDS:
            message = f"--seeds takes numbers such as 1-5 or 1,3,7-9, not {text!r}."
            raise UsageError(message)
        seeds += range(low, high + 1)
    return tuple(dict.fromkeys(seeds))


def _cold_kinds(runs: Sequence[Run]) -> list[str]:
    """Return the kinds of simulation among the runs whose code is not compiled yet."""
    from shoal.sim import kind_of, kind_over

    kinds = set()
    for run in runs:
        given = run.arguments
        if "training" in given and "strategy" in given:
            kinds.add(kind_of(given["training"], given["strategy"]))
        elif "candidate" in given:
            kinds.add(kind_over(getattr(given["candidate"], "carrier", "")))
    return [each for each in sorted(kinds) if each and is_cold(_mark(each))]


def _compiling(kind: str) -> str:
    from shoal.sim import DURATIONS, name_of

    return sentence_of(name_of(kind), DURATIONS[kind])


def _mark(kind: str) -> str:
    return f"sim-{kind}"


@dataclass(frozen=True, slots=True)
class Sweeping:
    """How a command makes its runs."""

    jobs: int | None
    ray: bool
    runs: Path | None

    def make(self, runs: list[Run], result: type[T]) -> list[Finished[T]]:
        """Make the runs with a bar that says how long the rest will take."""
        jobs = usable_cores() if self.jobs is None else self.jobs
        cold = [] if self.ray else _cold_kinds(runs)
        told: list[str] = []
        journal = self._journal()
        with SimulationProgress() as bar:

            def tell(what: str, share: float) -> None:
                while cold and not share:  # the first run begins: not all are in the journal
                    told.append(cold.pop(0))
                    bar.say(_compiling(told[-1]))
                bar.tell(what, share)

            finished = make_runs(runs, result, tell, jobs=jobs, ray=self.ray, journal=journal)
        for kind in told:
            mark_warm(_mark(kind))
        return finished

    def _journal(self) -> Journal | None:
        """Return where runs are kept; None if the usual place cannot be had, which is said."""
        if self.runs is not None:
            return Journal(self.runs)
        from shoal.workloads import default_cache_dir

        try:
            journal = Journal(default_cache_dir() / "runs" / f"{code_version()}.jsonl")
            journal.begin()
        except (DataError, ResourceError) as error:
            sys.stderr.write(f"note: {error} None are kept; --runs names another file.\n")
            return None
        return journal
