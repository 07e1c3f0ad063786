"""Has the simulator's code compiled, or loaded: the smallest job at each level of detail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.compiled import mark_warm
from shoal.scenario import SHOAL, parse_scenario
from shoal.sim.training.networks import level_of
from shoal.sim.training.simulation import simulate

if TYPE_CHECKING:
    from shoal.scenario import StrategySpec, TrainingSpec

DURATIONS: Final = {
    "flows": "ten seconds",
    "packets": "half a minute",
    "transport": "a minute and a half",
}
"""What is compiled for each kind of simulation, and about how long that takes on a free core."""

_JOB: Final = """\
[hosts]
count = 2

[access]
rate = "1 Gbit/s"

[training]
parameters = 10_000
compute = "1 ms"
steps = 2
{carrier}

[[training.strategy]]
sync = "all-reduce"
"""
_CARRIERS: Final = {
    "flows": "",
    "packets": 'transport = "cubic"',
    "transport": f'transport = "{SHOAL}"',
}


def kind_of(training: TrainingSpec, strategy: StrategySpec) -> str:
    """Return which of `DURATIONS` the simulation of a strategy needs; "" if none."""
    level = level_of(training, strategy)
    if level != "packets":
        return "flows" if level == "flows" else ""
    return kind_over(strategy.transport or training.transport)


def kind_over(transport: str) -> str:
    """Return the kind of a simulation over `transport`, packet by packet; of flows without one."""
    if not transport:
        return "flows"
    return "transport" if transport == SHOAL else "packets"


def name_of(kind: str) -> str:
    """Return what a person is told of a kind."""
    return "the simulator of " + ("Shoal's transport" if kind == "transport" else kind)


def load_simulator(kind: str) -> None:
    """Simulate the smallest job of that kind."""
    read = parse_scenario(_JOB.format(carrier=_CARRIERS[kind]), "the smallest job")
    assert read.training is not None
    simulate(read.cluster, read.training, read.training.strategies[0])
    mark_warm(f"sim-{kind}")
