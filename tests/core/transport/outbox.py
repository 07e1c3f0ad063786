"""The memory that a sender's batch is described in, and the datagrams that it stands for."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np

from shoal.transport.sending import (
    LARGEST_BATCH,
    PIECE,
    PIECES,
    TRANSMIT,
    keep_batch,
    next_batch,
)

if TYPE_CHECKING:
    from shoal.transport.endpoint import Endpoint

BUFFER_BYTES = 65536


class Outbox:
    """Asks endpoints for batches and puts their datagrams together as the kernel would."""

    def __init__(self) -> None:
        self._memory = np.zeros(BUFFER_BYTES, np.uint8)
        self._pieces = np.zeros(LARGEST_BATCH * PIECES, PIECE)
        self.transmit = np.zeros(1, TRANSMIT)[0]
        self._start, self._first_piece = self._memory.ctypes.data, self._pieces.ctypes.data

    def next(self, endpoint: Endpoint, now: int, clock: int) -> list[bytes]:
        """Return the datagrams of the next batch, or none."""
        memory, pieces = self._start, self._first_piece
        more = next_batch(endpoint.state, memory, BUFFER_BYTES, pieces, now, clock, self.transmit)
        return self._datagrams() if more else []

    def keep(self) -> list[bytes]:
        """Return the datagrams of the latest batch once more, all of them from the own memory."""
        keep_batch(self._start, self._first_piece, self.transmit)
        for address, _length in self._pieces[: self._count]:
            assert self._start <= address < self._start + BUFFER_BYTES
        return self._datagrams()

    @property
    def _count(self) -> int:
        return int(self.transmit["packets"]) * int(self.transmit["pieces"])

    def _datagrams(self) -> list[bytes]:
        size = int(self.transmit["pieces"])
        parts = [
            ctypes.string_at(int(address), int(length))
            for address, length in self._pieces[: self._count]
        ]
        datagrams = [b"".join(parts[at : at + size]) for at in range(0, len(parts), size)]
        full = int(self.transmit["packet_bytes"])
        assert all(len(each) == full for each in datagrams[:-1])
        assert len(datagrams[-1]) <= full
        return datagrams
