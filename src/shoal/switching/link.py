"""What a link does to a packet: delay, jitter, reordering, random and bursty loss, failure.

Bursty loss is the model of Gilbert and Elliott: two states, each with its loss, and before every
packet the state may change. Jitter lets no packet overtake another; reordering does, by holding one
back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.compiled import compiled, inlined
from shoal.switching.random_bits import random_share
from shoal.switching.tables import ONE

if TYPE_CHECKING:
    from shoal.switching.tables import Row


@compiled
def _happens(probability: int, link: Row, seed: int, stream: int) -> bool:
    """Return whether what has this probability (fixed point) happens now."""
    if probability <= 0:
        return False
    link.draws += 1
    return random_share(seed, stream, link.draws) < probability


@inlined
def arrival_time(link: Row, sent: int, seed: int, stream: int) -> int:
    """Return when a packet whose last bit is sent at `sent` arrives; -1 if it gets lost.

    `stream` names the link's random numbers.
    """
    if _happens(link.to_good if link.bad else link.to_bad, link, seed, stream):
        link.bad = 1 - link.bad
    lost = _happens(link.bad_loss if link.bad else link.loss, link, seed, stream)
    if lost or link.down:
        return -1
    at = sent + link.delay
    if link.jitter > 0:
        link.draws += 1
        at += (link.jitter >> 16) * (random_share(seed, stream, link.draws) >> 16)
    if _happens(link.reorder, link, seed, stream):
        return int(at + link.reorder_delay)
    link.last_arrival = max(link.last_arrival, at)
    return int(link.last_arrival)


@compiled
def mean_loss(link: Row) -> float:
    """Return the share of packets that the link loses in the long run."""
    if link.down:
        return 1.0
    changes = link.to_bad + link.to_good
    bad = link.to_bad / changes if changes > 0 else float(link.bad)
    return float((link.loss * (1.0 - bad) + link.bad_loss * bad) / ONE)
