"""The state of one endpoint: tables of peers, operations, messages and gates, and nothing else.

An operation is one collective (or one point-to-point transfer) as this rank sees it: messages that
go out, messages that come in, and gates between them. A gate opens when the messages that lead to
it have come in; then the messages behind it may go out. That is all there is to a collective, so
the compiled code carries any of them out without asking Python between two steps.

The rows of an operation live in arrays of its own (`messages.py`), which its row here names by
address. Times are microseconds of a monotonic clock, clocks and ages of packets those of their
senders' monotonic clocks, of which only differences of differences are used.
"""

from __future__ import annotations

from enum import IntEnum, unique
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from shoal.compiled import I4, I8, U8, Zeros, rows_of_zeros
from shoal.transport import replay

if TYPE_CHECKING:
    from numpy.typing import NDArray

# ---- messages -----------------------------------------------------------------------------------

BLOCKED: Final = 0
"""Outgoing: its gate is shut."""
UNREADY: Final = 1
"""Outgoing: the receiver has not said that it is ready."""
SENDING: Final = 2
"""Outgoing: has segments to send."""
ASKING: Final = 3
"""Outgoing: all segments are sent; waiting to hear what is missing."""
DONE: Final = 4
"""Outgoing: stopped by the receiver. Incoming: enough has arrived."""
EXPECTED: Final = 5
"""Incoming: not enough has arrived."""

WRITE: Final = 0
"""Incoming: replace what is there."""
ADD: Final = 1
"""Incoming: add to what is there."""

NEVER: Final = np.iinfo(np.int64).max

OUTGOING: Final = np.dtype(
    [
        ("address", "<i8"),  # of the payload
        ("start", "<i8"),  # of the payload in the operation's buffer, bytes
        ("size", "<i8"),  # bytes on the wire
        ("pending", "<i8"),  # address of the bitmap of segments to send
        ("important", "<i8"),  # address of the bitmap of important segments; 0: all are
        ("missing", "<i8"),  # address of the bitmap of undelivered segments; 0: nobody asks
        ("again", "<i8"),  # address of the bitmap of segments that were missing when last asked
        ("marks", "<i8"),  # address of an int32 a segment: its path, `spraying.turn_mark`; 0: none
        ("kept", "<i8"),  # address for what the shard's held, in memory's type; 0: not kept
        ("kept_used", "<i8"),  # address of how many segments the shard keeps there (int64)
        ("kept_room", "<i4"),  # segments
        ("kept_first", "<i4"),  # which of them is this message's first
        ("kept_segments", "<i4"),  # how many are its
        ("peer", "<i4"),  # rank
        ("segments", "<i4"),
        ("unsent", "<i4"),  # set bits in `pending`
        ("important_left", "<i4"),  # of them, important ones
        ("cursor", "<i4"),  # where to look for the next one
        ("gate", "<i4"),  # that must open first; -1: none
        ("next_blocked", "<i4"),  # row behind the same gate; -1: none
        ("next", "<i8"),  # handle of the next in the peer's queue; -1: none
        ("pass_end", "<i8"),  # the packet number after the last pass over it
        ("probes", "<i4"),  # unanswered
        ("message", "<u2"),  # its index between the two
        ("layer_class", "u1"),  # 0 is the most urgent
        ("state", "u1"),
        ("ready", "u1"),
        ("passes", "u1"),  # how often all of `pending` has been sent
        ("form", "u1"),  # of the elements, in memory and on the wire
        ("rotates", "u1"),  # whether to begin at another segment in every iteration
        ("parity_code", "u1"),  # how many parities each block may have, `parity.rows_of`
        ("parity_count", "u1"),  # how many are sent
        ("parity_left", "u1"),  # of them, those still to be sent
        ("twice", "u1"),  # whether this pass goes over its segments for the second time
        ("hurried", "u1"),  # whether the rest leaves before an answer to the latest pass comes
        ("pad", "u1", (3,)),
    ],
    align=True,
)

INCOMING: Final = np.dtype(
    [
        ("address", "<i8"),
        ("start", "<i8"),
        ("size", "<i8"),
        ("seen", "<i8"),  # address of the bitmap of segments that are missing
        ("counts", "<i8"),  # address of a contribution count per segment (uint16); 0: not counted
        ("received", "<i8"),  # distinct bytes
        ("target", "<i8"),  # bytes that are enough
        ("saved", "<i8"),  # address of what its shard has left (int64); 0: may lose none
        ("first_at", "<i8"),  # when its first segment came; 0: none yet
        ("last_at", "<i8"),  # when the latest one came that was not there
        ("parities", "<i8"),  # bitmap of the parities that have come
        ("parity_first", "<i4"),  # slot of the first; -1: they have none
        ("parity_owed", "<i4"),  # packets granted to its sender besides its segments
        ("peer", "<i4"),
        ("segments", "<i4"),
        ("gate", "<i4"),  # that it leads to; -1: none
        ("behind", "<i4"),  # outgoing row that must be done before this overwrites it; -1: none
        ("message", "<u2"),
        ("mode", "u1"),
        ("state", "u1"),
        ("form", "u1"),
        ("asked", "u1"),  # whether the sender has finished a pass
        ("parity_code", "u1"),  # how many parities each block has, once a packet has come
        ("heard", "u1"),  # whether one has
        ("pad", "u1", (4,)),
    ],
    align=True,
)

GATE: Final = np.dtype(
    [
        ("address", "<i8"),  # of the part of the buffer that is complete when it opens
        ("size", "<i8"),  # its bytes in memory
        ("counts", "<i8"),  # address of its contribution counts; 0: none
        ("scale", "<f8"),  # what to multiply it by
        ("awaited", "<i4"),  # messages that lead to it
        ("remaining", "<i4"),  # those still to come in
        ("first_blocked", "<i4"),  # outgoing row; -1: none
        ("contributions", "<i4"),  # how many there are if all arrive
        ("form", "u1"),
        ("policy", "u1"),
        ("pad", "u1", (6,)),
    ],
    align=True,
)

OPERATION: Final = np.dtype(
    [
        ("stream", "<u4"),
        ("iteration", "<u4"),
        ("outgoing", "<i8"),  # addresses of the tables, and their lengths
        ("incoming", "<i8"),
        ("gates", "<i8"),
        ("outgoing_starts", "<i8"),  # int32 per rank and one more: where its rows start
        ("incoming_starts", "<i8"),
        ("probe_times", "<i8"),  # int64 per outgoing row: when to ask what is missing, or NEVER
        ("answer_times", "<i8"),  # int64 per incoming row: when to say what is missing, or NEVER
        ("due_at", "<i8"),  # none of them is earlier
        ("ready_at", "<i8"),  # when to say READY again
        ("ready_wait", "<i8"),
        ("started", "<i8"),
        ("outgoing_count", "<i4"),
        ("incoming_count", "<i4"),
        ("gate_count", "<i4"),
        ("remaining", "<i4"),  # messages not done
        ("receivers", "<i4"),  # ranks that messages go to
        ("queued", "<i4"),  # segments of messages in peers' queues that are still to be sent
        ("to_come", "<i4"),  # segments of messages that have not been in any yet
        ("agreed", "<u4"),  # what all who take part in it must agree on, as a number
        ("misfit", "<i4"),  # 1 + a rank that does something else; 0: none has been heard of
        ("order", "<i8"),  # of posting
        ("active", "u1"),
        ("keeps_missing", "u1"),  # whether STOPs must say what was missing
        ("pad", "u1", (6,)),
    ],
    align=True,
)

NEAR: Final = 2
"""The value of `known` for a peer that is known and on this host, where others are not."""

IN_MEMORY: Final = 3
"""The value of `known` for a peer on this host with which messages go through shared memory."""

PEER: Final = np.dtype(
    [
        # Looked at for every packet, and by the timer.
        ("tag_out", "<u4"),  # what it wants to see in our packets
        ("tag_in", "<u4"),  # what we want to see in its packets
        ("next_number", "<i8"),
        ("granted", "<i8"),  # packet numbers below this may be sent
        ("queue", "<i8"),  # handle of the first message with segments to send; -1: none
        ("credit_probe_at", "<i8"),
        ("end", "<i8"),  # one more than the highest packet number that is known from it
        ("grant", "<i8"),
        ("expecting", "<i4"),  # segments that it owes
        ("feedback_due", "u1"),
        ("known", "u1"),  # whether tags and addresses are set; or NEAR or IN_MEMORY
        ("lost", "u1"),  # whether it has been declared dead
        ("turn", "u1"),  # to be granted credit: whether it waits for one, or has one
        # A line of the processor's cache ends here. As a receiver from it:
        ("received", "<i8"),
        ("marked", "<i8"),
        ("grant_sent", "<i8"),
        ("last_clock", "<i8"),
        ("last_arrival", "<i8"),
        ("lateness", "<f4"),  # how far behind others of their class packets arrive, microseconds
        ("last_class", "u1"),  # of the packet with the highest number, as its IP header has it
        ("pad3", "u1", (3,)),
        ("judged", "<i8"),  # packet numbers below this are here or count as lost
        ("reordering", "<f8"),  # packets that may overtake one before it counts as lost
        # Another one ends here.
        ("base_delay", "<i8"),  # smallest clock difference of the current and the last epoch
        ("epoch_delay", "<i8"),  # the current one's, of packets that left at once
        ("epoch_estimate", "<i8"),  # and of all, their senders' guesses when they left included
        ("epoch_end", "<i8"),
        ("lossy_until", "<i8"),  # packet number; something that it sent here got lost lately
        # As a sender to it:
        ("reported_highest", "<i8"),
        ("reported_received", "<i8"),
        ("reported_marked", "<i8"),
        # Another one ends here.
        ("smoothed_rtt", "<f8"),  # microseconds, with the receiver's processing; 0: unknown
        ("rtt_variation", "<f8"),
        ("network_rtt", "<f8"),  # latest, without it
        ("outgoing_lossy_until", "<i8"),  # packet number; something sent to it got lost lately
        ("credit_probes", "<i2"),
        ("gives_turns", "u1"),  # whether it grants credit in turns
        ("pad", "u1"),
        ("next_waiting", "<i4"),  # the rank whose turn is after its own; -1: none
        # rate control
        ("rate", "<f8"),  # bytes per microsecond
        ("next_send_at", "<f8"),
        ("window", "<f8"),  # packets
        # Another one ends here.
        ("mark_fraction", "<f8"),
        ("window_end", "<i8"),
        ("window_marked", "<i8"),
        ("window_start", "<i8"),
        ("previous_rtt", "<f8"),
        ("rtt_slope", "<f8"),
        ("increases", "<i8"),
        ("losses", "<u4"),  # on the way to it, as it says: `losses.losses`
        # As a receiver from it:
        ("spare", "<i4"),  # packets that it may still send of messages that are done
        # Another one ends here.
        ("known_lately", "<f8"),  # packets that have come or are lost, the older the less
        ("lost_lately", "<f8"),  # of them, those that are lost
        ("bunches", "<f8"),  # and in how many bunches
        ("last_lost", "<i8"),
        ("pad2", "u1", (32,)),
    ],
    align=True,
)
"""Each host of a simulated network has a row for each other one: more than fit any cache."""

CORE: Final = np.dtype(
    [
        ("rank", "<i4"),
        ("segment_bytes", "<i4"),
        ("spray_unit", "<i4"),  # packets on a path before the next one is taken
        ("paths", "<i4"),
        ("path", "<i4"),
        ("path_left", "<i4"),
        ("path_turn", "<i8"),  # how often one has been chosen
        ("paths_at", "<i8"),  # address of what is known of each peer's paths, if there are several
        ("largest_batch", "<i4"),  # packets handed to the socket at once
        ("peer_cursor", "<i4"),
        ("order", "<i8"),
        ("layer_tags", "u1"),
        ("importance_tags", "u1"),
        ("rate_control", "u1"),
        ("stop_early", "u1"),
        ("batch_packets", "<i4"),  # of the batch being written
        ("batch_bytes", "<i4"),
        ("batch_parities", "<i4"),
        ("batch_important", "u1"),
        ("pad2", "u1", (3,)),
        ("control_head", "<i8"),
        ("control_tail", "<i8"),
        ("event_head", "<i8"),
        ("event_tail", "<i8"),
        ("timer_at", "<i8"),
        ("last_operation", "<i4"),
        ("receiving_peers", "<i4"),  # that owe us a message
        ("turns", "<i4"),  # of them, those that have a turn
        ("first_waiting", "<i4"),  # the rank whose turn is next; -1: none
        ("last_waiting", "<i4"),
        ("turn_wait", "<f8"),  # microseconds for which receivers held turns back lately
        ("budget", "<f8"),  # packets that may be under way to this receiver in all
        ("largest_budget", "<f8"),
        ("round_packets", "<f8"),  # that were under way when this round began
        ("round_left", "<f8"),  # of them, those that have neither arrived nor are missing
        ("round_lost", "<f8"),  # packets lost since, beyond what is forgiven
        ("round_arrived", "<i8"),  # packets since
        ("round_delays", "<f8"),  # the sum of their queueing delays, microseconds
        ("round_least", "<i8"),  # and the smallest of them
        ("round_began", "<i8"),  # the last arrival then
        ("round_rate", "<f8"),  # packets per microsecond in the round before
        ("highest_rate", "<f8"),  # lately, of these
        ("shortest_round", "<f8"),  # lately, less what queued, microseconds
        ("lossy", "<f8"),  # 1 where packets got lost in the last round, less the longer ago it was
        ("full", "<f8"),  # the same of rounds in which a port was full
        ("high_delay", "<f8"),  # queueing delay that one packet in ten exceeds, microseconds
        ("high_gaps", "<f8"),  # share of the latest gaps before which a packet exceeded it
        ("high_between", "<f8"),  # and of the packets between them, the share that exceeded it
        ("between", "<i8"),  # packets since the latest gap
        ("between_high", "<i8"),  # and those of them that exceeded it
        ("shallow_until", "<i8"),  # until when ports are taken for shallow, by this host's clock
        ("found_until", "<i8"),  # the same where this rank has found so itself, and tells others
        ("belief", "<i8"),  # how long that was at the last find, microseconds; 0: none yet
        ("forgiving", "<f8"),  # 1 where a message may lose some, less the more rounds ago that was
        ("interval_packets", "<i8"),
        ("interval_lost", "<i8"),
        ("interval_forgiven", "<f8"),  # packets that the bounds of what came would forgive
        ("interval_delay", "<i8"),  # smallest queueing delay in the interval, microseconds
        ("interval_end", "<i8"),
        ("interval_first", "<i8"),  # arrival of its first packet, and of its last
        ("interval_last", "<i8"),
        ("arrivals", "<f8"),  # packets per millisecond while there are any, as a running mean
        ("slow_start", "u1"),  # OVER, DOUBLING or WAITING
        ("pad", "u1", (7,)),
        ("fixed_rate", "<f8"),
        ("waiting", "<i8"),  # bytes of ours that are still in this host, as the caller sees them
        ("own_limit", "<f8"),  # and how many may be there before data are held back
        ("own_rate", "<f8"),  # how fast they leave, bytes per microsecond; 0: nothing ever waited
        ("own_rate_known", "<i8"),  # whether that has been seen, not just guessed
        ("paused_at", "<i8"),  # since when nothing is to be sent, NEVER if something is
        ("short_until", "<i8"),  # until when less may wait, 0 if all may
        ("held_at", "<i8"),  # since when data are held back, NEVER if they are not
        ("held_bytes", "<i8"),  # what was waiting then
        ("look_at", "<i8"),  # when to see again how much is waiting
        ("delay_target", "<f8"),
        ("tolerated_loss", "<f8"),
        ("near_share", "<f8"),  # packets that each rank of this host may have under way besides
        ("parity_at", "<i8"),  # address of the memory for parity
        ("parity_free", "<i8"),  # address of the bitmap of its slots that are free
        ("parity_slots", "<i4"),
        ("parity", "u1"),  # whether to send any
        ("pad3", "u1", (3,)),
        ("post", "<i8"),  # address of its mailboxes with ranks of this host (POST); 0: none
    ],
    align=True,
)

BITMAP_WORDS: Final = 16
"""The words of a message's bitmap: a message has at most 1,024 segments, so that its bitmap fits
any control packet."""

CONTROL: Final = np.dtype(
    [
        ("kind", "u1"),
        ("peer", "<i4"),
        ("stream", "<u4"),
        ("iteration", "<u4"),
        ("message", "<u2"),
        ("agreement", "<u4"),  # of a READY or a MISFIT
        ("bits", "<i4"),  # of the bitmap to append
        ("bitmap", "<u8", (BITMAP_WORDS,)),
    ],
    align=True,
)

KEY: Final = np.dtype(
    [("peer", "<i4"), ("stream", "<u4"), ("iteration", "<u4"), ("agreement", "<u4")], align=True
)

CONTROL_SLOTS: Final = 1 << 12
FINISHED_SLOTS: Final = 1 << 14
EARLY_SLOTS: Final = 1 << 12


@unique
class Counter(IntEnum):
    """What is counted for every peer; the table's last row is for datagrams of no peer."""

    SENT = 0
    """Data packets handed to the operating system."""
    SENT_BYTES = 1
    REFUSED = 2
    """Data packets that the operating system did not take, of those sent."""
    SENT_AGAIN = 3
    CONTROL_SENT = 4
    RECEIVED = 5
    """Data packets that arrived, each number once."""
    RECEIVED_BYTES = 6
    """Payload put in its place."""
    CONTROL_RECEIVED = 7
    REPLAYED = 8
    """Packet number seen before, or too old to tell."""
    REPEATED = 9
    """Segment that had arrived before."""
    LATE = 10
    """Segment of a message that was done."""
    STALE = 11
    """Segment of an operation that is finished."""
    UNEXPECTED = 12
    """Segment of an operation that has not been posted here."""
    TRUNCATED = 13
    """Shorter than it says, or than a header."""
    OTHER_VERSION = 14
    FOREIGN = 15
    """Wrong session tag, or a rank that does not exist."""
    MISPLACED = 16
    """Message, offset or length that the operation does not have."""
    UNKNOWN_KIND = 17
    PROBES = 18
    BITMAPS = 19
    STOPS = 20
    CONTROL_DROPPED = 21
    """Control packets that were not queued for want of room; they are repeated."""
    IMPORTANT_SENT = 22
    IMPORTANT_RECEIVED = 23
    EARLY = 24
    """Segment for a place whose contents still have to be kept, as their STOP is not here yet."""
    MISFITS = 25
    """READYs, and answers to ours, that speak of another operation than this rank's."""
    BY_MEMORY_BYTES = 26
    """Payload, of that sent, that was left in memory which the peer reads."""
    PARITY_SENT = 27
    """Data packets sent that bear parity."""
    REBUILT = 28
    """Segments put together from parity."""
    AVOIDED = 29
    """Times that a path was left alone because packets got lost on it."""


CLASSES: Final = 8
"""Layer classes; as many as a switch has priority queues."""

SENT_BY_TAG: Final = len(Counter)
"""The column of a peer's counters from which data packets sent are counted by the three DSCP bits
that say their class: 7 for class 0, the most urgent, and so on."""

RECEIVED_BY_TAG: Final = SENT_BY_TAG + CLASSES
"""The column from which data packets that arrived are counted so, as the network left the bits."""

COUNTERS: Final = RECEIVED_BY_TAG + CLASSES

Row: TypeAlias = Any
"""One row of a table: a record whose fields are read and written as attributes."""


class State(NamedTuple):
    """Everything an endpoint knows. Compiled functions take it whole."""

    core: NDArray[np.void]
    peers: NDArray[np.void]
    counters: NDArray[np.int64]
    seen: NDArray[np.uint64]
    operations: NDArray[np.void]
    control: NDArray[np.void]
    events: NDArray[np.int32]
    finished: NDArray[np.void]
    early: NDArray[np.void]
    candidates: NDArray[np.uint64]
    """A bit for every peer that something might be sent to now: the others need no look."""


def new_state(
    world_size: int,
    *,
    operations: int = 256,
    control: int = CONTROL_SLOTS,
    finished: int = FINISHED_SLOTS,
    early: int = EARLY_SLOTS,
    zeros: Zeros = rows_of_zeros,
) -> State:
    """Return the state of an endpoint among `world_size` ranks that has not sent anything.

    The others are lengths of its tables, and what gives them their memory.
    """
    state = State(
        core=zeros(1, CORE),
        peers=zeros(world_size, PEER),
        counters=zeros((world_size + 1) * COUNTERS, I8).reshape(-1, COUNTERS),
        seen=zeros(world_size * replay.WORDS, U8).reshape(-1, replay.WORDS),
        operations=zeros(operations, OPERATION),
        control=zeros(control, CONTROL),
        events=zeros(operations, I4),
        finished=zeros(finished, KEY),
        early=zeros(early, KEY),
        candidates=zeros(-(-world_size // 64), U8),
    )
    state.finished["peer"] = state.early["peer"] = -1
    state.peers["queue"] = -1
    state.core["first_waiting"] = -1
    state.peers["credit_probe_at"] = NEVER
    return state
