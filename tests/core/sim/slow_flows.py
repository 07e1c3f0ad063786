"""Flows by their description: all rates anew at every event, link by link as the textbook says.

The oracle for `shoal.sim.flow`. Takes the links of each flow, and their weights, as they are given.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(eq=False)
class SlowFlow:
    """One flow: `hops` maps a link to the share of the flow that crosses it."""

    begins: float
    left: float
    hops: dict[int, float]
    most: float = float("inf")
    rate: float = 0.0
    ended: float | None = None


def share(flows: list[SlowFlow], capacity: list[float]) -> None:
    """Give flows their max-min fair rates."""
    left, open_flows = list(capacity), list(flows)
    while open_flows:
        offers = [
            left[link] / sum(flow.hops.get(link, 0.0) for flow in open_flows)
            for link in range(len(left))
            if any(link in flow.hops for flow in open_flows)
        ]
        level = min([*offers, *(flow.most for flow in open_flows)])
        full = {
            link
            for link in range(len(left))
            if (weight := sum(flow.hops.get(link, 0.0) for flow in open_flows)) > 0
            and left[link] <= level * weight * (1 + 1e-9)
        }
        bounded = [f for f in open_flows if full & set(f.hops) or f.most <= level]
        for flow in bounded:
            flow.rate = level
            for link, weight in flow.hops.items():
                left[link] = max(0.0, left[link] - level * weight)
        open_flows = [flow for flow in open_flows if flow not in bounded]


def run(flows: list[SlowFlow], capacity: list[float]) -> None:
    """Carry all flows to their ends; times in any unit, rates in bytes per that unit."""
    now = 0.0
    while any(flow.ended is None for flow in flows):
        here = [f for f in flows if f.begins <= now and f.ended is None]
        share(here, capacity)
        ends = [now + f.left / f.rate for f in here if f.rate > 0]
        begins = [f.begins for f in flows if f.begins > now]
        then = min(ends + begins)
        for flow in here:
            flow.left -= flow.rate * (then - now)
            if flow.left <= flow.rate * 1e-9 * max(1.0, then):
                flow.ended = then
        now = then
