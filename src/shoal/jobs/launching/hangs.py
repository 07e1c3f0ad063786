"""Finds workers that hang: their processes live, and the others have gone on without them.

Owns what is asked of the control plane, in a thread, and how long a worker may take to come to
itself: one that was only stopped for a while ends by itself, or joins again.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final, final

from shoal.control import Onlooker
from shoal.decoding import decode_json
from shoal.errors import ShoalError
from shoal.watch import Snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping

HANGS_S: Final = 15.0
"""The seconds for which a worker that is lost may go on living."""
_LOOK_S: Final = 1.0
_ALIVE, _LOST = "alive", "lost"


@final
class Hangs:
    """Looks at the job to which SHOAL_JOB points in `environment`, from the first question on."""

    def __init__(self, environment: Mapping[str, str], job_key: str | None) -> None:
        self._environment, self._job_key = environment, job_key
        self._states: dict[int, str] = {}
        self._seen: dict[int, int] = {}
        """The process of each rank that the job has known to be alive, by its number."""
        self._lost_since: dict[int, tuple[int, float]] = {}
        """The process of each rank that is lost, and the moment since which it is."""
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def found(self, pids: Mapping[int, int], now: float) -> list[int]:
        """Return the ranks that hang, of those whose processes live; `pids` are their numbers."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name="shoal-hangs", daemon=True)
            self._thread.start()
        return self.judge(self._states, pids, now)

    def judge(self, states: Mapping[int, str], pids: Mapping[int, int], now: float) -> list[int]:
        """Return who hangs by what the job says of each rank."""
        found = []
        for rank, pid in pids.items():
            if states.get(rank) == _ALIVE:
                self._seen[rank] = pid
            # The process before it may be the one that is lost, and this one on its way.
            if states.get(rank) != _LOST or self._seen.get(rank) != pid:
                self._lost_since.pop(rank, None)
                continue
            whose, since = self._lost_since.setdefault(rank, (pid, now))
            if whose == pid and now - since > HANGS_S:
                found.append(rank)
                del self._seen[rank]  # it is said once
        return found

    def close(self) -> None:
        """Look no more."""
        self._closed.set()

    def _look(self) -> None:
        while not self._closed.is_set():
            self._states = {}
            with suppress(ShoalError), Onlooker(self._environment, self._job_key) as onlooker:
                while not self._closed.wait(_LOOK_S):
                    shown = decode_json(onlooker.look(), Snapshot, "That shows no job")
                    self._states = {each.rank: each.state for each in shown.workers}
            self._closed.wait(_LOOK_S)
