"""Reads the [training] table of a scenario. Errors say the line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.errors import DataError, UsageError
from shoal.quantities import parse_duration, parse_size
from shoal.scenario.measured import read_measured
from shoal.scenario.slowness import check_probability
from shoal.scenario.toml_table import anything, checked, parse_number, parse_word, whole
from shoal.scenario.training_spec import SHOAL, Level, StrategySpec, TrainingSpec

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.scenario.toml_table import Table

_ELEMENT_BYTES: Final = 4
_OF_SHOAL: Final = ("loss_bound", "holes", "tags", "wire")
"""Keys that only Shoal's transport knows."""

parse_compute: Final = checked(
    parse_duration,
    lambda seconds: seconds > 0,
    "A step computes for more than nothing, not {value!r}.",
)
"""Returns the seconds that a step computes, of a text such as "20 ms"."""
_factor: Final = checked(
    parse_number,
    lambda factor: 0 < factor <= 1000,
    "A worker computes 0 to 1000 times as long, not {found:g}.",
)
_option: Final = checked(
    anything,
    lambda value: not isinstance(value, dict | list),
    "An option is a number, a word or true or false, not {value!r}.",
)
_size: Final = checked(
    parse_size,
    lambda size: size >= _ELEMENT_BYTES,
    f"A model has at least {_ELEMENT_BYTES} bytes, not {{found}}.",
)


def read_training(table: Table, workers: int, folder: Path) -> TrainingSpec:
    """Return what the table says; raise `UsageError` for what cannot be.

    A trace that it names lies in `folder`, if it does not say where.
    """
    if sum(key in table for key in ("model", "parameters", "size")) != 1:
        raise table.error("It takes a model, a number of parameters or a size: one of them.")
    if "dataset" in table and "model" not in table:
        raise table.error("What learns on a data set is a model: name one that Shoal can train.")
    given = table.given(TrainingSpec)
    level, transport = given.get("level", ""), given.get("transport", "")
    _check_level(table, level, transport)
    slow, slow_probability = _slow(table, workers)
    spec = TrainingSpec(
        compute_s=table.take("compute", parse_compute, 1.0 if "measured" in table else None),
        slow=slow,
        slow_probability=slow_probability,
        strategies=tuple(_strategy(each, level, transport) for each in table.tables("strategy")),
        **{"parameters": table.take("size", _size, 0) // _ELEMENT_BYTES, **given},
    )
    _check_heeded(spec, table)
    spec = _replaying(spec, table, workers, folder)
    names = [each.name for each in spec.strategies]
    for name in names:
        if names.count(name) > 1:
            raise table.error(f"Two strategies are called {name!r}; give one of them a label.")
    table.end()
    return spec


def _check_heeded(spec: TrainingSpec, table: Table) -> None:
    """Raise `UsageError` for a key that nothing in the job heeds."""
    if "layers" in table and spec.model is not None:
        raise table.error("A model has its own layers: leave them out.", "layers")
    if "looks" in table and not spec.dataset:
        raise table.error("Looks are at what is learnt: name a dataset, or leave it out.", "looks")


def _replaying(spec: TrainingSpec, table: Table, workers: int, folder: Path) -> TrainingSpec:
    """Return `spec` with the times of the trace that the table names, if it names one."""
    name = table.take("measured", parse_word, "")
    if not name:
        return spec
    for key in ("compute", "spread", "slow"):
        if key in table:
            raise table.error("A measured run says how long every worker computes already.", key)
    try:
        measured = read_measured(folder / name, workers)
    except (DataError, UsageError) as error:
        raise table.error(str(error), "measured") from error
    return spec.replaying(measured)


def _strategy(table: Table, usual: Level, carries: str) -> StrategySpec:
    """Return a strategy of a job at the level `usual` that the transport `carries`."""
    sync, given = table.take("sync", parse_word), table.given(StrategySpec)
    options = {key: table.take(key, _option) for key in table.rest()}
    spec = StrategySpec(sync, options, **given)
    transport = spec.transport or carries
    _check_level(table, spec.level or usual, transport)
    for key in _OF_SHOAL:
        if key in table and transport != SHOAL:
            sentence = f"Only the transport {SHOAL!r} knows it: name that one, or leave it out."
            raise table.error(sentence, key)
    return spec


def _check_level(table: Table, level: Level, transport: str) -> None:
    """Raise `UsageError` if the transport does not fit the level, one of them the table's own."""
    key = "level" if "level" in table else None
    if level == "closed-form" and transport and (key or "transport" in table):
        sentence = "A closed form knows no transport: leave it out, or take flows."
        raise table.error(sentence, key or "transport")
    if level == "packets" and not transport and "strategy" not in table:
        raise table.error("Packets are those of a transport: name one.", key)


def _slow(table: Table, workers: int) -> tuple[dict[int, float], dict[int, float]]:
    """Return factors by rank, and the probability of a slow step for ranks slow at random."""
    slow: dict[int, float] = {}
    probabilities: dict[int, float] = {}
    for each in table.tables("slow"):
        rank = each.take("rank", whole(0, workers - 1))
        if rank in slow:
            raise each.error(f"Worker {rank} is described twice.", "rank")
        slow[rank] = each.take("factor", _factor)
        if "probability" in each:
            probabilities[rank] = each.take(
                "probability", lambda value: check_probability(parse_number(value))
            )
        each.end()
    return slow, probabilities
