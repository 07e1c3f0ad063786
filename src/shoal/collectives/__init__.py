"""The collectives room of Shoal: how a group averages, decided without touching data or network."""

from __future__ import annotations

from shoal.collectives.choice import (
    ALL_ALGORITHMS,
    Algorithm,
    Planner,
    choose_algorithm,
    plan_average,
)
from shoal.collectives.plan import (
    AwaitFill,
    AwaitSend,
    Combine,
    Fetch,
    Fill,
    Phase,
    Plan,
    Send,
    Step,
)

__all__ = [
    "ALL_ALGORITHMS",
    "Algorithm",
    "AwaitFill",
    "AwaitSend",
    "Combine",
    "Fetch",
    "Fill",
    "Phase",
    "Plan",
    "Planner",
    "Send",
    "Step",
    "choose_algorithm",
    "plan_average",
]
