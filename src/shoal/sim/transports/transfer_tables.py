"""A transfer's flows as the rows of every host's part in it, by whole arrays.

A step of a model among hundreds of hosts has hundreds of thousands of messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from shoal.compiled import Arena
from shoal.transport import (
    ABSENT,
    MOST_MESSAGES,
    RECEIVING,
    SENDING,
    WRITE,
    MessageTables,
    check_number,
    piece_length,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shoal.transport import TransportConfig


@dataclass(frozen=True, slots=True)
class Flows:
    """Flows of `counts` elements from each of `sources` to the target at the same place.

    They come from the places `starts` of one buffer and go to the same ones of another. Of each a
    share of `loss_bound` may get lost; `is_tagged` makes room for which packets are important,
    `keeps_missing` for what got lost, which senders keep.
    """

    sources: NDArray[np.int64]
    targets: NDArray[np.int64]
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]
    form: int = ABSENT
    layer_class: int = 0
    loss_bound: float = 0.0
    is_tagged: bool = False
    keeps_missing: bool = False


_PIECE: Final = np.dtype([("source", "<i4"), ("target", "<i4"), ("start", "<i8"), ("count", "<i8")])


def transfer_tables(
    flows: Flows, world_size: int, config: TransportConfig
) -> dict[int, MessageTables]:
    """Return the rows of each host that sends or receives something, hosts in their order."""
    pieces, arena = _pieces(flows, config), Arena()
    sending = np.zeros(len(pieces), SENDING)
    receiving = np.zeros(len(pieces), RECEIVING)
    for rows in (sending, receiving):
        rows["start"], rows["count"] = pieces["start"], pieces["count"]
        rows["gate"], rows["loss_bound"] = -1, flows.loss_bound
    sending["peer"], sending["layer_class"] = pieces["target"], flows.layer_class
    receiving["peer"], receiving["mode"] = pieces["source"], WRITE
    sent, received = _by_host(pieces["source"], sending), _by_host(pieces["target"], receiving)
    return {
        host: MessageTables(
            world_size,
            config.segment_bytes,
            flows.form,
            sending=sent.get(host, ()),
            receiving=received.get(host, ()),
            keeps_missing=flows.keeps_missing,
            tagged=flows.is_tagged,
            zeros=arena.zeros,
        )
        for host in sorted(sent.keys() | received.keys())
    }


def message_lengths(
    flows: Flows, config: TransportConfig
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return how many elements a message of each flow has at most, and how many messages it is.

    Raises `UsageError` for more between two hosts than there may be.
    """
    different, kinds = np.unique(flows.counts, return_inverse=True)
    lengths = [
        piece_length(count, flows.form, config.segment_bytes, config.largest_batch)
        for count in different.tolist()
    ]
    most = np.array(lengths, np.int64)[kinds]
    numbers = -(-flows.counts // most)
    if int(numbers.sum()) > MOST_MESSAGES:
        _, pairs = np.unique(np.stack([flows.sources, flows.targets]), axis=1, return_inverse=True)
        check_number(int(np.bincount(pairs.ravel(), numbers).max()))
    return most, numbers


def _pieces(flows: Flows, config: TransportConfig) -> NDArray[np.void]:
    """Return the messages that flows are cut into, each one's in their order."""
    most, numbers = message_lengths(flows, config)
    of = np.repeat(np.arange(len(numbers)), numbers)
    begun = (np.arange(len(of)) - (np.cumsum(numbers) - numbers)[of]) * most[of]
    pieces = np.zeros(len(of), _PIECE)
    pieces["source"], pieces["target"] = flows.sources[of], flows.targets[of]
    pieces["start"] = flows.starts[of] + begun
    pieces["count"] = np.minimum(most[of], flows.counts[of] - begun)
    return pieces


def _by_host(hosts: NDArray[np.int32], rows: NDArray[np.void]) -> dict[int, NDArray[np.void]]:
    """Return the rows of each of `hosts`, in their order."""
    order = np.argsort(hosts, kind="stable")
    different, begins = np.unique(hosts[order], return_index=True)
    parts = np.split(rows[order], begins[1:])
    return dict(zip(different.tolist(), parts, strict=False))  # a part without rows if no host
