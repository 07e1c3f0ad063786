"""The list of strategies, and the way from a user's word to one of them.

A new strategy is one file and one row here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from shoal.arguments import share, unknown
from shoal.errors import UsageError
from shoal.factory_options import check_option_names
from shoal.strategies.ad_psgd import ADPSGD
from shoal.strategies.all_reduce import AllReduce
from shoal.strategies.definition import AbstractDefinition
from shoal.strategies.diloco import DiLoCo
from shoal.strategies.ds_sync import DSSync
from shoal.strategies.hierarchical_sgd import HierarchicalSGD
from shoal.strategies.local_sgd import LocalSGD
from shoal.strategies.parameter_server import ParameterServer
from shoal.strategies.ripples import Ripples, RipplesRandom
from shoal.strategies.ripples_static import RipplesStatic

if TYPE_CHECKING:
    from shoal.groups import Topology

Factory: TypeAlias = Callable[..., AbstractDefinition]

STRATEGIES: Final[dict[str, Factory]] = {
    "all-reduce": AllReduce,
    "ps-bsp": ParameterServer.bsp,
    "ps-ssp": ParameterServer.ssp,
    "ps-asp": ParameterServer.asp,
    ADPSGD.word: ADPSGD,
    DSSync.word: DSSync,
    RipplesStatic.word: RipplesStatic,
    RipplesRandom.word: RipplesRandom,
    Ripples.word: Ripples,
    LocalSGD.word: LocalSGD,
    HierarchicalSGD.word: HierarchicalSGD,
    DiLoCo.word: DiLoCo,
}
"""Every strategy by its word, with its default options."""


def make_strategy(
    sync: str | AbstractDefinition, options: Mapping[str, object] | None = None
) -> AbstractDefinition:
    """Return the strategy that `sync` names, made with `options`, or `sync` itself if it is one.

    Raises `UsageError` for an unknown word, with the nearest known one, and for options that the
    strategy does not have.
    """
    if isinstance(sync, AbstractDefinition):
        if options:
            message = f"Give {', '.join(options)} to the strategy itself: it is made already."
            raise UsageError(message)
        return sync
    if not isinstance(sync, str) or sync not in STRATEGIES:
        raise UsageError(unknown("There is no strategy", sync, STRATEGIES))
    factory = STRATEGIES[sync]
    check_option_names(sync, factory, options or {})
    return factory(**(options or {}))


def usual(word: str) -> AbstractDefinition | None:
    """Return the strategy with its default options; None if there is no such word."""
    factory = STRATEGIES.get(word)
    return None if factory is None else factory()


def worth_trying(
    word: str, cluster: Topology, *, thorough: bool = False
) -> Iterator[Mapping[str, Any]]:
    """Yield the options of strategy `word` that a plan for `cluster` compares."""
    factory: Any = STRATEGIES[word]
    kind: type[AbstractDefinition] = getattr(factory, "__self__", factory)
    yield from kind.worth_trying(cluster, thorough=thorough)


def spelled(word: str) -> str:
    """Return the name of a strategy's maker in `shoal`, such as "Ripples"."""
    return STRATEGIES[word].__qualname__


def refuse_options(strategy: AbstractDefinition, options: Mapping[str, object]) -> None:
    """Raise `UsageError` for unknown options of `DistributedOptimizer`; say where they belong."""
    for name, value in options.items():
        having = [
            word for word in STRATEGIES if name in inspect.signature(STRATEGIES[word]).parameters
        ]
        message = f"DistributedOptimizer has no option {name!r}"
        if strategy.word in having:
            where = "; options of a strategy go into it: "
        else:
            message += f", and nor has strategy {strategy.word!r}"
            where = "; others have it: " if having else "."
        if having:
            word = strategy.word if strategy.word in having else having[0]
            where += f"sync=shoal.{spelled(word)}({name}={value!r})."
        raise UsageError(message + where)


def check_strategy(
    strategy: AbstractDefinition, workers: int, loss_bound: float, wire: str | None
) -> None:
    """Raise `UsageError` if `strategy` does not fit so many workers, or the transport's options."""
    share(loss_bound, "A loss bound")
    strategy.check_size(workers)
    check_wire(strategy, wire)
    check_pulls(strategy.bound_of_pulls, loss_bound)


def check_beside(strategy: AbstractDefinition, others: Sequence[AbstractDefinition]) -> None:
    """Raise `UsageError` if `strategy` and `others`, under way, cannot go on without lost workers.

    Where one drops a round that another worker has made, their next rounds meet in another step,
    and those of two trainings in another order.
    """
    dropping = [each.word for each in (strategy, *others) if each.drops_rounds]
    if others and dropping:
        message = (
            f"{dropping[0]} drops the round in which a worker is lost, and beside another"
            " DistributedOptimizer workers would then wait for each other: call the first one's"
            " finish() before, or use all-reduce, ripples, ad-psgd or a parameter server, or a job"
            " of fixed size (without min_workers)."
        )
        raise UsageError(message)


def check_pulls(pull_bound: float, loss_bound: float) -> None:
    """Raise `UsageError` if a pull from a parameter server may lose more than a push to it."""
    if pull_bound > loss_bound:
        message = (
            f"Pulls may lose no more than pushes: a pull's bound of {pull_bound:g} needs a loss"
            f" bound of as much, over the transport 'shoal', not {loss_bound:g}."
        )
        raise UsageError(message)


def check_wire(strategy: AbstractDefinition, wire: str | None) -> None:
    """Raise `UsageError` if a wire type is asked for where nothing may be rounded."""
    if wire is not None and not strategy.can_round:
        message = (
            f"{strategy.word} averages parameters, which are sent as they are; a wire type is for"
            " gradients, as all-reduce and the parameter servers sum them, and for averages that"
            " computing does not wait for (overlap='next-steps')."
        )
        raise UsageError(message)
