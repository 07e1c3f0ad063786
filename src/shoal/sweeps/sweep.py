"""A sweep: runs that a journal lacks are made, written down at once, and returned in order."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from shoal.decoding import decode_json
from shoal.errors import UsageError, of_code
from shoal.sweeps.on_ray import on_ray
from shoal.sweeps.processes import in_processes, in_this_process

if TYPE_CHECKING:
    from shoal.sweeps.journal import Journal
    from shoal.sweeps.keyed_run import Run
    from shoal.sweeps.making import Made

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Finished(Generic[T]):
    """What a run came to, and the seconds that it took when it was made."""

    result: T
    seconds: float


def usable_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def make_runs(
    runs: Sequence[Run],
    result: type[T],
    tell: Callable[[str, float], None],
    *,
    jobs: int = 1,
    ray: bool = False,
    journal: Journal | None = None,
) -> list[Finished[T]]:
    """Return the results, as `result`, in the order of `runs`; equal runs are made once.

    With 1 job runs are made in this process. `tell` is given what is made or has just ended, and
    the share of all that is done. The first run that fails ends the sweep with an error of the same
    kind, whose sentence names the run; what has ended before is in the journal.
    """
    if jobs < 1:
        message = f"--jobs must be at least 1, not {jobs}."
        raise UsageError(message)
    keys = [run.key for run in runs]
    results: dict[str, tuple[bytes, float]] = {}
    missing: dict[str, int] = {}
    for place, key in enumerate(keys):
        known = None if journal is None else journal.find(key)
        if known is not None:
            results[key] = known
        else:
            missing.setdefault(key, place)
    if missing:
        if journal is not None:
            journal.begin()  # where nothing can be written, nobody waits for a run to learn it
        todo = [(place, runs[place]) for place in missing.values()]
        progress = _Progress(todo, tell)
        with closing(_make(todo, jobs, progress.at, ray=ray)) as finished:
            for place, made in finished:
                run, key = runs[place], keys[place]
                if made.failure:
                    raise of_code(made.exit_code, f"{run.name}: {made.failure}")
                results[key] = made.result, made.seconds
                if journal is not None:
                    journal.add(key, run.name, made.seconds, made.result)
                progress.ended(place)
    return [_decode(*results[key], result, run) for key, run in zip(keys, runs, strict=True)]


def _make(
    todo: Sequence[tuple[int, Run]], jobs: int, tell: Callable[[int, float], None], *, ray: bool
) -> Generator[tuple[int, Made], None, None]:
    if ray:
        return on_ray(todo)
    if min(jobs, len(todo)) == 1:
        return in_this_process(todo, tell)
    return in_processes(todo, min(jobs, len(todo)), tell)


def _decode(content: bytes, seconds: float, kind: type[T], run: Run) -> Finished[T]:
    fault = f"The finished run {run.name!r} cannot be read"
    return Finished(decode_json(content, kind, fault, "keep runs elsewhere"), seconds)


class _Progress:
    """The share of all runs' weight that is done, those under way included."""

    def __init__(self, todo: Sequence[tuple[int, Run]], tell: Callable[[str, float], None]) -> None:
        self._runs = dict(todo)
        self._shares = dict.fromkeys(self._runs, 0.0)
        self._whole = sum(run.weight for run in self._runs.values())
        self._ended, self._tell = 0, tell
        first = next(iter(self._runs.values()))
        tell(f"0 of {len(todo)} runs, {first.name} begins", 0.0)

    def at(self, place: int, share: float) -> None:
        """Note how far a run is."""
        if self._shares[place] < 1:
            self._shares[place] = min(share, 0.999)
            self._say(place)

    def ended(self, place: int) -> None:
        """Note that a run has ended."""
        self._shares[place] = 1.0
        self._ended += 1
        self._say(place)

    def _say(self, place: int) -> None:
        done = sum(share * self._runs[each].weight for each, share in self._shares.items())
        words = f"{self._ended} of {len(self._runs)} runs, {self._runs[place].name}"
        self._tell(words, done / self._whole)
