"""How fast to send next, and what rate a way has: the decisions of the rate probe, and no socket.

Streams of packets are sent at growing rates, each twice as fast as the one before, until one does
not arrive as fast as it was to be sent. A longer one, a quarter faster than what arrived, then
gives the figure; where even that keeps up, a hiccup was taken for the limit and the search goes on.
So no stream asks for more than about twice what the way has just carried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from shoal.doctor.probe_facts import RateFacts

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_STREAM_BYTES: Final = 16_000_000
"""The most bytes of one stream."""
MOST_BYTES: Final = 100_000_000
"""The most bytes of all streams of one way: IP packets, headers included."""
BURST: Final = 1000
"""Packets of a burst: enough to meet a loss of 0.3 % with 95 % probability."""

_GAP_S: Final = 0.001
_BURST_S: Final = 5.0
_FIRST_RATE: Final = 10_000_000
_LAST_RATE: Final = 41_000_000_000
_GROWTH: Final = 2
_SHORT_S: Final = 0.05
_SHORT_BYTES: Final = 8_000_000
_LONG_S: Final = 0.2
_ABOVE: Final = 1.25
"""The long stream's rate over what arrived before: enough to keep the slowest link busy."""
_KEPT_UP: Final = 0.9
"""The share of the rate asked for that has to arrive; what gets lost at random on the way is less
than the rest."""
_FEWEST_PACKETS: Final = 16
_HELD: Final = 0.1
"""The share of a stream's time in which it was held back, above which the sender met its own
interface's rate."""
_OVERFLOWED: Final = 0.02
"""The share of a stream's packets lost in the receiver's own socket, above which its program was
too slow."""
_MOST_STREAMS: Final = 24


class StreamFacts(msgspec.Struct, frozen=True):
    """What became of one stream of packets."""

    rate: int
    """The rate that the stream was to have, in bits per second of IP packets."""
    packet_bytes: int
    sent: int
    """Packets."""
    sent_us: int
    """The time from the first packet sent to the last, in microseconds."""
    held_us: int
    """The part of `sent_us` spent waiting for room in the socket: the interface could not take
    more."""
    arrived: int
    """Packets."""
    arrived_rate: int
    """Bits per second between arrivals, the first quarter left out; 0: too few arrived to say."""
    overflowed: int
    """Packets that came into the receiving host and found its socket full."""

    @property
    def sent_bytes(self) -> int:
        """Bytes of IP packets that were sent."""
        return self.sent * self.packet_bytes

    @property
    def sent_rate(self) -> float:
        """Bits per second at which it was sent in fact."""
        return 8e6 * self.sent_bytes / max(1, self.sent_us)


def next_stream(done: Sequence[StreamFacts], packet_bytes: int) -> tuple[int, int] | None:
    """Return the rate (bits per second) and the packets of the next stream; None: no more.

    `done` are those of this way so far, of packets of `packet_bytes`.
    """
    if not done:
        return _short(_FIRST_RATE, packet_bytes)
    carried = max(each.arrived_rate for each in done)
    sent_bytes = sum(each.sent_bytes for each in done)
    if carried == 0 or len(done) == _MOST_STREAMS or sent_bytes > MOST_BYTES - MOST_STREAM_BYTES:
        return None
    last = done[-1]
    if _keeps_up(last):
        faster = last.rate * _GROWTH
        return _short(faster, packet_bytes) if faster <= _LAST_RATE else None
    if len(done) > 1 and not _keeps_up(done[-2]):  # a limit, found and confirmed
        return None
    rate = round((last.arrived_rate or carried) * _ABOVE)
    return rate, _packets(rate, _LONG_S, MOST_STREAM_BYTES, packet_bytes)


def rate_of(done: Sequence[StreamFacts]) -> RateFacts | None:
    """Return what streams say of their way; None: too little arrived."""
    carried = max((each.arrived_rate for each in done), default=0)
    if carried == 0:
        return None
    sent_bytes = sum(each.sent_bytes for each in done)
    last = done[-1]
    if last.arrived_rate and _met_the_network(last):
        return RateFacts(last.arrived_rate, is_least=False, sent_bytes=sent_bytes)
    return RateFacts(carried, is_least=True, sent_bytes=sent_bytes)


def burst_pace(rates: Sequence[RateFacts | None], packet_bytes: int) -> tuple[float, int]:
    """Return the seconds between the packets of a burst, and how many they are.

    They take half of the slowest of `rates` at most, so that what gets lost is not their doing, and
    a burst takes five seconds at most: fewer packets where they must be far apart.
    """
    slowest = min((each.bits_per_s for each in rates if each is not None), default=_LAST_RATE)
    gap_s = min(max(_GAP_S, 2 * 8 * packet_bytes / slowest), _BURST_S / _FEWEST_PACKETS)
    return gap_s, min(BURST, int(_BURST_S / gap_s))


def arrival_rate(arrivals: Sequence[tuple[int, int]]) -> int:
    """Return bits per second of (when in ns, bytes until then) arrivals; 0: they do not say.

    The first quarter of the time is left out: shapers let through more at first, and senders and
    receivers wake up in it.
    """
    ordered = sorted(arrivals)
    if not ordered:
        return 0
    first, last = ordered[0][0], ordered[-1][0]
    later = [each for each in ordered if each[0] >= first + (last - first) / 4]
    took_ns = last - later[0][0]
    return round(8e9 * sum(size for _, size in later[1:]) / took_ns) if took_ns > 0 else 0


def _short(rate: int, packet_bytes: int) -> tuple[int, int]:
    return rate, _packets(rate, _SHORT_S, _SHORT_BYTES, packet_bytes)


def _packets(rate: int, seconds: float, most_bytes: int, packet_bytes: int) -> int:
    wanted = min(rate * seconds / 8, most_bytes) / packet_bytes
    return max(_FEWEST_PACKETS, int(wanted))


def _keeps_up(stream: StreamFacts) -> bool:
    return stream.arrived_rate >= _KEPT_UP * stream.rate


def _met_the_network(stream: StreamFacts) -> bool:
    """Return whether the way, and neither of the two programs, held the stream back."""
    if _keeps_up(stream) or stream.overflowed > _OVERFLOWED * stream.sent:
        return False
    if stream.held_us > _HELD * stream.sent_us:
        return True
    return stream.arrived_rate < _KEPT_UP * stream.sent_rate
