"""A thread that blocks on behalf of another one, which can then be told to go on without it.

Owns the hand-over of a job. Knows nothing of torch. Needed because some waits inside libraries
cannot be interrupted.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import TypeAlias

Job: TypeAlias = Callable[[], None]
"""What to run. It must not raise."""


class HelperThread:
    """Runs one job at a time; ends with this object, or with its last job, or with the process."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        Thread(target=_work, args=(self._jobs,), name=name, daemon=True).start()

    def start(self, job: Job) -> None:
        """Run `job` in the thread, after those already there."""
        self._jobs.put(job)

    def __del__(self) -> None:
        self._jobs.put(None)


def _work(jobs: SimpleQueue[Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # a job may hold tensors, and the next one may be long in coming
