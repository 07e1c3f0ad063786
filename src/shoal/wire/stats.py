"""What a rank's transport has done so far, as plain numbers: in all, by peer and by operation.

A snapshot is taken while the loop runs: it reads counters that only the loop writes, each of them
at once, so two of them may be a few packets apart. The difference of two snapshots, `later -
earlier`, says what happened in between. Figures of this moment (round trip, credit) are the later
one's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import numpy as np

from shoal.transport import CLASSES, RECEIVED_BY_TAG, SENT_BY_TAG, Counter

if TYPE_CHECKING:
    from shoal.transport import State
    from shoal.wire.operation_log import LogEntries, OperationTally, Peaks

Snapshot = TypeVar("Snapshot")

_NOW: Final = {"now": True}
"""The metadata of a field that is the state of a moment and no count."""


def _minus(later: Any, earlier: Any) -> Any:
    """Return a snapshot of the same kind with the differences of all counts."""
    values = {}
    for each in fields(later):
        new, old = getattr(later, each.name), getattr(earlier, each.name)
        if each.metadata.get("now"):
            values[each.name] = new
        elif isinstance(new, tuple):
            values[each.name] = tuple(a - b for a, b in zip(new, old, strict=True))
        elif isinstance(new, Mapping):
            values[each.name] = {k: v - old[k] if k in old else v for k, v in new.items()}
        else:
            values[each.name] = new - old
    return type(later)(**values)


def _share(part: float, whole: float) -> float:
    return max(0.0, part / whole) if whole > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What passed between this rank and a peer, or all of them, in `seconds`.

    Packets are data packets; bytes are payload. Tuples are by layer class, 0 the most urgent.
    """

    seconds: float
    sent_packets: int
    sent_bytes: int
    sent_again_packets: int
    parity_packets: int
    """Packets sent that bear parity, and no part of a message itself."""
    refused_packets: int
    """Packets sent that this machine did not take."""
    important_sent_packets: int
    sent_packets_by_class: tuple[int, ...]
    received_packets: int
    placed_bytes: int
    """What was put in its place: neither repeated nor late."""
    rebuilt_packets: int
    """Packets that were lost and have been put together from parity."""
    important_received_packets: int
    received_packets_by_class: tuple[int, ...]
    """Packets received, by the tags that they arrived with: a network may change them."""
    unused_packets: int
    """Packets received that were there already or no longer wanted; most parity among them."""
    rejected_packets: int
    """Datagrams that are replayed, cut off, forged or out of place."""
    known_packets: int
    """Numbers up to the highest that the senders are known to have used."""
    missing_packets: int
    """Numbers of known packets that have not come (yet)."""
    probes: int
    """Questions asked because nothing was heard of a message."""
    bitmaps: int
    """Answers to such questions that said what was missing."""
    avoided_paths: int
    """Times that a source port was left alone because packets from it got lost."""
    stops: int
    """Messages' ends told to their senders, again if need be."""
    sum_due_bytes: tuple[int, ...]
    """Bytes of others' contributions to sums with a loss bound."""
    sum_allowed_bytes: tuple[int, ...]
    """Bytes of those contributions that the bounds would let go missing."""
    sum_missing_bytes: tuple[int, ...]
    """Bytes of those contributions that have not been added."""
    renewal_due_bytes: int
    """Bytes of parameters pulled with a bound."""
    renewal_missing_bytes: int
    """Bytes of those parameters that have not come and kept their older value."""
    wait_s: float
    """The seconds from asking for an operation to the first packet of the peer in it; in all, the
    peers' sum.

    Operations that overlap all count.
    """
    moving_s: float
    """The seconds from the first to the last packet of each of the peer's messages, all together:
    long where the way from it is slow. In all, the peers' sum."""

    @property
    def goodput_bytes_per_s(self) -> float:
        """Payload put in its place per second."""
        return _share(self.placed_bytes, self.seconds)

    @property
    def lost_share(self) -> float:
        """Share of the packets sent to this rank that have not come."""
        return _share(self.missing_packets, self.known_packets)

    @property
    def effective_loss(self) -> float:
        """Share of others' contributions that sums with a loss bound were made without."""
        return _share(sum(self.sum_missing_bytes), sum(self.sum_due_bytes))

    @property
    def allowed_loss(self) -> float:
        """What the loss bounds let `effective_loss` be."""
        return _share(sum(self.sum_allowed_bytes), sum(self.sum_due_bytes))

    @property
    def kept_share(self) -> float:
        """Share of the parameters pulled with a bound that kept their older value."""
        return _share(self.renewal_missing_bytes, self.renewal_due_bytes)

    @property
    def effective_loss_by_class(self) -> tuple[float, ...]:
        """`effective_loss` of the sums of each layer class."""
        pairs = zip(self.sum_missing_bytes, self.sum_due_bytes, strict=True)
        return tuple(_share(missing, due) for missing, due in pairs)

    def __sub__(self, earlier: Self) -> Self:
        result: Self = _minus(self, earlier)
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStats(Traffic):
    """What passed between this rank and one other, and how it stands with it."""

    round_trip_s: float = field(metadata=_NOW)
    """Smoothed, with the peer's processing; 0 if not known yet."""
    credit_packets: int = field(metadata=_NOW)
    """What may be sent to it now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationStats:
    """Operations of one kind that have ended: transfers, all-reduces and so on."""

    ended: int
    failed: int
    """The number of those operations that ended with an error."""
    wait_s: float
    """The seconds from asking for an operation until it had ended, in all; overlapping operations
    all count."""
    last: int = field(metadata=_NOW, repr=False)
    peaks: Peaks = field(metadata=_NOW, repr=False)

    @property
    def longest_wait_s(self) -> float:
        """Longest time from asking for one until it had ended."""
        return self.peaks[0][1] if self.peaks else 0.0

    def __sub__(self, earlier: OperationStats) -> OperationStats:
        return OperationStats(
            ended=self.ended - earlier.ended,
            failed=self.failed - earlier.failed,
            wait_s=self.wait_s - earlier.wait_s,
            last=self.last,
            peaks=tuple(peak for peak in self.peaks if peak[0] > earlier.last),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStats:
    """What the socket loops of all lanes have done."""

    send_calls: int = 0
    receive_calls: int = 0
    sleeps: int = 0
    refused_batches: int = 0
    sent_bytes_by_address: Mapping[str, int] = field(default_factory=dict)
    """Bytes of datagrams, headers included, that left from each of this rank's addresses."""
    received_bytes_by_address: Mapping[str, int] = field(default_factory=dict)
    """Bytes of datagrams, headers included, that arrived at each of them."""
    segmentation: bool = field(default=False, metadata=_NOW)
    """Whether the kernel cuts batches into packets (GSO)."""
    coalescing: bool = field(default=False, metadata=_NOW)
    """Whether the kernel joins packets into batches (GRO)."""

    def __sub__(self, earlier: LoopStats) -> LoopStats:
        result: LoopStats = _minus(self, earlier)
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportStats:
    """A snapshot of one rank's transport, or the difference of two."""

    rank: int = field(metadata=_NOW)
    total: Traffic
    peers: Mapping[int, PeerStats]
    operations: Mapping[str, OperationStats]
    busy_s: float
    """The seconds in which at least one operation was under way that has ended."""
    loop: LoopStats
    budget_packets: float = field(metadata=_NOW)
    """What all senders together may have under way to this rank."""
    deadline_s: float = field(metadata=_NOW)
    """What any operation may take."""
    under_way: int = field(metadata=_NOW)
    """Operations that have not ended, but for receives that may wait for ever."""
    oldest_s: float = field(metadata=_NOW)
    """How long ago the oldest of them was asked for."""

    @property
    def seconds(self) -> float:
        """Length of the interval."""
        return self.total.seconds

    @property
    def wait_s(self) -> float:
        """The seconds that operations took from asking to their end; overlapping ones all count."""
        return sum(each.wait_s for each in self.operations.values())

    @property
    def longest_wait_s(self) -> float:
        """The longest that an operation took that has ended."""
        return max((each.longest_wait_s for each in self.operations.values()), default=0.0)

    @property
    def deadline_left_s(self) -> float:
        """What the operation that came nearest to its deadline had, or still has, left of it."""
        return self.deadline_s - max(self.longest_wait_s, self.oldest_s)

    def __sub__(self, earlier: TransportStats) -> TransportStats:
        result: TransportStats = _minus(self, earlier)
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class TagLoss:
    """Shares of what one rank sent to another that did not arrive, by what it was tagged as.

    Only both ends together know: a packet that is lost takes its tags along.
    """

    important: float
    ordinary: float
    by_class: tuple[float, ...]


def loss_by_tag(sender: TransportStats, receiver: TransportStats) -> TagLoss:
    """Return what got lost between two ranks, from both ends' snapshots of about one interval."""
    sent, received = sender.peers[receiver.rank], receiver.peers[sender.rank]
    ordinary_sent = sent.sent_packets - sent.important_sent_packets
    ordinary_received = received.received_packets - received.important_received_packets
    by_class = zip(sent.sent_packets_by_class, received.received_packets_by_class, strict=True)
    return TagLoss(
        important=_share(
            sent.important_sent_packets - received.important_received_packets,
            sent.important_sent_packets,
        ),
        ordinary=_share(ordinary_sent - ordinary_received, ordinary_sent),
        by_class=tuple(_share(there - here, there) for there, here in by_class),
    )


_COLUMNS: Final = {
    "sent_packets": [Counter.SENT],
    "sent_bytes": [Counter.SENT_BYTES],
    "sent_again_packets": [Counter.SENT_AGAIN],
    "parity_packets": [Counter.PARITY_SENT],
    "refused_packets": [Counter.REFUSED],
    "important_sent_packets": [Counter.IMPORTANT_SENT],
    "received_packets": [Counter.RECEIVED],
    "placed_bytes": [Counter.RECEIVED_BYTES],
    "rebuilt_packets": [Counter.REBUILT],
    "important_received_packets": [Counter.IMPORTANT_RECEIVED],
    "unused_packets": [
        Counter.REPEATED,
        Counter.LATE,
        Counter.STALE,
        Counter.UNEXPECTED,
        Counter.EARLY,
    ],
    "rejected_packets": [
        Counter.REPLAYED,
        Counter.TRUNCATED,
        Counter.OTHER_VERSION,
        Counter.FOREIGN,
        Counter.MISPLACED,
        Counter.UNKNOWN_KIND,
    ],
    "probes": [Counter.PROBES],
    "bitmaps": [Counter.BITMAPS],
    "avoided_paths": [Counter.AVOIDED],
    "stops": [Counter.STOPS],
}


def _numbers_of(counts: list[int]) -> dict[str, Any]:
    """Return the fields of `Traffic` that one row of the table of counters says."""
    numbers: dict[str, Any] = {
        name: sum(counts[column] for column in columns) for name, columns in _COLUMNS.items()
    }
    for name, first in (
        ("sent_packets_by_class", SENT_BY_TAG),
        ("received_packets_by_class", RECEIVED_BY_TAG),
    ):
        # class 0 has the highest tag
        numbers[name] = tuple(counts[first + CLASSES - 1 - each] for each in range(CLASSES))
    return numbers


def read_traffic(
    states: Sequence[State], entries: LogEntries, *, rank: int, seconds: float
) -> tuple[Traffic, dict[int, PeerStats]]:
    """Return what passed in all and by peer, `seconds` after the endpoints were made.

    `states` are those of the lanes. Round trips are the first one's, which all operations use.
    """
    rows = np.stack([state.peers for state in states])
    table = np.sum([state.counters for state in states], axis=0)
    sums = {
        "sum_due_bytes": entries.sum_due,
        "sum_allowed_bytes": entries.sum_allowed,
        "sum_missing_bytes": entries.sum_missing,
    }
    known = rows["end"].sum(axis=0)
    missing = np.maximum(0, rows["end"] - rows["received"]).sum(axis=0)
    credit = np.maximum(0, rows["granted"] - rows["next_number"]).sum(axis=0).tolist()
    round_trips = (rows[0]["smoothed_rtt"] / 1e6).tolist()

    def traffic(of: int | slice) -> dict[str, Any]:
        of_all = isinstance(of, slice)
        return {
            "seconds": seconds,
            **_numbers_of((table.sum(axis=0) if of_all else table[of]).tolist()),
            "known_packets": int(known[of].sum()),
            "missing_packets": int(missing[of].sum()),
            "renewal_due_bytes": int(entries.renewal_due[of].sum()),
            "renewal_missing_bytes": int(entries.renewal_missing[of].sum()),
            "wait_s": int(entries.waited_us[of].sum()) / 1e6,
            "moving_s": int(entries.moved_us[of].sum()) / 1e6,
            **{
                name: tuple((part.sum(axis=0) if of_all else part[of]).tolist())
                for name, part in sums.items()
            },
        }

    peers = {
        peer: PeerStats(
            **traffic(peer), round_trip_s=round_trips[peer], credit_packets=credit[peer]
        )
        for peer in range(len(known))
        if peer != rank
    }
    return Traffic(**traffic(slice(None))), peers


def operation_stats(kinds: Mapping[str, OperationTally]) -> dict[str, OperationStats]:
    """Return what has been noted of every kind of operation."""
    return {
        name: OperationStats(
            ended=kind.ended,
            failed=kind.failed,
            wait_s=kind.wait_s,
            last=kind.ended,
            peaks=kind.peaks,
        )
        for name, kind in sorted(kinds.items())
    }


def loop_stats(row: np.void, *, sent: Mapping[str, int], received: Mapping[str, int]) -> LoopStats:
    """Return what a row of a socket loop's own counts (IO_ROW) says, and the bytes by address."""
    return LoopStats(
        send_calls=int(row["send_calls"]),
        receive_calls=int(row["receive_calls"]),
        sleeps=int(row["waits"]),
        refused_batches=int(row["refusals"]),
        sent_bytes_by_address=sent,
        received_bytes_by_address=received,
        segmentation=bool(row["uses_segmentation"]),
        coalescing=bool(row["uses_coalescing"]),
    )


def joined_loops(loops: Sequence[LoopStats]) -> LoopStats:
    """Return what the loops of all lanes have done together; an offload counts if all have it."""
    return reduce(_joined, loops)


def _joined(one: LoopStats, other: LoopStats) -> LoopStats:
    values: dict[str, Any] = {}
    for each in fields(LoopStats):
        a, b = getattr(one, each.name), getattr(other, each.name)
        if isinstance(a, bool):
            values[each.name] = a and b
        elif isinstance(a, Mapping):
            values[each.name] = {name: a[name] + b[name] for name in a}
        else:
            values[each.name] = a + b
    return LoopStats(**values)
