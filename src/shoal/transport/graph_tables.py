"""A collective's message graph as the rows of an operation, and into how many messages it is cut.

The graphs are `shoal.collectives.graphs`'; positions in a group become ranks here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from shoal.transport.forms import WIRE_BYTES
from shoal.transport.holes import ZERO
from shoal.transport.messages import (
    LARGEST_MESSAGE_SEGMENTS,
    MOST_MESSAGES,
    Joining,
    MessageTables,
    Receiving,
    Sending,
)
from shoal.transport.tables import ADD, WRITE
from shoal.transport.tags import MOST_URGENT, LayerClasses, class_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.collectives import MessageGraph
    from shoal.compiled import Zeros

PIECE_BYTES: Final = 512 << 10
"""The approximate bytes of a large shard that make one message: large enough for what is done for
each message to count little; a message has at most 1,024 segments."""

PIECES_OF_A_SHARD: Final = 8
"""The number of messages that make a smaller shard, if that makes whole batches (half ones in a
ring): what has come of it is passed on, or asked for again, while the rest is under way."""


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """How a graph is carried out: its sums' factor, what may get lost, and what a hole means."""

    scale: float = 1.0
    loss_bound: float = 0.0
    """The loss bound of every hop on which something may get lost."""
    policy: int = ZERO
    layers: LayerClasses = MOST_URGENT
    keeps_missing: bool = False
    tagged: bool = False


def piece_length(
    count: int,
    form: int,
    segment_bytes: int,
    batch: int,
    *,
    shards: int = 1,
    ring: bool = False,
    piece_bytes: int = PIECE_BYTES,
) -> int:
    """Return how many elements a message has: whole packets, except in the last message.

    `count` elements are cut into `shards` parts; `batch` packets go to the network together. In a
    ring a lost packet should be there again while other messages of its shard pass: so small shards
    are cut into more of them. A large shard is cut into messages of some `piece_bytes`.
    """
    element = WIRE_BYTES[form]
    segments = max(1, piece_bytes // segment_bytes)
    some = count * element // segment_bytes // (shards * PIECES_OF_A_SHARD)
    segments = min(segments, max(some, batch // 2 if ring else batch))
    if segments > batch:
        segments -= segments % batch
    # two ranks exchange a shard twice, to add it up and to hand it out; in a ring, every shard
    exchanged = 2 * count * element // (1 if ring else shards)
    least = -(-exchanged // (segment_bytes * MOST_MESSAGES))
    segments = min(max(segments, least), LARGEST_MESSAGE_SEGMENTS)
    return segments * segment_bytes // element


def messages_of_sum(count: int, piece: int, members: int, *, ring: bool = False) -> int:
    """Return at most how many messages a member sends to one other, of a sum over them all.

    Shards that are not all alike may make a few less. `count` elements are cut into a shard for
    each of `members`, and shards into messages of `piece` elements. Directly a shard goes there to
    be added up, and its sum comes back; in a ring all but one shard pass twice.
    """
    shard = -(-count // members)
    return 2 * (members - 1 if ring else 1) * -(-shard // piece)


def tables_of(
    graph: MessageGraph,
    ranks: Sequence[int],
    world_size: int,
    segment_bytes: int,
    form: int,
    options: GraphOptions,
    zeros: Zeros = np.zeros,
) -> MessageTables:
    """Return the rows of `graph` among the group `ranks`, for elements of `form`."""
    bound = options.loss_bound
    adders = [0] * len(graph.gates)
    for message in graph.incoming:
        if message.adds:
            adders[message.gate] += 1
    return MessageTables(
        world_size,
        segment_bytes,
        form,
        sending=[
            Sending(
                ranks[message.peer],
                message.piece.start,
                len(message.piece),
                message.after,
                class_of(options.layers, message.piece.start, message.piece.stop),
                bound if message.lossy else 0.0,
            )
            for message in graph.outgoing
        ],
        receiving=[
            Receiving(
                ranks[message.peer],
                message.piece.start,
                len(message.piece),
                ADD if message.adds else WRITE,
                message.gate,
                bound if message.lossy else 0.0,
                message.contributions,
            )
            for message in graph.incoming
        ],
        gates=[
            Joining(
                gate.piece.start,
                len(gate.piece),
                options.scale if gate.finish else 1.0,
                1 + adders[number],
                options.policy if gate.finish else ZERO,
            )
            for number, gate in enumerate(graph.gates)
        ],
        keeps_missing=options.keeps_missing and bound > 0,
        tagged=options.tagged,
        zeros=zeros,
    )
