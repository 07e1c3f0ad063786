"""The list of simulated strategies, by the words that `shoal train` knows them by."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from shoal.arguments import unknown
from shoal.errors import UsageError
from shoal.factory_options import check_option_names, check_option_types
from shoal.groups import GeneratorConfig, ds_sync_schedule
from shoal.groups.all_workers import LOCAL_STEPS
from shoal.groups.averaging_points import AveragingPoints
from shoal.groups.generator_config import DEFAULT_GROUP_SIZE
from shoal.groups.server_clock import ssp_staleness
from shoal.sim.training.ad_psgd import ADPSGD
from shoal.sim.training.all_reduce import AllReduce
from shoal.sim.training.generated import Generated
from shoal.sim.training.layered_server import LayeredServer
from shoal.sim.training.parameter_server import ParameterServer
from shoal.sim.training.scheduled import Scheduled
from shoal.sim.training.strategy import AbstractSimulatedStrategy

if TYPE_CHECKING:
    from shoal.groups.averaging_points import AveragingOverlap

Factory: TypeAlias = Callable[..., AbstractSimulatedStrategy]

_GENERATOR: Final = GeneratorConfig()


def _bsp(*, pull_bound: float = 0.0) -> ParameterServer:
    return ParameterServer(0, pull_bound=pull_bound)


def _ssp(
    *, staleness: int = 3, scale_updates: bool = True, pull_bound: float = 0.0
) -> ParameterServer:
    return ParameterServer(
        ssp_staleness(staleness), scale_updates=scale_updates, pull_bound=pull_bound
    )


def _asp(*, scale_updates: bool = True, pull_bound: float = 0.0) -> ParameterServer:
    return ParameterServer(None, scale_updates=scale_updates, pull_bound=pull_bound)


def _ds_sync(
    *,
    shuffle: str = "grid",
    group_size: int = 0,
    interval: int = 1,
    overlap: AveragingOverlap = "none",
    average_state: bool = False,
) -> Scheduled:
    points = AveragingPoints(interval, overlap, average_state=average_state)
    return Scheduled(ds_sync_schedule(shuffle), points, group_size=group_size)


def _ripples(
    *,
    group_size: int = _GENERATOR.group_size,
    group_buffer: bool = _GENERATOR.group_buffer,
    global_division: bool = _GENERATOR.global_division,
    inter_intra: bool = _GENERATOR.inter_intra,
    slowdown_threshold: int | None = _GENERATOR.slowdown_threshold,
    refined_filter: bool = _GENERATOR.refined_filter,
    interval: int = 1,
    overlap: AveragingOverlap = "none",
    average_state: bool = False,
) -> Generated:
    config = GeneratorConfig(
        group_size=group_size,
        group_buffer=group_buffer,
        global_division=global_division,
        inter_intra=inter_intra,
        slowdown_threshold=slowdown_threshold,
        refined_filter=refined_filter,
    )
    return Generated(config, AveragingPoints(interval, overlap, average_state=average_state))


def _ripples_random(
    *,
    group_size: int = DEFAULT_GROUP_SIZE,
    interval: int = 1,
    overlap: AveragingOverlap = "none",
    average_state: bool = False,
) -> Generated:
    points = AveragingPoints(interval, overlap, average_state=average_state)
    return Generated(GeneratorConfig.random_mode(group_size), points)


def _ripples_static(
    *, interval: int = 1, overlap: AveragingOverlap = "none", average_state: bool = False
) -> Scheduled:
    points = AveragingPoints(interval, overlap, average_state=average_state)
    return Scheduled("ripples-static", points)


def _local_sgd(
    *, interval: int = LOCAL_STEPS, overlap: AveragingOverlap = "none", average_state: bool = False
) -> Scheduled:
    return Scheduled("all-reduce", AveragingPoints(interval, overlap, average_state=average_state))


SIMULATED: dict[str, Factory] = {
    "all-reduce": AllReduce,
    "ps-bsp": _bsp,
    "ps-ssp": _ssp,
    "ps-asp": _asp,
    "ad-psgd": ADPSGD,
    "ds-sync": _ds_sync,
    "ripples-static": _ripples_static,
    "ripples-random": _ripples_random,
    "ripples": _ripples,
    "local-sgd": _local_sgd,
}
"""Every strategy of `shoal train` by its word, with the defaults of the real one."""

NOT_SIMULATED: Final = ("bucket_bytes", "topology", "workers_per_host")
"""Options of real strategies that the simulated ones do not have. (Racks and hosts are those of the
cluster.)"""

BASELINES: dict[str, Factory] = {"ps-layers": LayeredServer}
"""What others are compared with, simulated only."""


def make_simulated(name: str, options: Mapping[str, Any]) -> AbstractSimulatedStrategy:
    """Return the strategy `name`.

    Raises `UsageError` for an unknown word or option, and for a value that an option cannot have.
    """
    known = SIMULATED | BASELINES
    if name not in known:
        raise UsageError(unknown("There is no strategy", name, known))
    factory = known[name]
    for option in options:
        if option in NOT_SIMULATED and option not in inspect.signature(factory).parameters:
            message = f"The option {option!r} of {name} is not simulated: leave it out."
            raise UsageError(message)
    check_option_names(name, factory, options)
    check_option_types(name, factory, options)
    return factory(**options)
