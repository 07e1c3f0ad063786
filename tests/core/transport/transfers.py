"""Arrays with canaries around them, and operations over them, for tests of the transport."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from link_state import memory_at

from shoal.transport import graph_tables
from shoal.transport.forms import FLOAT32, MEMORY_BYTES
from shoal.transport.graph_tables import GraphOptions
from shoal.transport.holes import ERROR_FEEDBACK, ZERO
from shoal.transport.messages import MessageTables, Receiving, Sending
from shoal.transport.tables import ADD, WRITE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from virtual_link import VirtualLink

    from shoal.collectives.message_graph import MessageGraph

MARGIN = 256
CANARY = 0xA5


class Guarded:
    """`size` bytes of memory between canaries, of which there are `margin` on each side."""

    def __init__(self, size: int, margin: int = MARGIN) -> None:
        self._margin = margin
        self._whole = np.full(size + 2 * margin, CANARY, np.uint8)
        self.bytes = self._whole[margin : margin + size]
        self.bytes[:] = 0

    @property
    def address(self) -> int:
        return self.bytes.ctypes.data

    def check(self) -> None:
        """Fail unless everything around the memory is as it was."""
        assert (self._whole[: self._margin] == CANARY).all()
        assert (self._whole[-self._margin :] == CANARY).all()


def guarded(values: NDArray[np.generic]) -> tuple[NDArray[np.generic], Guarded]:
    """Return a copy of `values` between canaries, and its guard."""
    guard = Guarded(values.nbytes)
    array = guard.bytes.view(values.dtype)
    array[:] = values
    return array, guard


@dataclass(eq=False, repr=False)
class Transfer:
    """One message between two hosts, or part of one operation of each; memory on both sides."""

    link: VirtualLink
    source: int
    target: int
    values: NDArray[np.generic]
    before: NDArray[np.generic] | None = None
    """What is in the receiver's memory; zeros if None."""
    form: int = FLOAT32
    mode: int = WRITE
    loss_bound: float = 0.0
    layer_class: int = 0
    keeps_missing: bool = False
    important: NDArray[np.bool_] | None = None
    stream: int = 7
    iteration: int = 1
    guards: list[Guarded] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.link.kept.append(self)
        world, segment = len(self.link.endpoints), self.segment_bytes
        before = np.zeros_like(self.values) if self.before is None else self.before
        self.sent, sent_guard = guarded(self.values)
        self.received, received_guard = guarded(before)
        self.before = before.copy()
        self.guards = [sent_guard, received_guard]
        count = self.values.nbytes // MEMORY_BYTES[self.form]
        self.sending = MessageTables(
            world,
            segment,
            self.form,
            sending=[Sending(self.target, 0, count, layer_class=self.layer_class)],
            keeps_missing=self.keeps_missing,
        )
        self.receiving = MessageTables(
            world,
            segment,
            self.form,
            receiving=[Receiving(self.source, 0, count, self.mode, loss_bound=self.loss_bound)],
        )
        self.sending.place(sent_guard.address)
        self.receiving.place(received_guard.address)
        if self.important is not None:
            self._important = words(self.important)
            self.sending.outgoing["important"] = self._important.ctypes.data

    @property
    def segment_bytes(self) -> int:
        return self.link.endpoints[0].config.segment_bytes

    @property
    def segments(self) -> int:
        return int(self.sending.outgoing["segments"][0])

    def post_sender(self) -> None:
        self.sender_ticket = self.link.post(self.source, self.sending, self.stream, self.iteration)

    def post_receiver(self) -> None:
        self.receiver_ticket = self.link.post(
            self.target, self.receiving, self.stream, self.iteration
        )

    def post(self, *, sender_at: int = 0, receiver_at: int = 0) -> None:
        """Post both ends, each at its time."""
        self.link.at(sender_at, self.source, self.post_sender)
        self.link.at(receiver_at, self.target, self.post_receiver)

    def arrived(self) -> NDArray[np.bool_]:
        """Return for each segment whether the receiver has it."""
        return ~bits_at(int(self.receiving.incoming["seen"][0]), self.segments)

    def missing(self) -> NDArray[np.bool_]:
        """Return for each segment whether the sender has been told that it is missing."""
        return bits_at(int(self.sending.outgoing["missing"][0]), self.segments)

    def check_places(self) -> None:
        """Fail unless every segment that arrived is in its place and nothing else has changed."""
        for guard in self.guards:
            guard.check()
        np.testing.assert_array_equal(self.sent, self.values)
        assert self.before is not None
        expected = self.before.copy()
        per_segment = self.segment_bytes * len(self.values) // max(1, self._wire_bytes())
        for segment, came in enumerate(self.arrived()):
            part = slice(segment * per_segment, (segment + 1) * per_segment)
            if came and self.mode == ADD:
                expected[part] += self.values[part]
            elif came:
                expected[part] = self.values[part]
        np.testing.assert_array_equal(self.received, expected)

    def _wire_bytes(self) -> int:
        return int(self.sending.outgoing["size"][0])


def words(flags: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Return flags as the words of a bitmap."""
    padded = np.zeros(-(-max(1, len(flags)) // 64) * 64, np.bool_)
    padded[: len(flags)] = flags
    return np.packbits(padded, bitorder="little").view(np.uint64)


def bits_at(address: int, bits: int) -> NDArray[np.bool_]:
    """Return the bitmap at an address as flags."""
    memory = memory_at(address, -(-bits // 64), np.dtype(np.uint64))
    return np.unpackbits(memory.view(np.uint8), bitorder="little")[:bits].astype(np.bool_)


def tables_of(
    graph: MessageGraph,
    link: VirtualLink,
    ranks: Sequence[int],
    *,
    form: int = FLOAT32,
    loss_bound: float = 0.0,
    policy: int = ZERO,
) -> MessageTables:
    """Return a graph's rows for a mean over `ranks`: contributions may get lost, means may not."""
    return graph_tables.tables_of(
        graph,
        ranks,
        len(link.endpoints),
        link.endpoints[0].config.segment_bytes,
        form,
        GraphOptions(1 / len(ranks), loss_bound, policy, keeps_missing=policy == ERROR_FEEDBACK),
    )
