"""Hivemind: averaging among peers that find each other, and an optimizer that waits for no one.

Two ways of using it, as its documentation shows: a `DecentralizedAverager` round after every step,
and `hivemind.Optimizer`, which accumulates gradients to a large batch and averages them in the
background. Owns the swarm's process: its start, its deadlines and its end.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, final

from shoal.errors import DeadlineExceeded, ResourceError
from shoal_bench.peers.hivemind_optimizer import STEPS_PER_EPOCH
from shoal_bench.peers.library import AbstractLibrary, Pairs, RateJob, StepJob
from shoal_bench.peers.ours import Shoal

if TYPE_CHECKING:
    from types import TracebackType

    from shoal_bench.peers.pooled import PooledLibrary
    from shoal_bench.stand import Stand

_START_S = 120.0
_ORDER_S = 120.0
_ROUNDS = 3
_WARM_UP_ROUNDS = 2
_TRAIN_S = 15.0


@final
class Hivemind(AbstractLibrary):
    """A swarm on this machine."""

    package = "hivemind"

    @property
    def title(self) -> str:
        """The library's name."""
        return "Hivemind"

    @property
    def counterpart(self) -> PooledLibrary:
        """Averaging all workers' parameters after every step."""
        return Shoal("local-sgd", interval=1)

    def step_pairs(self, stand: Stand, job: StepJob) -> Pairs:
        """Return (Shoal's, a step and an averager round's) milliseconds, taken by turns."""
        pairs, alone = [], replace(job, repeats=_ROUNDS)
        with Swarm(job.workers, job.width) as swarm:
            swarm.order(do="rounds", count=_WARM_UP_ROUNDS)
            for _ in range(job.repeats):
                by_rank = swarm.order(do="rounds", count=_ROUNDS)
                theirs = [max(step) for step in zip(*by_rank, strict=True)]
                ours = [ms for ms, _ in self.counterpart.step_pairs(stand, alone)]
                pairs.append((statistics.median(ours), statistics.median(theirs)))
        return pairs

    @property
    def name_of_rates(self) -> str:
        """The name, with how seldom it averages: other libraries do so at every step."""
        return f"{self.name} (averages every {STEPS_PER_EPOCH} steps)"

    def rates(self, _stand: Stand, job: RateJob) -> list[float]:
        """Return every worker's micro-batches per second under `hivemind.Optimizer`.

        Takes as long as several global batches need, even if the job asks for less. Raises
        `ResourceError` if the swarm has not averaged in that time.
        """
        with Swarm(job.workers, job.width) as swarm:
            by_rank: list[tuple[float, int]] = swarm.order(
                do="train",
                seconds=max(job.seconds, _TRAIN_S),
                compute_s=job.compute_s,
                batches_per_epoch=STEPS_PER_EPOCH * job.workers,
            )
        if not any(epochs for _, epochs in by_rank):
            raise ResourceError("Hivemind's swarm has not averaged once in its time.")
        return [rate for rate, _ in by_rank]


class Swarm:
    """The program `hivemind_swarm` with its descendants. A context manager: leaving it ends all."""

    def __init__(self, workers: int, width: int) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="shoal-")
        self._log = Path(self._directory.name) / "log"
        program = [sys.executable, "-m", "shoal_bench.peers.hivemind_swarm"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*program, str(workers), str(width), self._directory.name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C comes to us alone; one signal ends all of them
            )

    @property
    def session(self) -> int:
        """Id of the session that holds the program and all its descendants."""
        return self._process.pid

    def __enter__(self) -> Self:
        try:
            self._answer(_START_S)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def order(self, **order: Any) -> Any:
        """Have every peer carry out `order`; return their answers by rank.

        Raises `ResourceError` if the swarm dies, `DeadlineExceeded` if it does not answer.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        return self._answer(_ORDER_S + order.get("seconds", 0.0))

    def _answer(self, seconds: float) -> Any:
        stdout = self._process.stdout
        assert stdout is not None
        ready, _, _ = select.select([stdout], [], [], seconds)
        if not ready:
            message = f"Hivemind's swarm did not answer within {seconds:g} s."
            raise DeadlineExceeded(message)
        line = stdout.readline()
        if not line:
            message = f"Hivemind's swarm ended: {self._last_words()}"
            raise ResourceError(message)
        return json.loads(line)

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it left no message."

    def close(self) -> None:
        """End the program and all it has started, and remove what they leave behind."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._directory.cleanup()
