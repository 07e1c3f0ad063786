"""What ports and links are to be like, in people's units, and writing it into the tables.

Settings can be written again at any time between two calls of `advance`: what is waiting or under
way stays, what comes later meets the new settings.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shoal.errors import UsageError
from shoal.switching.tables import CAPABLE, COLORS, NEVER, ONE, PICOSECONDS, PLAIN, QUEUES

if TYPE_CHECKING:
    from shoal.switching.tables import Row, State

LARGEST_SHARE = 16.0
LARGEST_WEIGHT = 15
SLOWEST_RATE = 1_000
"""Bits per second; a packet then takes minutes."""
_LONGEST_BYTE = 2**32 - 1
"""Picoseconds of a byte that a port's row has room for."""
LONGEST_DELAY_S = 60.0
DSCPS = 64

CLASS_SELECTORS = tuple(7 - (dscp >> 3) for dscp in range(DSCPS))
"""The queue of each DSCP: its three upper bits say how urgent, 7 the most; queue 0 comes first."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The bytes that wait at which a color is marked or dropped; see `drop_profile`."""

    least_bytes: int
    most_bytes: int
    probability: float = 1.0

    def __post_init__(self) -> None:
        """Raise `UsageError` for what no switch can be told."""
        if not 0 <= self.least_bytes <= self.most_bytes:
            message = (
                f"A drop profile begins at 0 bytes or more and not above its end,"
                f" not at {self.least_bytes} of {self.most_bytes}."
            )
            raise UsageError(message)
        _check_share("The probability of a drop profile", self.probability)


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue's limits (None: none but the port's) and profiles (None: only limits drop)."""

    limit_bytes: int | None = None
    limit_packets: int | None = None
    share: float = 1.0
    """The share of the free bytes of a shared buffer that this queue may fill: the alpha of dynamic
    thresholds."""
    average_weight: int = 0
    """Profiles look at a running average that moves by 2 ** -weight; 0: at the queue itself."""
    plain: Profile | None = None
    capable: Profile | None = None

    def __post_init__(self) -> None:
        """Raise `UsageError` for what no switch can be told."""
        _check_limits("queue", self.limit_bytes, self.limit_packets)
        if not 0 < self.share <= LARGEST_SHARE:
            message = f"A queue's share is more than 0 and at most 16, not {self.share:g}."
            raise UsageError(message)
        if not 0 <= self.average_weight <= LARGEST_WEIGHT:
            message = f"The weight of an average is 0 to 15, not {self.average_weight}."
            raise UsageError(message)


@dataclass(frozen=True, slots=True)
class Port:
    """A port's rate in bits per second, its queues and its limits over all queues (None: none)."""

    rate: int
    queues: tuple[Queue, ...] = field(default_factory=lambda: (Queue(),) * QUEUES)
    limit_bytes: int | None = None
    limit_packets: int | None = None

    def __post_init__(self) -> None:
        """Raise `UsageError` for what no switch can be told."""
        if not SLOWEST_RATE <= self.rate <= PICOSECONDS:
            message = f"A rate is 1 kbit/s to 1 Tbit/s, not {self.rate} bit/s."
            raise UsageError(message)
        if len(self.queues) != QUEUES:
            message = f"A port has {QUEUES} queues, not {len(self.queues)}."
            raise UsageError(message)
        _check_limits("port", self.limit_bytes, self.limit_packets)


@dataclass(frozen=True, slots=True)
class Link:
    """What a link does to packets; see `link`. Times in seconds, the rest are probabilities."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    reorder: float = 0.0
    reorder_delay_s: float = 0.0
    loss: float = 0.0
    bad_loss: float = 0.0
    to_bad: float = 0.0
    to_good: float = 0.0
    down: bool = False

    def __post_init__(self) -> None:
        """Raise `UsageError` for what no link can be told."""
        for name in ("delay_s", "jitter_s", "reorder_delay_s"):
            if not 0 <= getattr(self, name) <= LONGEST_DELAY_S:
                message = f"A link's {name} is 0 to 60 seconds, not {getattr(self, name):g}."
                raise UsageError(message)
        for name in ("reorder", "loss", "bad_loss", "to_bad", "to_good"):
            _check_share(f"A link's {name}", getattr(self, name))


def set_port(state: State, number: int, port: Port, buffer: int = -1) -> None:
    """Let port `number` be as `port` says; `buffer` is the row of what it shares, -1: nothing."""
    row = state.ports[number]
    row["buffer"] = buffer
    set_rate(state, number, port.rate)
    _set_limits(row, port.limit_bytes, port.limit_packets)
    for index, queue in enumerate(port.queues, start=number * QUEUES):
        _set_limits(state.queues[index], queue.limit_bytes, queue.limit_packets)
        state.queues[index]["share"] = fixed(queue.share)
        state.queues[index]["weight"] = queue.average_weight
        for color, profile in ((PLAIN, queue.plain), (CAPABLE, queue.capable)):
            _set_profile(state.profiles[index * COLORS + color], profile)


def set_rate(state: State, number: int, rate: int) -> None:
    """Let port `number` send `rate` bits per second."""
    for name, value in rate_fields(rate).items():
        state.ports[number][name] = value


def rate_fields(rate: int) -> dict[str, int]:
    """Return what the row of a port says of its rate, bits per second."""
    byte_time, more = divmod(8 * PICOSECONDS, rate)
    is_whole = more == 0 and byte_time <= _LONGEST_BYTE
    return {"rate": rate, "byte_time": byte_time if is_whole else 0}


def set_link(state: State, number: int, link: Link) -> None:
    """Let the link of port `number` be as `link` says."""
    row = state.links[number]
    row["delay"], row["jitter"] = picoseconds(link.delay_s), picoseconds(link.jitter_s)
    row["reorder"], row["reorder_delay"] = fixed(link.reorder), picoseconds(link.reorder_delay_s)
    row["loss"], row["bad_loss"] = fixed(link.loss), fixed(link.bad_loss)
    row["to_bad"], row["to_good"] = fixed(link.to_bad), fixed(link.to_good)
    row["down"] = link.down
    if link.to_bad == 0:  # bursts that are over leave no link in its bad state
        row["bad"] = 0


def fixed(share: float) -> int:
    """Return `share` in the fixed point of the tables."""
    return round(share * ONE)


def picoseconds(seconds: float) -> int:
    """Return `seconds` in picoseconds, rounded."""
    return round(seconds * PICOSECONDS)


def _set_limits(row: Row, limit_bytes: int | None, limit_packets: int | None) -> None:
    row["limit_bytes"] = NEVER if limit_bytes is None else limit_bytes
    row["limit_packets"] = NEVER if limit_packets is None else limit_packets


def _set_profile(row: Row, profile: Profile | None) -> None:
    row["least"] = NEVER if profile is None else profile.least_bytes
    row["most"] = NEVER if profile is None else profile.most_bytes
    row["probability"] = 0 if profile is None else fixed(profile.probability)


def _check_limits(what: str, limit_bytes: int | None, limit_packets: int | None) -> None:
    for limit, unit in ((limit_bytes, "bytes"), (limit_packets, "packets")):
        if limit is not None and limit < 1:
            message = f"The limit of a {what} is at least 1 of its {unit}, not {limit}."
            raise UsageError(message)


def _check_share(what: str, share: float) -> None:
    if not 0 <= share <= 1:
        message = f"{what} is 0 to 1, not {share:g}."
        raise UsageError(message)
