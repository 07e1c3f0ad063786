"""The messages of one operation as tables in memory, and the bitmaps that they refer to.

Made once for an operation's shape and used again: only addresses change from one call to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import numpy as np

from shoal.compiled import I4, I8, U1, U8, Zeros
from shoal.errors import UsageError
from shoal.transport.bitmap import words_for
from shoal.transport.forms import MEMORY_BYTES, WIRE_BYTES
from shoal.transport.holes import DIVIDE_BY_COUNT, ZERO
from shoal.transport.residuals import add_kept
from shoal.transport.tables import BITMAP_WORDS, DONE, GATE, INCOMING, OPERATION, OUTGOING, WRITE

if TYPE_CHECKING:
    from numpy.typing import NDArray

LARGEST_MESSAGE_SEGMENTS: Final = 64 * BITMAP_WORDS
MOST_MESSAGES: Final = 1 << 16
"""The most messages of an operation between two ranks: packets number messages in 16 bits."""


def check_number(messages: int) -> None:
    """Raise `UsageError` if an operation cannot have so many messages between two ranks."""
    if messages > MOST_MESSAGES:
        message = (
            f"The transport moves at most {MOST_MESSAGES:,} messages between two ranks at once;"
            f" this takes {messages:,}. Send the tensor in parts."
        )
        raise UsageError(message)


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


SENDING: Final = np.dtype(
    [
        ("peer", "<i4"),
        ("start", "<i8"),
        ("count", "<i8"),
        ("gate", "<i4"),
        ("layer_class", "u1"),
        ("loss_bound", "<f8"),
    ]
)
"""`Sending` as a row, for callers with many messages."""


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


RECEIVING: Final = np.dtype(
    [
        ("peer", "<i4"),
        ("start", "<i8"),
        ("count", "<i8"),
        ("mode", "u1"),
        ("gate", "<i4"),
        ("loss_bound", "<f8"),
        ("shard", "<i4"),
    ]
)
"""`Receiving` as a row of a table."""


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
    nothing. `zeros` gives the tables their memory.
    """

    def __init__(
        self,
        world_size: int,
        segment_bytes: int,
        form: int,
        *,
        sending: Sequence[Sending] | NDArray[np.void] = (),
        receiving: Sequence[Receiving] | NDArray[np.void] = (),
        gates: Sequence[Joining] = (),
        keeps_missing: bool = False,
        tagged: bool = False,
        zeros: Zeros = np.zeros,
    ) -> None:
        self.segment_bytes, self._form, self._zeros = segment_bytes, form, zeros
        self.outgoing = zeros(len(sending), OUTGOING)
        self.incoming = zeros(len(receiving), INCOMING)
        self.gates = zeros(len(gates), GATE)
        self.times = zeros(len(sending) + len(receiving), I8)
        """The time at which something is due about each row, kept apart from the rows because the
        timer looks at all."""
        self.keeps_missing = keeps_missing
        self._marks: NDArray[np.int32] | None = None
        outgoing, incoming = _by_peer(sending, SENDING), _by_peer(receiving, RECEIVING)
        self._fill_outgoing(outgoing)
        self._fill_incoming(incoming)
        self._fill_gates(gates)
        self.outgoing_starts, self.incoming_starts = (zeros(world_size + 2, I4) for _ in range(2))
        self.outgoing_starts[:] = _starts(self.outgoing["peer"], world_size)
        self.incoming_starts[:] = _starts(self.incoming["peer"], world_size)
        self._words = self._lay_out_bitmaps(tagged=tagged)
        self.incoming["behind"] = -1
        if keeps_missing:
            self._kept = self._lay_out_kept(outgoing["loss_bound"])

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

    def keep_paths(self) -> None:
        """Make room for which path each segment takes, once."""
        if self._marks is None:
            segments = self.outgoing["segments"].astype(np.int64)
            self._marks = self._zeros(int(segments.sum()), I4)
            self.outgoing["marks"] = self._marks.ctypes.data + 4 * (np.cumsum(segments) - segments)

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

    @cached_property
    def operation(self) -> NDArray[np.void]:
        """The row of an operation of these messages, but for its stream and iteration."""
        made = np.zeros(1, OPERATION)
        made["outgoing"] = self.outgoing.ctypes.data
        made["incoming"] = self.incoming.ctypes.data
        made["gates"] = self.gates.ctypes.data
        made["outgoing_count"], made["incoming_count"] = len(self.outgoing), len(self.incoming)
        made["gate_count"] = len(self.gates)
        made["outgoing_starts"] = self.outgoing_starts.ctypes.data
        made["incoming_starts"] = self.incoming_starts.ctypes.data
        made["probe_times"] = self.times.ctypes.data
        made["answer_times"] = self.times.ctypes.data + 8 * len(self.outgoing)
        made["keeps_missing"] = self.keeps_missing
        return made

    @cached_property
    def senders(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """The ranks that send something, and where the rows of each start."""
        starts = self.incoming_starts
        ranks = np.flatnonzero(starts[:-1] < starts[1:])
        return ranks, starts[ranks]

    def unfinished_peers(self) -> list[int]:
        """Return the ranks whose messages, in or out, are not done."""
        late = [table["peer"][table["state"] != DONE] for table in (self.outgoing, self.incoming)]
        return sorted({int(rank) for rank in np.concatenate(late)})

    @property
    def is_empty(self) -> bool:
        """Whether nothing is sent or received."""
        return not len(self.outgoing) and not len(self.incoming)

    def _fill_outgoing(self, messages: NDArray[np.void]) -> None:
        table, wire = self.outgoing, WIRE_BYTES[self._form]
        for name in ("peer", "gate", "layer_class"):
            table[name] = messages[name]
        table["start"], table["size"] = messages["start"] * wire, messages["count"] * wire
        table["rotates"] = messages["loss_bound"] > 0
        table["form"], table["next_blocked"] = self._form, -1
        self._number(table)

    def _fill_incoming(self, messages: NDArray[np.void]) -> None:
        table, wire = self.incoming, WIRE_BYTES[self._form]
        for name in ("peer", "gate", "mode"):
            table[name] = messages[name]
        table["start"], table["size"] = messages["start"] * wire, messages["count"] * wire
        table["form"] = self._form
        table["target"] = target_bytes(table["size"], messages["loss_bound"])
        self._number(table)
        lossy = messages["loss_bound"] > 0
        if lossy.any():
            shards = messages["peer"][lossy].astype(np.int64) << 32 | messages["shard"][lossy]
            different, places = np.unique(shards, return_inverse=True)
            self._saved = self._zeros(len(different), I8)
            table["saved"][lossy] = self._saved.ctypes.data + 8 * places

    def _number(self, table: NDArray[np.void]) -> None:
        """Count segments, and the messages between each two ranks."""
        table["segments"] = -(-table["size"] // self.segment_bytes)
        if len(table) and int(table["segments"].max()) > LARGEST_MESSAGE_SEGMENTS:
            raise UsageError("A message of the transport is too long; cut it into pieces.")
        starts = _starts(table["peer"], int(table["peer"].max()) + 1 if len(table) else 0)
        numbers = np.arange(len(table)) - starts[table["peer"]]
        if len(table):
            check_number(int(numbers.max()) + 1)
        table["message"] = numbers

    def _fill_gates(self, gates: Sequence[Joining]) -> None:
        table, memory = self.gates, MEMORY_BYTES[self._form]
        self._gate_starts = np.array([gate.start * memory for gate in gates], np.int64)
        if not gates:
            return
        table["size"] = [gate.count * memory for gate in gates]
        table["scale"] = [gate.scale for gate in gates]
        table["contributions"] = [gate.contributions for gate in gates]
        table["policy"] = [gate.policy for gate in gates]
        table["form"], table["first_blocked"] = self._form, -1
        leading = self.incoming["gate"][self.incoming["gate"] >= 0]
        table["awaited"] = np.bincount(leading, minlength=len(gates))
        blocked = np.flatnonzero(self.outgoing["gate"] >= 0)
        blocked = blocked[np.argsort(self.outgoing["gate"][blocked], kind="stable")]
        behind = self.outgoing["gate"][blocked]
        is_first = np.diff(behind, prepend=-1) != 0
        table["first_blocked"][behind[is_first]] = blocked[is_first]
        after = blocked[~is_first]
        self.outgoing["next_blocked"][blocked[np.flatnonzero(~is_first) - 1]] = after

    def _lay_out_bitmaps(self, *, tagged: bool) -> NDArray[np.uint64]:
        """Give every message its bitmaps, and every counted gate its counts."""
        each = 4 if self.keeps_missing else 3
        out_words = words_for(self.outgoing["segments"].astype(np.int64))
        in_words = words_for(self.incoming["segments"].astype(np.int64))
        counted = [
            gate
            for gate in np.flatnonzero(self.gates["policy"] == DIVIDE_BY_COUNT).tolist()
            if (self.incoming["gate"] == gate).any()
        ]
        rows = [self.incoming["gate"] == gate for gate in counted]
        counts = [words_for(16 * int(self.incoming["segments"][leading].max())) for leading in rows]
        lengths = np.concatenate([each * out_words, in_words, np.array(counts, np.int64)])
        words = self._zeros(int(lengths.sum()), U8)
        places = words.ctypes.data + 8 * (np.cumsum(lengths) - lengths)
        out_places, in_places, count_places = np.split(
            places, [len(out_words), len(out_words) + len(in_words)]
        )
        self.outgoing["pending"], self.incoming["seen"] = out_places, in_places
        self.outgoing["again"] = out_places + 16 * out_words
        if tagged:
            free = self.outgoing["gate"] < 0
            self.outgoing["important"][free] = (out_places + 8 * out_words)[free]
        if self.keeps_missing:
            self.outgoing["missing"] = out_places + 24 * out_words
        self.gates["counts"][counted] = count_places
        for leading, place in zip(rows, count_places, strict=True):
            self.incoming["counts"][leading] = place
        return words

    def _lay_out_kept(self, bounds: NDArray[np.float64]) -> NDArray[np.uint8]:
        """Give the messages to each peer that may lose something room for that, together.

        What comes in to the same place must wait until what was lost from there has been kept.
        """
        table = self.outgoing
        full = self.segment_bytes * MEMORY_BYTES[self._form] // WIRE_BYTES[self._form]
        allowed = table["size"] - target_bytes(table["size"], bounds)
        lossy = bounds > 0
        peers = [int(peer) for peer in np.unique(table["peer"][allowed > 0])]
        rooms = []
        for peer in peers:
            rows = lossy & (table["peer"] == peer)
            most = int(allowed[rows].sum()) // self.segment_bytes + int(rows.sum())
            rooms.append(min(most, int(table["segments"][rows].sum())))  # last segments are short
        memory = self._zeros(sum(rooms) * full + 8 * len(peers), U1)
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


def target_bytes(sizes: NDArray[np.int64], loss_bounds: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return how many distinct bytes are enough of each size, rounded up to 4 as in the prototype.

    Raises `UsageError` unless all bounds are at least 0 and less than 1.
    """
    wrong = loss_bounds[~((loss_bounds >= 0) & (loss_bounds < 1))]
    if len(wrong):
        message = f"A loss bound is a share of at least 0 and less than 1, not {wrong[0]}."
        raise UsageError(message)
    enough = np.ceil(sizes * (1 - loss_bounds)).astype(np.int64)
    return np.minimum(sizes, -(-enough // 4) * 4)


def _by_peer(
    messages: Sequence[Sending] | Sequence[Receiving] | NDArray[np.void], row: np.dtype[np.void]
) -> NDArray[np.void]:
    """Return the messages as rows, those to or from one rank together and in their order."""
    if isinstance(messages, np.ndarray):
        rows = messages
    else:
        assert row.names is not None
        values = attrgetter(*row.names)
        rows = np.array([values(message) for message in messages], row)
    return rows[np.argsort(rows["peer"], kind="stable")]


def _starts(peers: NDArray[np.int32], world_size: int) -> NDArray[np.int32]:
    """Return where the rows of each rank start in a table sorted by rank."""
    return np.searchsorted(peers, np.arange(world_size + 2)).astype(np.int32)
