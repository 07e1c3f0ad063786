"""A store of small facts whose waits end early when the job has failed meanwhile.

Owns how a worker waits for what another one is to publish. Knows neither what is published nor what
has failed. torch's own wait hears of nothing else, and logs a warning when it is late.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from torch.distributed import Store  # type: ignore[attr-defined]  # torch's own omission

_FIRST_PAUSE_S = 0.002
_LONGEST_PAUSE_S = 0.1


class WatchedStore:
    """`runtime.job_card.CardStore` over a torch store. `check` raises when waiting is in vain."""

    def __init__(self, store: Store, check: Callable[[], None]) -> None:
        self._store = store
        self._check = check

    def set(self, key: str, value: bytes) -> None:
        """Keep `value` under `key`."""
        self._store.set(key, value)  # type: ignore[arg-type]  # torch declares str, takes bytes

    def get(self, key: str) -> bytes:
        """Return what is under `key`; `wait` for it first."""
        return self._store.get(key)

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        """Return once all `keys` are there. Raises `TimeoutError`, and what `check` raises."""
        end = time.monotonic() + timeout.total_seconds()
        pause_s = _FIRST_PAUSE_S
        while not self._store.check(keys):
            self._check()
            if time.monotonic() > end:
                raise TimeoutError
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
