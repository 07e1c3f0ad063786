"""The families of strategies whose histories are explored, and a strategy of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from exploration.averages import GeneratedHistory, PairsHistory, ScheduledHistory
from exploration.servers import ServersHistory
from exploration.sums import SumsHistory

if TYPE_CHECKING:
    from exploration.history import History

FAMILIES: dict[str, tuple[Callable[..., History], str, dict[str, Any]]] = {
    "scheduled": (ScheduledHistory, "ds-sync", {}),
    "scheduled, delayed": (ScheduledHistory, "local-sgd", {"overlap": "next-steps"}),
    "generated": (GeneratedHistory, "ripples", {}),
    "generated, delayed": (GeneratedHistory, "ripples", {"overlap": "next-steps"}),
    "pairs": (PairsHistory, "ad-psgd", {}),
    "sums": (SumsHistory, "all-reduce", {}),
    "servers, bsp": (ServersHistory, "ps-bsp", {}),
    "servers, ssp": (ServersHistory, "ps-ssp", {"staleness": 1}),
    "servers, asp": (ServersHistory, "ps-asp", {}),
}
