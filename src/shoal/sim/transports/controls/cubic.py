"""CUBIC: the window is a cubic function of the time since the last loss (RFC 9438).

W(t) = C (t - K)^3 + W_max, K = cbrt((W_max - window) / C): steep, flat where the last loss came,
steep again; never less than Reno would have (4.3), with fast convergence (4.7). Slow start ends by
`hystart`; until the first loss the window then grows by a twentieth in a round trip at least, and
a timeout forgets where losses came, both as in Linux.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.compiled import inlined
from shoal.sim.transports.controls import hystart
from shoal.sim.transports.controls.newreno import SMALLEST_THRESHOLD, slow_start
from shoal.switching import NEVER, PICOSECONDS

if TYPE_CHECKING:
    from shoal.sim.transports.transport_tables import Row

SCALE: Final = 0.4
"""CUBIC's constant C, in packets per cubic second."""
FACTOR: Final = 0.7
"""What is left of the window after a loss (beta)."""
RENO_RISE: Final = 3 * (1 - FACTOR) / (1 + FACTOR)
"""Packets per round trip by which Reno with this factor would have the same share (alpha)."""
MOST_GROWTH: Final = 1.5
"""The factor by which the window grows in a round trip at most."""
UNTRIED_GROWTH: Final = 1 / 20
"""The share of the window by which it grows in a round trip at least, while nothing was lost."""
_ROUNDS: Final = 60


@inlined
def cube_root(value: float) -> float:
    """Return the cube root of a number of 0 or more, by Newton's method.

    Only of additions, multiplications and divisions, so that every machine finds the same.
    """
    root = max(value, 1.0)
    for _ in range(_ROUNDS):
        following = (2.0 * root + value / (root * root)) / 3.0
        if following >= root:
            break
        root = following
    return root


@inlined
def window_at(seconds: float, rise_s: float, peak: float) -> float:
    """Return W(t)."""
    offset = seconds - rise_s
    return SCALE * offset * offset * offset + peak


@inlined
def grow(flow: Row, acked: int, now: int) -> None:
    """Grow for so many packets that were acknowledged."""
    left = slow_start(flow, float(acked))
    if left <= 0.0:
        return
    if flow.epoch < 0:
        flow.epoch = now
        flow.peak = max(flow.peak, flow.window)
        flow.rise_s = cube_root((flow.peak - flow.window) / SCALE)
        flow.reno = flow.window
    since = (now - flow.epoch) / PICOSECONDS
    flow.reno += (RENO_RISE if flow.reno < flow.prior else 1.0) * left / flow.window
    least = UNTRIED_GROWTH * left if flow.prior <= 0.0 else 0.0
    if window_at(since, flow.rise_s, flow.peak) < flow.reno:
        flow.window = max(flow.window + least, flow.reno)
        return
    target = window_at(since + flow.smoothed / PICOSECONDS, flow.rise_s, flow.peak)
    target = min(max(target, flow.window), MOST_GROWTH * flow.window)
    flow.window += max(least, (target - flow.window) / flow.window * left)


@inlined
def reduce(flow: Row) -> None:
    """Lower the threshold, and remember where the loss came."""
    flow.peak = flow.window * ((1 + FACTOR) / 2 if flow.window < flow.peak else 1.0)
    flow.prior = flow.window
    flow.threshold = max(SMALLEST_THRESHOLD, flow.window * FACTOR)
    flow.epoch = -1


@inlined
def forget(flow: Row) -> None:
    """Begin anew after a timeout: only the threshold remembers what there was."""
    flow.peak = flow.prior = 0.0
    hystart.begin(flow, NEVER)
