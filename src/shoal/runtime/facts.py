"""Small facts between workers, kept in the store that torch.distributed has already connected."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from shoal.errors import DeadlineExceeded

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]  # torch's own omission

_PREFIX = "shoal/"


class StoreFacts:
    """`comm.FactStore` over a torch store, plus named texts for setting a job up."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def publish(self, fact: str) -> None:
        """Make `fact` known."""
        self.store.set(_PREFIX + fact, "1")

    def is_published(self, fact: str) -> bool:
        """Return whether somebody has published `fact`, without waiting."""
        return self.store.check([_PREFIX + fact])

    def increment(self, counter: str) -> int:
        """Add one to `counter` atomically and return its new value."""
        return self.store.add(_PREFIX + counter, 1)

    def value_of(self, counter: str) -> int:
        """Return the value of `counter`, 0 if nobody has incremented it."""
        return self.store.add(_PREFIX + counter, 0)

    def set(self, name: str, text: str) -> None:
        """Publish `text` under `name`."""
        self.store.set(_PREFIX + name, text)

    def get(self, name: str, deadline_s: float) -> str:
        """Return the text under `name`, waiting for it. Raises `DeadlineExceeded`."""
        try:
            self.store.wait([_PREFIX + name], timedelta(seconds=deadline_s))
        except RuntimeError as error:
            message = f"Rank 0 did not publish {name!r} within {deadline_s:g} s."
            raise DeadlineExceeded(message) from error
        return self.store.get(_PREFIX + name).decode()
