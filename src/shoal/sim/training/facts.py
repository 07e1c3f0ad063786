"""Facts that simulated workers tell each other: heard at once, and true from then on."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from shoal.sim.virtual_time import Signal

if TYPE_CHECKING:
    from collections.abc import Generator

    from shoal.sim.training.world import World


class Facts:
    """What the workers of `world` have told; each tells a fact once."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._told: Counter[str] = Counter()
        self._awaited: dict[tuple[str, str], Signal] = {}

    def tell(self, fact: str) -> None:
        """Let one worker say `fact`."""
        self._told[fact] += 1
        for question in [each for each in self._awaited if fact in each]:
            known = self._answer(*question)
            if known is not None:
                self._world.time.give(self._awaited.pop(question), known)

    def wait(self, somebody: str, everyone: str) -> Generator[Signal, Any, bool]:
        """Wait until one worker has told `somebody` (True), or all have told `everyone` (False)."""
        known = self._answer(somebody, everyone)
        if known is None:
            known = yield self._awaited.setdefault((somebody, everyone), Signal())
        return bool(known)

    def _answer(self, somebody: str, everyone: str) -> bool | None:
        if self._told[somebody]:
            return True
        return False if self._told[everyone] == self._world.size else None
