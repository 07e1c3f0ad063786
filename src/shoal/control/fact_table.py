"""Small facts that workers publish for each other, as the control plane keeps them.

Owns the values and their limit. Knows neither their meaning nor the workers that ask.
"""

from __future__ import annotations

from typing import Final

from shoal.control.messages import (
    Done,
    FactRequest,
    Facts,
    ReadFacts,
    RefusalKind,
    Reply,
    SetFact,
)
from shoal.control.refusal import Refusal

MAX_BYTES: Final = 1 << 30
"""The most bytes of names and values that are kept; more are a leak in the caller."""


class FactTable:
    """The facts that have been published in one job."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._num_bytes = 0

    def act(self, message: FactRequest) -> Reply:
        """Carry out `message`; raise `Refusal` if there is no room."""
        match message:
            case SetFact(name, value):
                self._set(name, value)
                return Done()
            case ReadFacts(names):
                return Facts(tuple(self._values.get(name) for name in names))

    def _set(self, name: str, value: bytes | None) -> None:
        """Keep `value` in place of an earlier one; None removes it."""
        before = self._values.get(name)
        freed = 0 if before is None else len(name) + len(before)
        taken = 0 if value is None else len(name) + len(value)
        if taken > freed and self._num_bytes - freed + taken > MAX_BYTES:
            sentence = f"The facts of this job would take more than {MAX_BYTES >> 20} MiB."
            raise Refusal(RefusalKind.TOO_MANY, sentence)
        self._num_bytes += taken - freed
        if value is None:
            self._values.pop(name, None)
        else:
            self._values[name] = value
