"""The list of synchronization strategies, and how a user's word becomes one of them."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TypeAlias

from shoal.errors import UsageError
from shoal.train.ad_psgd import ADPSGD
from shoal.train.all_reduce import AllReduce
from shoal.train.ds_sync import DSSync
from shoal.train.local_sgd import LocalSGD
from shoal.train.parameter_server import ParameterServer
from shoal.train.ripples import Ripples, RipplesRandom
from shoal.train.ripples_static import RipplesStatic
from shoal.train.strategy import AbstractStrategy

StrategyFactory: TypeAlias = Callable[[], AbstractStrategy]

STRATEGIES: dict[str, StrategyFactory] = {
    "all-reduce": AllReduce,
    "ps-bsp": ParameterServer.bsp,
    "ps-ssp": ParameterServer.ssp,
    "ps-asp": ParameterServer.asp,
    "ad-psgd": ADPSGD,
    "ds-sync": DSSync,
    "ripples-static": RipplesStatic,
    "ripples-random": RipplesRandom,
    "ripples": Ripples,
    "local-sgd": LocalSGD,
}
"""Every strategy by its word, with its default options."""


def make_strategy(sync: str | AbstractStrategy) -> AbstractStrategy:
    """Return the strategy that `sync` names, or `sync` itself if it is one.

    Raises `UsageError` for an unknown word, with the nearest known one.
    """
    if isinstance(sync, AbstractStrategy):
        return sync
    if sync in STRATEGIES:
        return STRATEGIES[sync]()
    near = difflib.get_close_matches(str(sync), STRATEGIES, n=1)
    hint = f"; did you mean {near[0]}?" if near else "."
    message = f"There is no strategy {sync!r}{hint} Known: {', '.join(STRATEGIES)}."
    raise UsageError(message)
