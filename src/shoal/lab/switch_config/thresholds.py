"""What devices can be told of a queue: one threshold, one limit in bytes; the rest becomes notes.

The switch of the lab has a drop profile for each color. WRED with ECN, as devices and Linux's RED
have it, has one threshold per queue: above it a packet whose ECN bits are 00 is dropped and another
is marked. (docs/papers.md, 1.6.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from shoal.switching import QUEUES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.lab.switch_config.switch_settings import Notes, SwitchSettings
    from shoal.switching import Port, Profile, Queue


LARGEST_LIMIT: Final = (1 << 32) - 1
"""Bytes that a field of 32 bits has room for."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """A threshold that acts from `least` bytes on, ever more often, and always from `most` on."""

    least: int
    most: int
    probability: float
    """The probability just below `most`; more than 0."""
    drops: bool
    """Whether packets that understand no marks are dropped; False: only limits drop them."""


def queues_of(settings: SwitchSettings) -> Iterator[tuple[str, Port, int, Queue]]:
    """Yield every queue with its port's name, its port and its number."""
    for name, port in settings.ports.items():
        for number in range(QUEUES):
            yield name, port, number, port.queues[number]


def threshold_of(name: str, number: int, queue: Queue, notes: Notes) -> Threshold | None:
    """Return the one threshold that comes closest to a queue's profiles; None: it has none.

    It is that of the packets that are dropped, since a drop costs more than a mark.
    """
    plain, capable = queue.plain, queue.capable
    profile = plain or capable
    if profile is None:
        return None
    if capable is None:
        notes.add(
            "Packets that understand marks are marked where the others are dropped;"
            " the spec does not mark them.",
            name,
            number,
        )
    elif plain is not None and plain != capable:
        notes.add(
            f"One threshold for both colors, that of the packets that are dropped;"
            f" the spec marks at {_words(capable)}.",
            name,
            number,
        )
    certain = profile.probability == 0 or profile.least_bytes == profile.most_bytes
    least = profile.most_bytes if certain else profile.least_bytes
    if least == 0:
        notes.add("A threshold of 0 bytes is written as 1 byte.", name, number)
    return Threshold(
        least=max(least, 1),
        most=max(profile.most_bytes, 1),
        probability=1.0 if certain else profile.probability,
        drops=plain is not None,
    )


def percent_of(name: str, number: int, threshold: Threshold, notes: Notes) -> int:
    """Return a threshold's probability in whole percent, at least 1."""
    percent = max(1, round(100 * threshold.probability))
    if not math.isclose(percent, 100 * threshold.probability):
        notes.add(
            f"The probability {threshold.probability:g} is written as {percent} %.", name, number
        )
    return percent


def bytes_limit_of(name: str, port: Port, number: int, notes: Notes) -> int | None:
    """Return the bytes that a queue may hold where only queues have limits; None: any number."""
    own, all_together = port.queues[number].limit_bytes, port.limit_bytes
    if all_together is None:
        return own
    if own is None or own > all_together:
        notes.add(
            f"The port's limit of {all_together} bytes over all queues is written"
            f" as that of each queue.",
            name,
            number,
        )
        return all_together
    notes.add(f"The port's limit of {all_together} bytes over all queues is not written.", name)
    return own


def in_32_bits(name: str, number: int, limit: int, notes: Notes) -> int:
    """Return a queue's limit in bytes, at most `LARGEST_LIMIT`."""
    if limit > LARGEST_LIMIT:
        notes.add(f"The limit of {limit} bytes is written as {LARGEST_LIMIT}.", name, number)
    return min(limit, LARGEST_LIMIT)


def note_packets(settings: SwitchSettings, notes: Notes) -> None:
    """Note limits in packets, where limits are in bytes only."""
    for name, port in settings.ports.items():
        if port.limit_packets is not None:
            notes.add(f"The port's limit of {port.limit_packets} packets is not written.", name)
    for name, _, number, queue in queues_of(settings):
        if queue.limit_packets is not None:
            notes.add(f"The limit of {queue.limit_packets} packets is not written.", name, number)


def note_bytes(settings: SwitchSettings, why: str, notes: Notes) -> None:
    """Note every limit in bytes as not written, and why."""
    for name, port in settings.ports.items():
        if port.limit_bytes is not None:
            notes.add(f"{why}: the port's {port.limit_bytes} bytes are not written.", name)
    for name, _, number, queue in queues_of(settings):
        if queue.limit_bytes is not None:
            notes.add(
                f"{why}: the queue's {queue.limit_bytes} bytes are not written.", name, number
            )


def note_averages(settings: SwitchSettings, notes: Notes) -> None:
    """Note queues whose profiles look at an average, where no weight can be written."""
    for name, _, number, queue in queues_of(settings):
        if queue.average_weight and (queue.plain or queue.capable):
            notes.add(
                f"That profiles look at an average of weight 2^-{queue.average_weight}"
                f" is not written.",
                name,
                number,
            )


def alpha_exponent(
    name: str, number: int, queue: Queue, notes: Notes, *, least: int, most: int
) -> int:
    """Return n where 2^n comes closest to a queue's share of a shared buffer, `least` to `most`."""
    exponent = min(max(round(math.log2(queue.share)), least), most)
    if 2.0**exponent != queue.share:
        notes.add(
            f"The share {queue.share:g} of the free buffer is written as 2^{exponent}.",
            name,
            number,
        )
    return exponent


def in_units(name: str, port: Port, bits: int, unit: str, notes: Notes) -> int:
    """Return a port's rate in units of `bits` bits per second, rounded down, at least 1."""
    value = max(port.rate // bits, 1)
    if value * bits != port.rate:
        notes.add(f"The rate of {port.rate} bit/s is written as {value} {unit}.", name)
    return value


def _words(profile: Profile) -> str:
    if profile.least_bytes == profile.most_bytes:
        return f"{profile.most_bytes} bytes"
    return (
        f"{profile.least_bytes} to {profile.most_bytes} bytes, probability {profile.probability:g}"
    )
