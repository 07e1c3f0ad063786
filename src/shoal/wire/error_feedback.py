"""What messages have lost, remembered by tensor until that tensor is sent again.

Nothing is copied: the tables of a finished operation keep what its messages lost, so they are not
used again before that has been added to the tensor's next contribution, whatever group that is in.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from shoal.transport import MessageTables

KEPT_TENSORS: Final = 4096
"""The number of tensors whose losses are remembered, the latest ones: a user that makes new tensors
for every sum would otherwise fill the memory."""


class ErrorFeedback:
    """Finished operations that still keep something, by the tensor that they sent. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lost: dict[Hashable, list[tuple[MessageTables, Callable[[], None]]]] = {}

    def keep(self, tensor: Hashable, tables: MessageTables, give_back: Callable[[], None]) -> None:
        """Hold on to the tables of a finished operation, or give them back if nothing got lost."""
        if not tables.keeps_something:
            give_back()
            return
        forgotten: list[tuple[MessageTables, Callable[[], None]]] = []
        with self._lock:
            lost = self._lost.pop(tensor, [])
            self._lost[tensor] = [*lost, (tables, give_back)]
            if len(self._lost) > KEPT_TENSORS:
                forgotten = self._lost.pop(next(iter(self._lost)))
        for _, give_back in forgotten:
            give_back()

    def add_back(self, tensor: Hashable, address: int) -> None:
        """Add what `tensor` has lost to its next contribution, which lies at `address`."""
        with self._lock:
            lost = self._lost.pop(tensor, [])
        for tables, give_back in lost:
            tables.add_kept(address)
            give_back()
