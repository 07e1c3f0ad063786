"""The list of synchronization strategies, and how a user's word becomes one of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TypeAlias

from shoal.arguments import share, unknown
from shoal.errors import UsageError
from shoal.factory_options import check_option_names
from shoal.train.all_reduce import AllReduce
from shoal.train.ds_sync import DSSync
from shoal.train.local_sgd import LocalSGD
from shoal.train.pairs.ad_psgd import ADPSGD
from shoal.train.ripples import Ripples, RipplesRandom
from shoal.train.ripples_static import RipplesStatic
from shoal.train.servers.parameter_server import ParameterServer
from shoal.train.strategy import AbstractStrategy
from shoal.transport.renewals import check_pull_bound

StrategyFactory: TypeAlias = Callable[..., AbstractStrategy]

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


def make_strategy(
    sync: str | AbstractStrategy, options: Mapping[str, object] | None = None
) -> AbstractStrategy:
    """Return the strategy that `sync` names, made with `options`, or `sync` itself if it is one.

    Raises `UsageError` for an unknown word, with the nearest known one, and for options that the
    strategy does not have.
    """
    if isinstance(sync, AbstractStrategy):
        if options:
            message = f"Give {', '.join(options)} to the strategy itself: it is made already."
            raise UsageError(message)
        return sync
    if not isinstance(sync, str) or sync not in STRATEGIES:
        raise UsageError(unknown("There is no strategy", sync, STRATEGIES))
    factory = STRATEGIES[sync]
    check_option_names(sync, factory, options or {})
    return factory(**(options or {}))


def refuse_options(strategy: AbstractStrategy, options: Mapping[str, object]) -> None:
    """Raise `UsageError` for options that `DistributedOptimizer` has not; say where they belong."""
    for name, value in options.items():
        factory = STRATEGIES.get(strategy.name, type(strategy))
        message = f"DistributedOptimizer has no option {name!r}"
        if name in inspect.signature(factory).parameters:
            maker = getattr(factory, "__qualname__", type(strategy).__name__)
            message += f"; options of a strategy go into it: sync=shoal.{maker}({name}={value!r})."
        else:
            message += f", and nor has strategy {strategy.name!r}."
        raise UsageError(message)


def check_strategy(
    strategy: AbstractStrategy, world_size: int, loss_bound: float, wire: str | None
) -> None:
    """Raise `UsageError` if `strategy` is not free, or does not fit workers or transports."""
    strategy.check_unbound()
    share(loss_bound, "A loss bound")
    strategy.validate(world_size)
    check_wire(strategy, wire)
    check_pulls(strategy, loss_bound)


def check_pulls(strategy: AbstractStrategy, loss_bound: float) -> None:
    """Raise `UsageError` if a pull of `strategy` may lose more than a push."""
    check_pull_bound(float(strategy.options().get("pull_bound") or 0.0), loss_bound)


def check_wire(strategy: AbstractStrategy, wire: str | None) -> None:
    """Raise `UsageError` if a wire type is asked for where nothing may be rounded."""
    if wire is not None and not strategy.can_round:
        message = (
            f"{strategy.name} averages parameters, which are sent as they are; a wire type is for"
            " gradients, as all-reduce and the parameter servers sum them, and for averages that"
            " computing does not wait for (overlap='next-steps')."
        )
        raise UsageError(message)
