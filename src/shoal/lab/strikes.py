"""The events of a lab's workers: who is killed, stopped and started when.

Owns what is due, and what has come of it. Knows processes only as what can be signalled.
"""

from __future__ import annotations

import signal
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.scenario import WorkerEvent


class Worker(Protocol):
    """A process that can be signalled."""

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, and all that it has started."""
        ...

    def poll(self) -> int | None:
        """Return its exit code, None while it runs."""
        ...


class Strikes:
    """What is still to happen to workers; `start` starts one as a rank, on a host if it is new."""

    def __init__(
        self, events: Sequence[WorkerEvent], start: Callable[[int, int | None], Worker]
    ) -> None:
        self._start = start
        self._agenda = [(event.at_s, number, event) for number, event in enumerate(events)]
        heapify(self._agenda)
        self._awake: list[tuple[float, int, Worker]] = []
        """The workers that stand still, and when they go on."""
        self.killed: list[Worker] = []
        """The workers that have been killed, whose end is no failure."""
        self.remarks: list[str] = []
        """What came to nothing, and why."""

    def happen(self, seconds: float, workers: dict[int, Worker]) -> None:
        """Let all happen that is due so many seconds after the workers have begun.

        `workers` are the latest of each rank.
        """
        while self._awake and self._awake[0][0] <= seconds:
            heappop(self._awake)[2].signal(signal.SIGCONT)
        while self._agenda and self._agenda[0][0] <= seconds:
            _, number, event = heappop(self._agenda)
            if event.what == "join":
                workers[event.rank] = self._start(event.rank, event.host)
                continue
            worker = workers[event.rank]
            if worker.poll() is not None:
                self.remarks.append(f"{event.words}: it had ended by itself")
            elif event.what == "kill":
                self.killed.append(worker)
                worker.signal(signal.SIGKILL)
            else:
                worker.signal(signal.SIGSTOP)
                heappush(self._awake, (seconds + event.lasts_s, number, worker))

    def end(self) -> None:
        """Note what has not happened: all workers have ended."""
        self.remarks += [f"{event.words}: all had ended before" for *_, event in self._agenda]
        self._agenda.clear()
