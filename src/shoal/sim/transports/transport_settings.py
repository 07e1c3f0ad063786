"""What a transport is to be like, in people's units, and writing it into the rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from shoal.errors import UsageError
from shoal.sim.packet.window_tables import LEAST_BYTES
from shoal.sim.transports.controls import ALL_CONTROLS, ECN_CAPABLE, LOSSLESS, PFABRIC
from shoal.switching import QUEUES, picoseconds

if TYPE_CHECKING:
    from shoal.sim.transports.transport_tables import Row

BEST_EFFORT: Final = 7
"""The queue of packets without a DSCP."""
CAPABLE_BITS: Final = 2
"""The ECN bits of packets that understand marks: ECT(0)."""
USUAL_TIMEOUT_S: Final = 0.2
"""The least one, as Linux has it (RFC 6298 asks for a second)."""
_SMALLEST_RING: Final = 64


@dataclass(frozen=True, slots=True)
class Transport:
    """How hosts send: sizes of packets are bytes on the link, windows packets, times seconds."""

    control: str = "newreno"
    """One of `ALL_CONTROLS`."""
    frame_bytes: int = 1514
    ack_bytes: int = 64
    queue: int = BEST_EFFORT
    """The queue of packets; `pfabric` chooses by itself."""
    ack_queue: int | None = None
    """The queue of acknowledgements. None: that of packets, and the first for `pfabric` and
    `lossless`, whose windows have no room for acknowledgements that wait behind what goes the other
    way."""
    first_window: int = 10
    """RFC 6928; not of `lossless` and `pfabric`."""
    window: int | None = None
    """The window of `lossless`, and the first window of `pfabric`. None: what fills the path."""
    most_window: int = 1024
    """What a receiver has room for; a power of two, 64 or more."""
    min_timeout_s: float | None = None
    """The least time after which a packet is sent again unasked. None: 200 ms, and for `pfabric`
    three round trips of an idle path."""
    max_timeout_s: float = 60.0
    give_up_s: float = 100.0
    """The seconds without an answer after which a sender stops trying (RFC 1122, R2)."""
    reordering: int = 3
    """The number of later packets whose acknowledgement means that one is lost."""
    most_reordering: int = 300
    """The largest value to which `reordering` rises where packets turn out to have been overtaken
    (Linux)."""
    tail_probes: bool = True
    """Whether losses are looked for that no later packets show (RFC 8985), and a timeout that
    was too short is taken back (RFC 3522), as Linux does and ns-3 does not. Not by `pfabric`."""

    def __post_init__(self) -> None:
        """Raise `UsageError` for what no transport can be told."""
        if self.control not in ALL_CONTROLS:
            message = f"There is no control {self.control!r}; there are {', '.join(ALL_CONTROLS)}."
            raise UsageError(message)
        if not LEAST_BYTES <= self.ack_bytes <= self.frame_bytes:
            message = (
                f"Packets have {LEAST_BYTES} bytes or more, and no fewer than acknowledgements,"
                f" not {self.frame_bytes} and {self.ack_bytes}."
            )
            raise UsageError(message)
        if not (0 <= self.queue < QUEUES and 0 <= (self.ack_queue or 0) < QUEUES):
            message = f"Queues are 0 to 7, not {self.queue} and {self.ack_queue}."
            raise UsageError(message)
        if self.most_window < _SMALLEST_RING or self.most_window & (self.most_window - 1):
            message = (
                f"The largest window is a power of two from 64 on, not {self.most_window} packets."
            )
            raise UsageError(message)
        self._check_windows()
        self._check_times()

    def _check_windows(self) -> None:
        for what, window in (("first", self.first_window), ("given", self.window or 1)):
            if not 1 <= window <= self.most_window:
                message = (
                    f"The {what} window is 1 to {self.most_window} packets (most_window=),"
                    f" not {window}."
                )
                raise UsageError(message)
        if not 1 <= self.reordering <= self.most_reordering:
            message = (
                "A packet is overtaken by 1 or more before it is taken for lost, and by no more"
                f" than most_reordering, not {self.reordering} of {self.most_reordering}."
            )
            raise UsageError(message)

    def _check_times(self) -> None:
        least = USUAL_TIMEOUT_S if self.min_timeout_s is None else self.min_timeout_s
        if not 0 < least <= self.max_timeout_s or self.give_up_s <= 0:
            message = (
                "Timeouts are more than 0 s and the least no more than the largest, not"
                f" {least:g} and {self.max_timeout_s:g} s; a sender gives up after"
                f" {self.give_up_s:g} s."
            )
            raise UsageError(message)


def write_rules(rules: Row, transport: Transport, *, local_rate: float) -> None:
    """Let `rules` be as `transport` says; `local_rate` is bits per second within a host."""
    control = ALL_CONTROLS[transport.control]
    is_pfabric = control == PFABRIC
    usual_timeout_s = 0.0 if is_pfabric else USUAL_TIMEOUT_S
    usual_ack_queue = 0 if control in (PFABRIC, LOSSLESS) else transport.queue
    least = usual_timeout_s if transport.min_timeout_s is None else transport.min_timeout_s
    rules["control"] = control
    rules["frame_bytes"], rules["ack_bytes"] = transport.frame_bytes, transport.ack_bytes
    rules["reordering"] = transport.reordering
    rules["most_reordering"] = transport.most_reordering
    rules["local_rate"] = round(local_rate)
    rules["first_window"] = transport.first_window
    rules["fixed_window"] = transport.window or 0
    rules["most_window"] = transport.most_window
    rules["least_timeout"] = picoseconds(least)
    rules["most_timeout"] = picoseconds(transport.max_timeout_s)
    rules["give_up"] = picoseconds(transport.give_up_s)
    rules["queue"] = transport.queue
    rules["ack_queue"] = usual_ack_queue if transport.ack_queue is None else transport.ack_queue
    rules["ecn"] = CAPABLE_BITS if control in ECN_CAPABLE else 0
    rules["backs_off"] = rules["recovers_fast"] = not is_pfabric
    rules["probes"] = transport.tail_probes and not is_pfabric
    rules["reduces"] = control != LOSSLESS
