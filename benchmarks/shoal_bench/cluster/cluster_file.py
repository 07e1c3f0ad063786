"""The suite's result file: every job's outcome as soon as it exists, and the rows made of them.

Owns reading and what is still to be done, so that an interrupted suite goes on with the job it was
at. It is also a `BenchFile`: tools that read rows need not know about jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from shoal.jobs import read_json
from shoal_bench.bench_file import BenchFile
from shoal_bench.cluster.outcome import Outcome
from shoal_bench.cluster.trials.figures import Trial

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.jobs import Environment
    from shoal_bench.cluster.outcome import Key


class ClusterFile(BenchFile, frozen=True, kw_only=True):
    """What the suite leaves behind; `skipped` has a sentence for each job that came to nothing."""

    outcomes: list[Outcome] = msgspec.field(default_factory=list)
    trials: list[Trial] = msgspec.field(default_factory=list)

    def find(self, key: Key) -> Outcome | None:
        """Return a job's outcome that is there already."""
        return next((outcome for outcome in self.outcomes if outcome.key == key), None)

    def with_result(self, environment: Environment, result: Outcome | Trial) -> ClusterFile:
        """Return this file with `result`, in place of an older one of the same key.

        It says which processor it is of, since jobs of one file may run on several machines.
        """
        result = msgspec.structs.replace(result, processor=environment.processor)
        name = "trials" if isinstance(result, Trial) else "outcomes"
        others = [each for each in getattr(self, name) if each.key != result.key]
        changes = {"environment": environment, name: [*others, result]}
        return msgspec.structs.replace(self, **changes)


def read_cluster_file(path: Path) -> ClusterFile:
    """Read a result file. Raises `DataError` when it is absent, truncated or of another kind."""
    return read_json(path, ClusterFile, "a file of `shoal bench cluster`", "choose another name")
