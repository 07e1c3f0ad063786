"""Logs slow workers and links while training goes on, now and then, and only new remarks."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.watch import Verdict

INTERVAL_S: Final = 30.0
"""The time between two looks: each asks the control plane, and nobody reads faster."""

_Subject: TypeAlias = "tuple[str, int | None, int | None]"

_log = logging.getLogger(__name__)


class RemarkLog:
    """The remarks logged about a training's slow workers and links."""

    def __init__(self, name: str, remarks: Callable[[], tuple[Verdict, ...]]) -> None:
        self._name, self.ask = name, remarks
        self._look_at = time.monotonic() + INTERVAL_S
        self._said: set[_Subject] = set()

    def look(self) -> None:
        """Log the remarks that are new since the last look, if it is time for a look."""
        if time.monotonic() >= self._look_at and _log.isEnabledFor(logging.INFO):
            self._look_at = time.monotonic() + INTERVAL_S
            self._say(known=self._said)

    def close(self) -> None:
        """Log all remarks at the end of the training."""
        if _log.isEnabledFor(logging.INFO):
            self._say(known=set())

    def _say(self, known: set[_Subject]) -> None:
        found = {(remark.kind, remark.rank, remark.to): remark for remark in self.ask()}
        for key, remark in found.items():
            if key not in known:
                _log.info("%s: %s", self._name, remark.sentence)
        self._said = set(found)
