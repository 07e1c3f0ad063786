"""How each family of strategies is simulated, and what is simulated only."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from shoal.arguments import unknown
from shoal.errors import UsageError
from shoal.factory_options import check_options
from shoal.sim.training.layered_server import LayeredServer
from shoal.sim.training.means import MeansExecutor
from shoal.sim.training.pairs import PairsExecutor
from shoal.sim.training.servers import ServersExecutor
from shoal.sim.training.sums import SumsExecutor
from shoal.strategies import STRATEGIES, Family, ParameterServer

if TYPE_CHECKING:
    from shoal.sim.training.strategy import AbstractSimulatedStrategy
    from shoal.strategies import AbstractDefinition

Factory: TypeAlias = Callable[..., "AbstractSimulatedStrategy"]

EXECUTORS: Final[dict[Family, Factory]] = {
    Family.MEANS: MeansExecutor,
    Family.PAIRS: PairsExecutor,
    Family.SERVERS: ServersExecutor,
    Family.SUMS: SumsExecutor,
}
"""What takes a strategy, and by name what a simulated network may be asked beside."""

NOT_SIMULATED: Final = ("servers", "topology", "workers_per_host")
"""Options of real strategies that the simulated ones do not have. (Racks and hosts are those of the
cluster.)"""

BASELINES: Final[dict[str, Factory]] = {"ps-layers": LayeredServer}
"""What others are compared with, simulated only."""

SIMULATED: Final = (*STRATEGIES, *BASELINES)
"""The words of all that can be simulated."""


def make_simulated(name: str, options: Mapping[str, Any]) -> AbstractSimulatedStrategy:
    """Return the strategy `name`.

    Raises `UsageError` for an unknown word or option, and for a value that an option cannot have.
    """
    if name in BASELINES:
        check_options(name, options_of(name), options)
        return BASELINES[name](**options)
    definition, of_network = define(name, options)
    return EXECUTORS[definition.family](definition, **of_network)


def define(name: str, options: Mapping[str, Any]) -> tuple[AbstractDefinition, dict[str, Any]]:
    """Return the strategy `name`, and those of its `options` that are the simulated network's.

    Raises `UsageError` as `make_simulated`.
    """
    if name not in STRATEGIES:
        raise UsageError(unknown("There is no strategy", name, SIMULATED))
    known, of_network = options_of(name), _of_network(name)
    for option in options:
        if option in NOT_SIMULATED and option not in known:
            message = f"The option {option!r} of {name} is not simulated: leave it out."
            raise UsageError(message)
    check_options(name, known, options)
    own = {each: value for each, value in options.items() if each not in of_network}
    rest = {each: value for each, value in options.items() if each in of_network}
    definition = STRATEGIES[name](**own)
    if isinstance(definition, ParameterServer) and definition.overlap != "none":
        message = (
            f'{name} is simulated with overlap = "none": leave it out, or take ps-layers, whose'
            " pushes go beside backward and pulls beside the next forward pass."
        )
        raise UsageError(message)
    return definition, rest


def options_of(name: str) -> dict[str, inspect.Parameter]:
    """Return the options of a simulated strategy: its own, and those of the network."""
    if name in BASELINES:
        return dict(inspect.signature(BASELINES[name]).parameters)
    own = inspect.signature(STRATEGIES[name]).parameters
    return {
        **{each: parameter for each, parameter in own.items() if each not in NOT_SIMULATED},
        **_of_network(name),
    }


def _of_network(name: str) -> dict[str, inspect.Parameter]:
    """Return what can be asked of the network that simulates this strategy."""
    parameters = inspect.signature(EXECUTORS[STRATEGIES[name]().family]).parameters
    return {each: p for each, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
