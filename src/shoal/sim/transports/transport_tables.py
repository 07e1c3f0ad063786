"""The rows that flows, transfers and records are made of, and what a packet says to their ends.

A flow is a message from host to host: `packets` packets, numbered from 0, all but the last of full
size; or the messages of a ring's rounds, one after the other. Its row holds both ends: the sender's
windows, scoreboard and timer, and what the receiver has. Times are picoseconds, sizes bytes on the
link, windows packets.
"""

from __future__ import annotations

from enum import IntEnum, unique
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from shoal.memory import check_room
from shoal.sim.network import FEWER
from shoal.switching import NEVER, PACKET

if TYPE_CHECKING:
    from numpy.typing import NDArray


@unique
class Mode(IntEnum):
    """What a flow is doing."""

    FREE = 0
    COMING = 1
    """The flow begins later."""
    LOCAL = 2
    """The flow stays on its host."""
    OPEN = 3
    """Nothing is known to be lost."""
    RECOVERY = 4
    """Fast recovery: what is known to be lost is sent again, the window has shrunk."""
    TIMED_OUT = 5
    """Everything is taken for lost, the window begins anew."""


FLOW: Final = np.dtype(
    [
        ("key", "<u8"),  # what its packets choose among equal paths by, and are known by
        ("window", "<f8"),  # congestion window
        ("threshold", "<f8"),  # below it the window grows by slow start
        ("una", "<i4"),  # every packet before it is acknowledged
        ("nxt", "<i4"),  # the first that was never sent
        ("lost_to", "<i4"),  # of those before it, what is not acknowledged is taken for lost
        ("again", "<i4"),  # of those before it, what is not acknowledged has been sent again
        ("highest", "<i4"),  # after the highest acknowledged
        ("above", "<i4"),  # acknowledged, from lost_to on
        ("again_out", "<i4"),  # sent again and not acknowledged yet
        ("recover", "<i4"),  # recovery ends when everything before it is acknowledged
        ("due", "<i8"),  # when the retransmission timer runs out; NEVER: it does not run
        # A line of the processor's cache ends here.
        ("timer_at", "<i8"),  # when the row `timer` is due; NEVER: there is none
        ("smoothed", "<i8"),  # round trip (RFC 6298), picoseconds
        ("variation", "<i8"),  # of it
        ("begun", "<i8"),  # when something was acknowledged last, or the flow began
        ("paced_at", "<i8"),  # no packet may leave before
        ("interval", "<i8"),  # picoseconds from packet to packet at least; 0: as the window says
        ("packets", "<i4"),
        ("timer", "<i4"),  # row of packets; -1: none
        # Another one ends here.
        ("source", "<i4"),
        ("target", "<i4"),
        ("port", "<i4"),  # of the source
        ("back_port", "<i4"),  # of the target
        ("last_size", "<i4"),  # bytes of the last packet, of each piece
        ("backoff", "<i4"),  # timeouts since something was acknowledged
        ("reordering", "<i4"),  # packets acknowledged beyond one before it is taken for lost
        ("transfer", "<i4"),
        ("record", "<i4"),
        ("next", "<i4"),  # free row
        ("mode", "u1"),
        ("is_limited", "u1"),  # by its window, not by what there is to send
        ("is_over", "u1"),  # everything has arrived
        ("is_urgent", "u1"),  # a packet may leave whatever the window says
        ("expected", "<i4"),  # the receiver has every packet before it
        ("bdp", "<f8"),  # packets that fill its path when nobody else is there
        # What congestion controls need for themselves.
        ("fraction", "<f8"),  # DCTCP: running share of marked packets (alpha)
        ("echoes", "<i4"),  # acknowledgements since the last update of it
        ("marked", "<i4"),  # of them, those that told of a mark
        ("observed_to", "<i4"),  # the update comes when everything before it is acknowledged
        ("reduced_to", "<i4"),  # no further reduction before this one itself is acknowledged
        ("epoch", "<i8"),  # CUBIC: when congestion avoidance began; -1: it has not
        ("peak", "<f8"),  # window before the last reduction (W_max)
        ("rise_s", "<f8"),  # seconds until the window is there again (K)
        ("reno", "<f8"),  # window that Reno would have (W_est)
        ("prior", "<f8"),  # window when the last reduction came (cwnd_prior); 0: none has
        ("shortest", "<i8"),  # round trip so far; NEVER: none is known
        ("round_shortest", "<i8"),  # of a round of slow start
        ("round_at", "<i8"),  # when it began
        ("train_at", "<i8"),  # when the last acknowledgement of its first train came
        ("round_to", "<i4"),  # it ends when everything up to this one is acknowledged
        ("samples", "u1"),  # of its round trip
        ("has_left", "u1"),  # slow start, before a loss
        # What recovery needs (`reduction`).
        ("probes_new", "u1"),  # the probe is a packet that was never sent before
        ("entered", "<f8"),  # window when it began
        ("delivered", "<i4"),  # packets since
        ("sent_in_recovery", "<i4"),
        # What finds losses that three later packets do not tell of (`probing`).
        ("probe_due", "<i8"),  # when to probe; NEVER: not
        ("probe_at", "<i8"),  # when the probe that is under way was sent
        ("timed_out_at", "<i8"),  # when the timer ran out that may have been too short
        ("undo_window", "<f8"),  # what it was then; 0: there is nothing to take back
        ("undo_threshold", "<f8"),
        ("overtaken_at", "<i8"),  # when what is overtaken is lost
        ("watched_at", "<i8"),  # since when the first missing packet is known to be sent again
        ("probe_to", "<i4"),  # what is acknowledged then ends the probe; -1: there is none
        ("overtaken_to", "<i4"),  # those before it have been overtaken; -1: none is watched
        ("watched", "<i4"),  # the first missing packet; -1: none is watched
        ("chosen", "<i4"),  # is to be sent again next; -1: what is lost, in order
        ("available", "<i4"),  # packets that there are to send by now
        # What makes flows rounds of a ring, over connections that stay (`connections`).
        ("piece", "<i4"),  # packets of a round, of which the last is `last_size` long
        ("feeds", "<i4"),  # the flow that sends on what arrives, a round later; -1: none
        ("connection", "<i4"),  # row of what outlasts it; -1: nothing does
    ],
    align=True,
)

RECORD: Final = np.dtype(
    [
        ("start", "<i8"),
        ("end", "<i8"),  # when its last byte had arrived; -1: it has not yet
        ("size", "<i8"),  # bytes
        ("received", "<i8"),  # bytes, each packet's counted once
        ("source", "<i4"),
        ("target", "<i4"),
        ("packets", "<i4"),
        ("retransmitted", "<i4"),  # packets
        ("timeouts", "<i4"),
        ("recoveries", "<i4"),  # fast recoveries
        ("marked", "<i4"),  # packets that arrived with a congestion mark
        ("duplicates", "<i4"),  # packets that arrived though they had before
    ],
    align=True,
)
"""What has become of a flow, kept when its row is used again."""

CONNECTION: Final = np.dtype(
    [
        ("used_at", "<i8"),  # until when; -1: not yet
        ("window", "<f8"),
        ("threshold", "<f8"),
        ("smoothed", "<i8"),
        ("variation", "<i8"),
        ("shortest", "<i8"),
        ("epoch", "<i8"),
        ("peak", "<f8"),
        ("rise_s", "<f8"),
        ("reno", "<f8"),
        ("prior", "<f8"),
        ("fraction", "<f8"),
        ("reordering", "<i4"),
        ("has_left", "u1"),
        ("is_busy", "u1"),  # a flow uses it
        ("pad", "u1", (2,)),
    ],
    align=True,
)
"""What flows leave to the next ones between the same hosts; the fields are as in `FLOW`."""

TRANSFER: Final = np.dtype([("flows", "<i4"), ("next", "<i4")], align=True)

CORE: Final = np.dtype(
    [
        ("free_flow", "<i4"),
        ("free_transfer", "<i4"),
        ("flows", "<i4"),  # rows in use
        ("timers", "<i4"),  # rows of packets that are theirs
        ("finished", "<i4"),  # transfers that nobody has taken yet
        ("fed", "<i4"),  # flow that has something to send on, and has not been asked; -1: none
        ("ended", "<i8"),  # flows
        ("given_up", "<i8"),  # flows whose sender has stopped trying
        ("started", "<i8"),  # flows, ever: the number of records
        ("seed", "<i8"),  # their keys are the mixed numbers from here on
        ("first_owner", "<i8"),  # of packets, that is the first row of flows
    ],
    align=True,
)

RULES: Final = np.dtype(
    [
        ("control", "<i4"),
        ("frame_bytes", "<i4"),
        ("ack_bytes", "<i4"),
        ("reordering", "<i4"),
        ("most_reordering", "<i4"),
        ("local_rate", "<i8"),  # bits per second
        ("first_window", "<f8"),
        ("most_window", "<f8"),
        ("fixed_window", "<f8"),  # of controls that are given one; 0: the path's own
        ("least_timeout", "<i8"),
        ("most_timeout", "<i8"),
        ("give_up", "<i8"),
        ("queue", "u1"),
        ("ack_queue", "u1"),
        ("ecn", "u1"),  # bits of every packet sent
        ("backs_off", "u1"),  # a timeout that follows on another comes twice as late
        ("recovers_fast", "u1"),  # what is overtaken by others is taken for lost
        ("probes", "u1"),  # it looks for losses of which nothing tells (RFC 8985)
        ("reduces", "u1"),  # in recovery the window shrinks, over a round trip
        ("pad", "u1", (1,)),
    ],
    align=True,
)

_ENDS: Final = PACKET.fields["line"][1] if PACKET.fields else 0
_PAD: Final = PACKET.fields["pad"][1] if PACKET.fields else 0

SEGMENT: Final = np.dtype(
    {
        "names": ["echo", "run", "sequence", "ack"],
        "formats": ["u1", "u1", "<i4", "<i4"],
        "offsets": [_PAD, _PAD + 1, _ENDS, _ENDS + 4],
        "itemsize": PACKET.itemsize,
    }
)
"""What a row of packets holds that only its ends look at, in bytes that the network leaves alone.

`sequence` is the packet's, or of an acknowledgement that of the packet that it answers; `run` says
how many just before that have arrived as well (the first SACK block, RFC 2018), `ack` which packet
the receiver is waiting for, `echo` how the packet came: with a congestion mark, for a second time
(`receiving`).
"""

Row: TypeAlias = Any


class Ends(NamedTuple):
    """Everything the ends of flows know. Compiled functions take it whole."""

    core: NDArray[np.void]
    rules: NDArray[np.void]
    flows: NDArray[np.void]
    acknowledged: NDArray[np.uint64]
    """A bit for every packet of a flow from `una` on that is acknowledged: a ring for each flow."""
    arrived: NDArray[np.uint64]
    """A bit for every packet of a flow after `expected` that the receiver has: a ring for each
    flow."""
    transfers: NDArray[np.void]
    finished: NDArray[np.int32]
    records: NDArray[np.void]
    connections: NDArray[np.void]
    """What flows leave to the next ones between the same hosts: rows of `CONNECTION`."""
    local_free_at: NDArray[np.int64]
    """The time at which what has been sent within each host is through."""
    segments: NDArray[np.void]
    """The packets' rows, as `SEGMENT`."""


_BY_FLOW: Final = ("flows", "acknowledged", "arrived", "transfers", "finished")


def new_ends(packets: NDArray[np.void], *, flows: int, hosts: int, most_window: int) -> Ends:
    """Return the tables of flows whose packets lie in `packets`; the rules are not written yet.

    `flows` is how many there may be at once, `most_window`, a power of two of 64 or more, how many
    packets may lie between the first that has not arrived and the last that was sent.
    """
    ends = Ends(
        core=np.zeros(1, CORE),
        rules=np.zeros(1, RULES),
        flows=np.zeros(flows, FLOW),
        acknowledged=np.zeros((flows, most_window // 64), np.uint64),
        arrived=np.zeros((flows, most_window // 64), np.uint64),
        transfers=np.zeros(flows, TRANSFER),
        finished=np.zeros(flows, np.int32),
        records=np.zeros(0, RECORD),
        connections=np.zeros(0, CONNECTION),
        local_free_at=np.zeros(hosts, np.int64),
        segments=packets.view(SEGMENT),
    )
    ends.core["fed"] = -1
    for table in (ends.flows, ends.transfers):
        table["next"] = np.arange(1, flows + 1)
        table["next"][-1] = -1
    ends.flows["due"] = ends.flows["timer_at"] = NEVER
    return ends


def with_room(ends: Ends, flows: int) -> Ends:
    """Return `ends` with room for so many more flows, and for their records.

    Raises `ResourceError` if memory has none.
    """
    core = ends.core[0]
    needed = int(core["started"]) + flows
    if needed > len(ends.records):
        room = max(needed, 2 * len(ends.records))
        check_room(room * RECORD.itemsize, f"What becomes of {room:,} flows", FEWER)
        records = np.zeros(room, RECORD)
        records[: len(ends.records)] = ends.records
        ends = ends._replace(records=records)
    needed, had = int(core["flows"]) + flows, len(ends.flows)
    if needed <= had:
        return ends
    room = max(needed, 2 * had)
    each = sum(getattr(ends, name)[0].nbytes for name in _BY_FLOW)
    check_room(room * each, f"A network of {room:,} flows at once", FEWER)
    hosts, words = len(ends.local_free_at), ends.arrived.shape[1]
    grown = new_ends(ends.segments, flows=room, hosts=hosts, most_window=64 * words)
    tables = {name: getattr(grown, name) for name in _BY_FLOW}
    for name, table in tables.items():
        table[:had] = getattr(ends, name)
    for name, free in (("flows", "free_flow"), ("transfers", "free_transfer")):
        tables[name]["next"][-1] = core[free]
        core[free] = had
    return ends._replace(**tables)
