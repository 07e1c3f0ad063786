"""Facts that simulated workers tell each other: heard at once, and true from then on."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from shoal.sim.virtual_time import Signal
from shoal.strategies import CHANGED

if TYPE_CHECKING:
    from collections.abc import Generator

    from shoal.sim.training.world import World


class Facts:
    """What the workers of `world` have told; those who take part are heard."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._told: defaultdict[str, set[int]] = defaultdict(set)
        self._awaited: dict[tuple[str, str], Signal] = {}

    def tell(self, rank: int, fact: str) -> None:
        """Let a worker say `fact`."""
        self._told[fact].add(rank)
        for question in [each for each in self._awaited if fact in each]:
            known = self._answer(*question)
            if known is not None:
                self._world.time.give(self._awaited.pop(question), known)

    def wait(self, somebody: str, everyone: str) -> Generator[Signal, Any, object]:
        """Wait until one worker has told `somebody` (True), or all have told `everyone` (False).

        The answer is `CHANGED` if others take part before either.
        """
        known = self._answer(somebody, everyone)
        if known is None:
            known = yield self._awaited.setdefault((somebody, everyone), Signal())
        return known

    def drop(self) -> None:
        """Let all who wait know that others will take part."""
        for signal in self._awaited.values():
            self._world.time.give(signal, CHANGED)
        self._awaited.clear()

    def _answer(self, somebody: str, everyone: str) -> bool | None:
        members = self._world.view.members
        if not self._told[somebody].isdisjoint(members):
            return True
        return False if self._told[everyone].issuperset(members) else None
