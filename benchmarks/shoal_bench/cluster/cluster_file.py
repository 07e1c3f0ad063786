"""The suite's result file: every job's outcome as soon as it exists, and the rows made of them.

Owns reading, writing and what is still to be done, so that an interrupted suite goes on with the
job it was at. It is also a `BenchFile`: tools that read rows need not know about jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from shoal.jobs.files import indented_json, read_json, write_whole
from shoal.jobs.result import Environment
from shoal_bench.cluster.outcome import Outcome
from shoal_bench.cluster.trials.figures import Trial
from shoal_bench.rows import Row

if TYPE_CHECKING:
    from pathlib import Path

    from shoal_bench.cluster.outcome import Key


class ClusterFile(msgspec.Struct, frozen=True, kw_only=True):
    """What the suite leaves behind."""

    environment: Environment
    """The environment in which the latest job ran."""

    rows: list[Row] = []
    skipped: list[str] = []
    """One sentence for each contender that could not be tried."""

    outcomes: list[Outcome] = []
    trials: list[Trial] = []

    def find(self, key: Key) -> Outcome | None:
        """Return a job's outcome that is there already."""
        return next((outcome for outcome in self.outcomes if outcome.key == key), None)

    def with_outcome(self, environment: Environment, outcome: Outcome) -> ClusterFile:
        """Return this file with `outcome`, in place of an older one of the same job.

        It says which processor it is of, since jobs of one file may run on several machines.
        """
        outcome = msgspec.structs.replace(outcome, processor=environment.processor)
        others = [each for each in self.outcomes if each.key != outcome.key]
        return msgspec.structs.replace(self, environment=environment, outcomes=[*others, outcome])

    def with_trial(self, environment: Environment, trial: Trial) -> ClusterFile:
        """Return this file with `trial`, in place of an older one of the same key."""
        trial = msgspec.structs.replace(trial, processor=environment.processor)
        others = [each for each in self.trials if each.key != trial.key]
        return msgspec.structs.replace(self, environment=environment, trials=[*others, trial])


def read_cluster_file(path: Path) -> ClusterFile:
    """Read a result file. Raises `DataError` when it is absent, truncated or of another kind."""
    return read_json(path, ClusterFile, "a file of `shoal bench cluster`", "choose another name")


def write_cluster_file(path: Path, file: ClusterFile) -> None:
    """Write `file` as indented JSON; `ResourceError` if that cannot be."""
    write_whole(path, indented_json(file))
