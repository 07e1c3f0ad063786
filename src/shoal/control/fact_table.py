"""Small facts that workers publish for each other, as the control plane keeps them.

Owns the values and their limit. Knows neither what they mean nor who asks.
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
"""How many bytes of names and values may be kept; more are a leak in the caller."""


class FactTable:
    """What has been published in one job."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._num_bytes = 0

    def act(self, message: FactRequest) -> Reply:
        """Do what `message` asks; raise `Refusal` if there is no room."""
        match message:
            case SetFact(name, None):
                taken = self._values.pop(name, None)
                self._num_bytes -= 0 if taken is None else len(name) + len(taken)
                return Done()
            case SetFact(name, value):
                assert value is not None
                self._make_room(len(name) + len(value) - len(self._values.get(name, b"")))
                self._values[name] = value
                return Done()
            case ReadFacts(names):
                return Facts(tuple(self._values.get(name) for name in names))

    def _make_room(self, num_bytes: int) -> None:
        if self._num_bytes + num_bytes > MAX_BYTES:
            sentence = f"The facts of this job would take more than {MAX_BYTES >> 20} MiB."
            raise Refusal(RefusalKind.TOO_MANY, sentence)
        self._num_bytes += num_bytes
