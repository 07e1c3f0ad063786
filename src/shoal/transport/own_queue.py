"""How much of what is sent may wait in this host: little, so that what is urgent does not wait.

What has been handed to the kernel goes in the order of its handing over. A repaired segment, an
answer or a front layer's gradients would wait behind all of it: behind everything that all
receivers together have granted, which on a slow link is tens of milliseconds. So data are held back
here, where the next packet is still to be chosen, while the kernel has as much as the link carries
in TARGET_US. How fast the link drains is seen while nothing is added; a queue that has run empty
was too short, so that a program that is late to look gets a longer one (as the kernel's byte queue
limits do for network cards). After a pause only a small part of it may wait until a full one would
be through: receivers get ready one after another, and what all senders have filled their queues
with for the first to be ready is what the last ones wait behind.

What is known of the link also tells when a packet will leave. Packets bear that time, so that their
receiver sees what queues on the way, and not what queues here.

Bytes are those that the kernel charges sockets for, which are more than packets have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.compiled import compiled
from shoal.transport.tables import NEVER

if TYPE_CHECKING:
    from shoal.transport.tables import Row

TARGET_US: Final = 4_000.0
"""How long the last packet of a full queue waits.

Half as long made clean sums among four and eight emulated hosts about 1 % slower.
"""

FAST_US: Final = 1_000.0
"""How long the last packet waits on a link so fast that more than FAST_BYTES wait then.

There what waits is a large part of a sum: at 1 Gbit/s in virtual time, 8 hosts took 1.10 times the
ideal for 4 MB with 1 ms and 1.33 times with 4 ms.
"""

PACKET_BYTES: Final = 2304
"""What the kernel charges for a packet of 1,500 bytes that came alone."""
LEAST_BYTES: Final = 8 * PACKET_BYTES
"""The least limit of what may wait, in bytes, also used as long as nothing is known of the link.
With four times as many bytes at first, sums of 64 kB among 8 hosts at 50 Mbit/s never had to wait,
and no rank ever learned how fast the link is: all senders filled their queues for the rank that was
ready first, and the sums took 1.5 times the ideal, not 1.1 (in virtual time)."""
MOST_BYTES: Final = 2 << 20
FAST_BYTES: Final = 32 * PACKET_BYTES

AT_ONCE_US: Final = 250.0
"""The longest time, in microseconds, for which a link carries what is handed over together to one
receiver; a single packet may take longer.

Where everyone sends to everyone, receivers have their turns at each sender, and what two senders
hand over at once for the same one meets at its port. In virtual time, with single packets instead
of four at 20 Mbit/s, sums of 0.47 MB among 8 hosts behind ports of ten packets took 1.03 times the
ideal and not 1.16, and one packet in 700 was sent again, not one in 24; with ports of 128 kB, 1.02
times and not 1.06.
"""

AFTER_A_PAUSE: Final = 1 / 16
"""The part of a full queue that may wait at first.

With twice as much, what 16 hosts at 1 Gbit/s sent whoever was ready first overran its port of 128
KiB in every sum of 1 MB, and these took 1.2 times the ideal, not 1.02 (in virtual time).
"""

FIRST_RATE: Final = FAST_BYTES / TARGET_US
"""Bytes per microsecond that a link is taken to carry when data first wait for it."""

_GAIN: Final = 0.25
_FASTER: Final = 2.0
"""How much more than known one look may find: what a shaper has saved up goes at any rate."""


@compiled
def may_send(core: Row, now: int) -> bool:
    """Return whether more data may be handed over, `core.waiting` bytes being there.

    To be asked only when there are some. If not, `core.look_at` says when to ask again.
    """
    if core.paused_at != NEVER:
        _begin_anew(core, now)
    if core.held_at == NEVER:
        if core.waiting < _limit(core):
            return True
        if core.own_rate == 0.0:
            core.own_rate = FIRST_RATE
        core.held_at, core.held_bytes = now, core.waiting
        core.look_at = now + _wait(core)
        return False
    if core.waiting > _limit(core) / 2:
        if now >= core.look_at:
            core.look_at = now + _wait(core)
        return False
    if core.short_until == 0:
        _learn(core, max(1, now - core.held_at))
    elif now >= core.short_until:
        core.short_until = 0
    hold_nothing(core)
    return True


@compiled
def hold_nothing(core: Row) -> None:
    """Note that there is nothing to hold back, or no reason any more."""
    core.held_at = core.look_at = NEVER


@compiled
def note_pause(core: Row, now: int) -> None:
    """Note that there is nothing to send."""
    hold_nothing(core)
    if core.waiting == 0 and core.paused_at == NEVER:
        core.paused_at = now


@compiled
def _begin_anew(core: Row, now: int) -> None:
    """Let little wait for a while, if the pause was longer than what waited before."""
    if core.own_rate > 0.0:
        lasts = int(_lasts(core))
        if now - core.paused_at > lasts:
            core.short_until = now + lasts
    core.paused_at = NEVER


@compiled
def _lasts(core: Row) -> float:
    """Return how many microseconds a full queue takes to leave at the rate seen or guessed."""
    return float(core.own_limit / core.own_rate)


@compiled
def wait_ahead(core: Row) -> int:
    """Return how many microseconds a packet handed over now will wait, as far as is known."""
    return int(core.waiting / core.own_rate) if core.own_rate_known else 0


@compiled
def longest_wait(core: Row) -> float:
    """Return the same in a full queue."""
    return _lasts(core) if core.own_rate_known else 0.0


@compiled
def _limit(core: Row) -> float:
    """Return how many bytes may wait now."""
    return float(core.own_limit * (AFTER_A_PAUSE if core.short_until != 0 else 1.0))


@compiled
def packets_at_once(core: Row) -> int:
    """Return how many packets may be handed over together: one call of more would be a queue."""
    if core.own_rate == 0.0:
        return int(core.largest_batch)
    most = _limit(core) / 2
    if core.own_rate_known:
        most = min(most, core.own_rate * AT_ONCE_US)
    return int(min(core.largest_batch, max(1.0, most / PACKET_BYTES)))


@compiled
def packets_per_us(core: Row) -> float:
    """Return how many packets leave in a microsecond, if the rate is known.

    The kernel charges more for one that is handed over alone than for its share of several.
    """
    charged = PACKET_BYTES if packets_at_once(core) == 1 else int(core.segment_bytes)
    return float(core.own_rate / charged)


@compiled
def _wait(core: Row) -> int:
    """Return after how many microseconds half of the queue should have gone.

    At least one packet's time: it is there as a whole until it has gone as a whole.
    """
    excess = core.waiting - _limit(core) / 2
    return 1 + int(max(excess, float(core.segment_bytes)) / core.own_rate)


@compiled
def _learn(core: Row, took: int) -> None:
    """Take into account what has gone in the `took` microseconds in which nothing was added.

    The rate is known once a look finds less than the most it may find. Until then each look
    replaces the guess: what is kept of one that is wrong would date packets wrongly.
    """
    fastest, rate = _FASTER * core.own_rate, (core.held_bytes - core.waiting) / took
    if core.waiting == 0:  # it ran empty: the link may be faster, and stood idle for a while
        core.own_rate = max(core.own_rate, min(rate, fastest))
        core.own_limit = min(2 * core.own_limit, float(MOST_BYTES))
        return
    gain = _GAIN if core.own_rate_known else 1.0
    core.own_rate_known |= rate < fastest
    core.own_rate += (min(rate, fastest) - core.own_rate) * gain
    most = min(max(core.own_rate * FAST_US, float(FAST_BYTES)), float(MOST_BYTES))
    wanted = min(max(core.own_rate * TARGET_US, float(LEAST_BYTES)), most)
    core.own_limit += (wanted - core.own_limit) * gain
