"""The kinds of jobs of which histories are tried."""

from __future__ import annotations

from typing import Any

import shoal

SIDE_BY_SIDE = ("all-reduce", "ripples", "ps-bsp", "ps-asp", "ad-psgd")
VARIANTS: dict[str, dict[str, Any]] = {
    "all-reduce": {"sync": "all-reduce"},
    "all-reduce, low rank": {"sync": shoal.AllReduce(low_rank=1)},
    "ds-sync": {"sync": "ds-sync"},
    "ripples": {"sync": "ripples"},
    "samples": {"sync": "all-reduce", "samples": True},
    "all-reduce, patient": {"sync": "all-reduce", "is_patient": True},
    "ripples, patient": {"sync": "ripples", "is_patient": True},
    "local-sgd": {"sync": "local-sgd"},
    "diloco": {"sync": shoal.DiLoCo(interval=2)},
    "diloco, next-steps": {"sync": shoal.DiLoCo(interval=2, overlap="next-steps")},
    "hierarchical-sgd": {"sync": "hierarchical-sgd"},
    "ripples-static": {"sync": "ripples-static"},
    "ripples-random": {"sync": "ripples-random"},
    "ds-sync, next-forward": {"sync": "ds-sync", "overlap": "next-forward"},
    "ripples, next-forward": {"sync": "ripples", "overlap": "next-forward"},
    "ds-sync, next-steps": {"sync": "ds-sync", "overlap": "next-steps"},
    "ad-psgd": {"sync": "ad-psgd"},
    "ps-bsp": {"sync": "ps-bsp"},
    "ps-ssp": {"sync": "ps-ssp"},
    "ps-asp": {"sync": "ps-asp"},
    "ripples, next-steps": {"sync": "ripples", "overlap": "next-steps"},
    **{f"{sync}, beside": {"sync": sync, "more": "beside"} for sync in SIDE_BY_SIDE},
    **{f"{sync}, before": {"sync": sync, "more": "before"} for sync in ("ds-sync", "ps-bsp")},
}
