"""What became of each event of a worker: whether it happened, and how soon the others went on.

Decides nothing; told by `attendance`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from shoal.membership import Kind
from shoal.sim.training.outcome import EventOutcome
from shoal.switching import PICOSECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shoal.membership import Change
    from shoal.scenario import WorkerEvent
    from shoal.sim.training.world import World


_NEVER: Final = "all steps were made before it"


class _Entry:
    """One event, as far as it has come."""

    def __init__(self) -> None:
        self.fired: int | None = None
        self.view: int | None = None
        self.stepped: int | None = None
        self.awaited: set[int] = set()
        """The ranks whose next step is looked for."""
        self.remark = ""


@final
class EventLog:
    """The events of a run in their order."""

    def __init__(self, world: World, events: Sequence[WorkerEvent]) -> None:
        self.events = events
        self._world = world
        self._entries = [_Entry() for _ in events]

    def fire(self, number: int, awaited: Iterable[int]) -> None:
        """Note that an event happens now; it is over when all of `awaited` have made a step."""
        entry = self._entries[number]
        entry.fired, entry.awaited = self._world.time.now, set(awaited)

    def remark(self, number: int, sentence: str) -> None:
        """Note why an event has come to nothing."""
        self._entries[number].remark = sentence

    def remark_on(self, rank: int, sentence: str) -> None:
        """Note why a worker that came was not taken in."""
        for event, entry in zip(self.events, self._entries, strict=True):
            if event.rank == rank and entry.fired is not None:
                latest = entry
        latest.remark = sentence

    def note_step(self, rank: int) -> None:
        """Note that a worker has made a step."""
        for entry in self._entries:
            if rank in entry.awaited:
                entry.awaited.remove(rank)
                if not entry.awaited:
                    entry.stepped = self._world.time.now

    def forget(self, rank: int) -> None:
        """Note that no step of a worker is to be looked for: it ends, or is gone."""
        for entry in self._entries:
            entry.awaited.discard(rank)

    def note_view(self, changes: Iterable[Change]) -> None:
        """Note that all go on in a view that these changes have led to."""
        for change in changes:
            is_join = change.kind is Kind.JOINED
            for event, entry in zip(self.events, self._entries, strict=True):
                fits = event.rank == change.rank and (event.what == "join") == is_join
                if fits and entry.fired is not None and entry.view is None:
                    entry.view = self._world.time.now

    @property
    def outcomes(self) -> tuple[EventOutcome, ...]:
        """What has become of all events."""
        return tuple(
            EventOutcome(
                event.words,
                None if entry.fired is None else entry.fired / PICOSECONDS,
                _since(entry.view, entry.fired),
                _since(entry.stepped, entry.fired),
                entry.remark or ("" if entry.fired is not None else _NEVER),
            )
            for event, entry in zip(self.events, self._entries, strict=True)
        )


def _since(then: int | None, fired: int | None) -> float | None:
    return None if then is None or fired is None else (then - fired) / PICOSECONDS
