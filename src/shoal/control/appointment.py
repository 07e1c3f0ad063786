"""The worker that stands by for the control plane: asked, ready, or lost, and asked again.

Owns the choice of one worker at a time, on another host if there is one. Knows no connection and no
clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.membership import who_stands_by

if TYPE_CHECKING:
    from collections.abc import Collection

    from shoal.membership import View


class Appointment:
    """The standby of rank `keeper`, whose control plane runs on host `host`."""

    def __init__(self, keeper: int, host: int) -> None:
        self.keeper, self._host = keeper, host
        self._asked: int | None = None
        self._unfit: set[int] = set()
        self.endpoint = ""
        """The address at which a control plane stands by; empty as long as none does."""

    def ask(self, view: View, living: Collection[int]) -> int | None:
        """Return the worker to ask to stand by, if none does or has been asked."""
        if self.endpoint or self._asked is not None:
            return None
        willing = set(living) - self._unfit
        self._asked = who_stands_by(view, self.keeper, self._host, willing)
        return self._asked

    def stands(self, rank: int, endpoint: str) -> bool:
        """Take note of the asked worker's answer; return whether it stands by."""
        if rank != self._asked:
            return False
        self._asked, self.endpoint = None, endpoint
        if not endpoint:
            self._unfit.add(rank)
        return bool(endpoint)

    def gone(self, rank: int) -> None:
        """Take note that `rank` is gone: if it was asked, it does not answer any more."""
        self._unfit.discard(rank)  # another process may come as this rank
        if rank == self._asked:
            self._asked = None

    def lost(self, endpoint: str) -> None:
        """Take note that no control plane stands by at `endpoint` any more."""
        if endpoint == self.endpoint:
            self.endpoint = ""
