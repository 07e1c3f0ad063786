"""The executor of each family of strategies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from shoal.strategies import Family
from shoal.train.means import MeansExecutor
from shoal.train.pairs.executor import PairsExecutor
from shoal.train.servers.executor import ServersExecutor
from shoal.train.sums import SumsExecutor

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.strategies import AbstractDefinition
    from shoal.train.executor import AbstractExecutor
    from shoal.train.replica import Replica

_EXECUTORS: Final[dict[Family, Callable[[Any, Replica], AbstractExecutor]]] = {
    Family.MEANS: MeansExecutor,
    Family.PAIRS: PairsExecutor,
    Family.SERVERS: ServersExecutor,
    Family.SUMS: SumsExecutor,
}


def make_executor(definition: AbstractDefinition, replica: Replica) -> AbstractExecutor:
    """Return the strategy's executor for `replica`. Collective: every worker makes one.

    Raises `UsageError` for a model or an optimizer that the executor cannot work with.
    """
    return _EXECUTORS[definition.family](definition, replica)
