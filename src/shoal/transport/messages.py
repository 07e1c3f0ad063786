"""The messages of one operation as tables in memory, and the bitmaps that they refer to.

Made once for an operation's shape and used again: only addresses change from one call to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from shoal.errors import UsageError
from shoal.transport.bitmap import words_for
from shoal.transport.forms import MEMORY_BYTES, WIRE_BYTES
from shoal.transport.holes import DIVIDE_BY_COUNT, ZERO
from shoal.transport.residuals import add_kept
from shoal.transport.tables import BITMAP_WORDS, DONE, GATE, INCOMING, OUTGOING, WRITE

if TYPE_CHECKING:
    from numpy.typing import NDArray

LARGEST_MESSAGE_SEGMENTS: Final = 64 * BITMAP_WORDS


@dataclass(frozen=True, slots=True)
class Sending:
    """A message to rank `peer`: `count` elements from `start`, once `gate` opens (-1: none).

    `loss_bound` is the receiver's: what may get lost is not always the same part, and may be kept.
    """

    peer: int
    start: int
    count: int
    gate: int = -1
    layer_class: int = 0
    loss_bound: float = 0.0


@dataclass(frozen=True, slots=True)
class Receiving:
    """A message from `peer`: `count` elements to `start`, added or written; leads to `gate`.

    Messages from one peer with the same number `shard` share what their bounds let go missing.
    """

    peer: int
    start: int
    count: int
    mode: int
    gate: int = -1
    loss_bound: float = 0.0
    shard: int = 0


@dataclass(frozen=True, slots=True)
class Joining:
    """A gate: what is complete when it opens (`count` elements from `start`), and its factor."""

    start: int
    count: int
    scale: float = 1.0
    contributions: int = 1
    policy: int = ZERO


class MessageTables:
    """The rows of an operation's messages and gates, its buffer's address still to be filled in.

    `form` says what the elements are. Messages between two ranks are numbered in the order given,
    which must be the same on both: the k-th that one sends is the k-th that the other receives.
    `keeps_missing` makes room for which segments did not arrive, and for what was in them where a
    loss bound lets that happen; `tagged` for which packets are important, of messages that wait for
    nothing.
    """

    def __init__(
        self,
        world_size: int,
        segment_bytes: int,
        form: int,
        *,
        sending: Sequence[Sending] = (),
        receiving: Sequence[Receiving] = (),
        gates: Sequence[Joining] = (),
        keeps_missing: bool = False,
        tagged: bool = False,
    ) -> None:
        self.segment_bytes, self._form = segment_bytes, form
        self.outgoing = np.zeros(len(sending), OUTGOING)
        self.incoming = np.zeros(len(receiving), INCOMING)
        self.gates = np.zeros(len(gates), GATE)
        self.times = np.zeros(len(sending) + len(receiving), np.int64)
        """When something is due about each row, apart from them: the timer looks at all."""
        self.keeps_missing = keeps_missing
        out_order = sorted(range(len(sending)), key=lambda k: sending[k].peer)
        in_order = sorted(range(len(receiving)), key=lambda k: receiving[k].peer)
        self._fill_outgoing([sending[k] for k in out_order])
        self._fill_incoming([receiving[k] for k in in_order])
        self._fill_gates(gates)
        self.outgoing_starts = _starts(self.outgoing["peer"], world_size)
        self.incoming_starts = _starts(self.incoming["peer"], world_size)
        self._words = self._lay_out_bitmaps(tagged=tagged)
        self.incoming["behind"] = -1
        if keeps_missing:
            self._kept = self._lay_out_kept([sending[k].loss_bound for k in out_order])

    @property
    def elements(self) -> int:
        """Elements that the buffer must have."""
        tables = (self.outgoing, self.incoming)
        ends = [int((table["start"] + table["size"]).max()) for table in tables if len(table)]
        return max(ends, default=0) // WIRE_BYTES[self._form]

    def place(self, target: int, source: int | None = None) -> None:
        """Let the rows refer to the buffer at address `target`.

        Messages that wait for nothing come from the buffer at `source`, if that is another one.
        """
        widening = MEMORY_BYTES[self._form] // WIRE_BYTES[self._form]
        self.incoming["address"] = target + self.incoming["start"] * widening
        self.outgoing["address"] = target + self.outgoing["start"] * widening
        self.gates["address"] = target + self._gate_starts
        if source is not None and source != target:
            free = self.outgoing["gate"] < 0
            self.outgoing["address"][free] += source - target

    @property
    def keeps_something(self) -> bool:
        """Whether something of the last contribution got lost and is kept."""
        return bool(self.outgoing["kept_segments"].any())

    def add_kept(self, buffer: int) -> None:
        """Add what is kept to the buffer at this address, which is to be sent next."""
        add_kept(self.outgoing, buffer, self.segment_bytes)

    @cached_property
    def peers(self) -> frozenset[int]:
        """The ranks that have a part in it."""
        return frozenset(int(k) for k in (*self.outgoing["peer"], *self.incoming["peer"]))

    def unfinished_peers(self) -> list[int]:
        """Return the ranks whose messages, in or out, are not done."""
        late = [table["peer"][table["state"] != DONE] for table in (self.outgoing, self.incoming)]
        return sorted({int(rank) for rank in np.concatenate(late)})

    @property
    def is_empty(self) -> bool:
        """Whether nothing is sent or received."""
        return not len(self.outgoing) and not len(self.incoming)

    def _fill_outgoing(self, messages: Sequence[Sending]) -> None:
        table, wire = self.outgoing, WIRE_BYTES[self._form]
        table["peer"] = [message.peer for message in messages]
        table["start"] = [message.start * wire for message in messages]
        table["size"] = [message.count * wire for message in messages]
        table["gate"] = [message.gate for message in messages]
        table["layer_class"] = [message.layer_class for message in messages]
        table["rotates"] = [message.loss_bound > 0 for message in messages]
        table["form"], table["next_blocked"] = self._form, -1
        self._number(table)

    def _fill_incoming(self, messages: Sequence[Receiving]) -> None:
        table, wire = self.incoming, WIRE_BYTES[self._form]
        table["peer"] = [message.peer for message in messages]
        table["start"] = [message.start * wire for message in messages]
        table["size"] = [message.count * wire for message in messages]
        table["gate"] = [message.gate for message in messages]
        table["mode"] = [message.mode for message in messages]
        table["form"] = self._form
        table["target"] = [
            target_bytes(message.count * wire, message.loss_bound) for message in messages
        ]
        shards = [(message.peer, message.shard) for message in messages]
        places = {shard: place for place, shard in enumerate(dict.fromkeys(shards))}
        self._saved = np.zeros(len(places), np.int64)
        at = self._saved.ctypes.data
        table["saved"] = [
            at + 8 * places[shard] if message.loss_bound > 0 else 0
            for message, shard in zip(messages, shards, strict=True)
        ]
        self._number(table)

    def _number(self, table: NDArray[np.void]) -> None:
        """Count segments, and the messages between each two ranks."""
        table["segments"] = -(-table["size"] // self.segment_bytes)
        if len(table) and int(table["segments"].max()) > LARGEST_MESSAGE_SEGMENTS:
            raise UsageError("A message of the transport is too long; cut it into pieces.")
        starts = _starts(table["peer"], int(table["peer"].max()) + 1 if len(table) else 0)
        table["message"] = np.arange(len(table)) - starts[table["peer"]]

    def _fill_gates(self, gates: Sequence[Joining]) -> None:
        table, memory = self.gates, MEMORY_BYTES[self._form]
        self._gate_starts = np.array([gate.start * memory for gate in gates], np.int64)
        table["size"] = [gate.count * memory for gate in gates]
        table["scale"] = [gate.scale for gate in gates]
        table["contributions"] = [gate.contributions for gate in gates]
        table["policy"] = [gate.policy for gate in gates]
        table["form"], table["first_blocked"] = self._form, -1
        for row in self.incoming:
            if row["gate"] >= 0:
                table["awaited"][row["gate"]] += 1
        for index in reversed(range(len(self.outgoing))):
            gate = self.outgoing["gate"][index]
            if gate >= 0:
                self.outgoing["next_blocked"][index] = table["first_blocked"][gate]
                table["first_blocked"][gate] = index

    def _lay_out_bitmaps(self, *, tagged: bool) -> NDArray[np.uint64]:
        """Give every message its bitmaps, and every counted gate its counts."""
        out_words = [words_for(int(segments)) for segments in self.outgoing["segments"]]
        in_words = [words_for(int(segments)) for segments in self.incoming["segments"]]
        counted = {
            int(row["gate"]): words_for(16 * int(row["segments"]))
            for row in self.incoming
            if row["gate"] >= 0 and self.gates["policy"][row["gate"]] == DIVIDE_BY_COUNT
        }
        each = 3 if self.keeps_missing else 2
        words = np.zeros(each * sum(out_words) + sum(in_words) + sum(counted.values()), np.uint64)
        at = words.ctypes.data
        for index, count in enumerate(out_words):
            self.outgoing["pending"][index] = at
            if tagged and self.outgoing["gate"][index] < 0:
                self.outgoing["important"][index] = at + 8 * count
            if self.keeps_missing:
                self.outgoing["missing"][index] = at + 16 * count
            at += 8 * each * count
        for index, count in enumerate(in_words):
            self.incoming["seen"][index] = at
            at += 8 * count
        for gate, count in counted.items():
            self.gates["counts"][gate] = at
            self.incoming["counts"][self.incoming["gate"] == gate] = at
            at += 8 * count
        return words

    def _lay_out_kept(self, bounds: Sequence[float]) -> NDArray[np.uint8]:
        """Give the messages to each peer that may lose something room for that, together.

        What comes in to the same place must wait until what was lost from there has been kept.
        """
        table = self.outgoing
        full = self.segment_bytes * MEMORY_BYTES[self._form] // WIRE_BYTES[self._form]
        sizes = zip(table["size"].tolist(), bounds, strict=True)
        allowed = np.array([size - target_bytes(size, bound) for size, bound in sizes], np.int64)
        lossy = np.array(bounds) > 0
        peers = [int(peer) for peer in np.unique(table["peer"][allowed > 0])]
        rooms = []
        for peer in peers:
            rows = lossy & (table["peer"] == peer)
            most = int(allowed[rows].sum()) // self.segment_bytes + int(rows.sum())
            rooms.append(min(most, int(table["segments"][rows].sum())))  # last segments are short
        memory = np.zeros(sum(rooms) * full + 8 * len(peers), np.uint8)
        counts, at = memory.ctypes.data, memory.ctypes.data + 8 * len(peers)
        for place, (peer, room) in enumerate(zip(peers, rooms, strict=True)):
            rows = lossy & (table["peer"] == peer)
            table["kept"][rows], table["kept_room"][rows] = at, room
            table["kept_used"][rows] = counts + 8 * place
            at += room * full
        sent = {int(table["start"][k]): k for k in np.flatnonzero(table["kept"])}
        for row in self.incoming:
            if row["mode"] == WRITE:
                row["behind"] = sent.get(int(row["start"]), -1)
        return memory


def target_bytes(size: int, loss_bound: float) -> int:
    """Return how many distinct bytes of `size` are enough, rounded up to 4 as in the prototype.

    Raises `UsageError` unless the bound is at least 0 and less than 1.
    """
    if not 0 <= loss_bound < 1:
        message = f"A loss bound is a share of at least 0 and less than 1, not {loss_bound}."
        raise UsageError(message)
    return min(size, -(-int(np.ceil(size * (1 - loss_bound))) // 4) * 4)


def _starts(peers: NDArray[np.int32], world_size: int) -> NDArray[np.int32]:
    """Return where the rows of each rank start in a table sorted by rank."""
    return np.searchsorted(peers, np.arange(world_size + 2)).astype(np.int32)
