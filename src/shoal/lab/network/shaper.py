"""The bucket in front of an interface: what makes a program wait when its link is busy.

A real host's network card takes no more than its link carries, so that what is too much waits in
the host, where sockets fill up and programs pause. A virtual interface takes everything; behind one
of the kernel's buckets it is like a real one.

A token bucket lets something go when there are tokens for all of it, so it cuts up what holds many
packets. A hierarchical one lets it go when there are any, and is in debt afterwards: like a card
that begins to send, and takes the next when it is done.
"""

from __future__ import annotations

from typing import Final

from shoal.lab.network.frames import ETHERNET_BYTES
from shoal.scenario import HOST_QUEUE_PACKETS

FRAME_BYTES: Final = 1500 + ETHERNET_BYTES
"""What shapers and the switch count for a full packet."""

HOST_QUEUE_BYTES: Final = HOST_QUEUE_PACKETS * FRAME_BYTES
"""What the queue of a host's interface holds."""

_BURST_BYTES: Final = 10 * FRAME_BYTES
"""What a bucket holds: a timer of the kernel's that is late by less costs no throughput."""
PEAK_RATE: Final = 30_000_000_000
"""Bits per second from which on no bucket is of use: no virtual interface is that fast."""
_PEAK_BYTES: Final = 2 * 1472
"""A bucket with a peak rate cuts up what is larger than this: all that is more than one packet."""


def pace_lines(
    interface: str, bits_per_second: int, limit_bytes: int, *, change: bool = False
) -> list[str]:
    """Return what `tc -batch` has to do for a bucket that takes frames whole, before a queue.

    For rates, limit and `change` as `shape_lines`.
    """
    bucket = (
        f"dev {interface} parent 1: classid 1:1 htb rate {_capped(bits_per_second)}bit"
        f" burst {_BURST_BYTES} cburst {_BURST_BYTES} quantum {FRAME_BYTES}"
    )
    if change:
        return [f"class change {bucket}"]
    return [
        f"qdisc add dev {interface} root handle 1: htb default 1",
        f"class add {bucket}",
        f"qdisc add dev {interface} parent 1:1 handle 10: bfifo limit {limit_bytes}",
    ]


def shape_lines(
    interface: str, bits_per_second: int, limit_bytes: int, *, change: bool = False
) -> list[str]:
    """Return what `tc -batch` has to do for a bucket of single packets, before a queue.

    The queue is limited in bytes. A rate of PEAK_RATE or more becomes a little less than that. With
    `change` the bucket is there and gets another rate.
    """
    bucket = (
        f"dev {interface} root handle 1: tbf rate {_capped(bits_per_second)}bit"
        f" burst {_BURST_BYTES} peakrate {PEAK_RATE}bit mtu {_PEAK_BYTES} limit {limit_bytes}"
    )
    if change:
        return [f"qdisc change {bucket}"]
    queue = f"dev {interface} parent 1:1 handle 10: bfifo limit {limit_bytes}"
    return [f"qdisc add {bucket}", f"qdisc add {queue}"]


def _capped(bits_per_second: int) -> int:
    return min(bits_per_second, PEAK_RATE - 1_000_000)
