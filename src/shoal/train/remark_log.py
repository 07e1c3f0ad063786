"""Logs who is slow while training goes on, now and then, and only what is new."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.watch import Verdict

INTERVAL_S: Final = 30.0
"""The time between two looks; Ripples asks the group generator at each, and nobody reads faster."""

_Subject: TypeAlias = "tuple[str, int | None, int | None]"

_log = logging.getLogger(__name__)


class RemarkLog:
    """What has been said of a training's slow workers and ways."""

    def __init__(self, name: str, remarks: Callable[[], tuple[Verdict, ...]]) -> None:
        self._name, self.ask = name, remarks
        self._look_at = time.monotonic() + INTERVAL_S
        self._said: set[_Subject] = set()

    def look(self) -> None:
        """Say what is remarkable and was not at the last look, if it is time for a look."""
        if time.monotonic() >= self._look_at and _log.isEnabledFor(logging.INFO):
            self._look_at = time.monotonic() + INTERVAL_S
            self._say(known=self._said)

    def close(self) -> None:
        """Say all that is remarkable at the end of the training."""
        if _log.isEnabledFor(logging.INFO):
            self._say(known=set())

    def _say(self, known: set[_Subject]) -> None:
        found = {(remark.kind, remark.rank, remark.to): remark for remark in self.ask()}
        for key, remark in found.items():
            if key not in known:
                _log.info("%s: %s", self._name, remark.sentence)
        self._said = set(found)
