"""Reads the [training] table of a scenario. Errors say the line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from shoal.errors import DataError, UsageError
from shoal.quantities import parse_duration, parse_rate, parse_size
from shoal.scenario.measured import read_measured
from shoal.scenario.slowness import check_probability
from shoal.scenario.toml_table import parse_flag, parse_number, parse_one_of, parse_whole
from shoal.scenario.training_spec import LEVELS, SHOAL, Level, StrategySpec, TrainingSpec
from shoal.transport.forms import WIRE_TYPES
from shoal.transport.holes import POLICIES

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.scenario.toml_table import Table

_MOST_STEPS: Final = 10_000_000
_MOST_SPREAD: Final = 3.0
_MOST_COST_S: Final = 100.0
_LEAST_TICK_S: Final = 1e-9
_MOST_TICK_S: Final = 1e-3
_MOST_TIMEOUT_S: Final = 60.0
_ELEMENT_BYTES: Final = 4
_OF_SHOAL: Final = ("loss_bound", "holes", "tags", "wire")
"""Keys that only Shoal's transport knows."""


def read_training(table: Table, workers: int, folder: Path) -> TrainingSpec:
    """Return what the table says; raise `UsageError` for what cannot be.

    A trace that it names lies in `folder`, if it does not say where.
    """
    if sum(key in table for key in ("model", "parameters", "size")) != 1:
        raise table.error("It takes a model, a number of parameters or a size: one of them.")
    if "dataset" in table and "model" not in table:
        raise table.error("What learns on a data set is a model: name one that Shoal can train.")
    parameters = table.take("parameters", lambda value: parse_whole(value, 1, 10**13), 0)
    size = table.take("size", _size, 0)
    transport = table.take("transport", _word, "")
    level = _level(table, "", transport, is_named=bool(transport))
    slow, slow_probability = _slow(table, workers)
    spec = TrainingSpec(
        model=table.take_or_none("model", _word),
        dataset=table.take("dataset", _word, ""),
        looks=table.take("looks", lambda value: parse_whole(value, 1, 10_000), 20),
        parameters=parameters or size // _ELEMENT_BYTES,
        compute_s=table.take("compute", parse_compute, 1.0 if "measured" in table else None),
        steps=table.take("steps", lambda value: parse_whole(value, 1, _MOST_STEPS), 100),
        layers=table.take("layers", lambda value: parse_whole(value, 1, 10_000), 16),
        spread=table.take("spread", _spread, 0.0),
        slow=slow,
        slow_probability=slow_probability,
        local_rate=table.take("local_rate", parse_rate, 80_000_000_000),
        control_delay_s=table.take_or_none("control_delay", parse_duration),
        transport=transport,
        level=level,
        tick_s=table.take("tick", _tick, 1e-6),
        mtu=table.take("mtu", lambda value: parse_whole(value, 576, 9_216), 1_500),
        min_timeout_s=table.take_or_none("min_timeout", _timeout),
        message_cost_s=table.take_or_none("message_cost", _cost),
        server_cost_s=table.take_or_none("server_cost", _cost),
        strategies=tuple(_strategy(each, level, transport) for each in table.tables("strategy")),
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
    name = table.take("measured", _word, "")
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
    options = {
        key: table.take(key, _option)
        for key in table.keys()  # noqa: SIM118 - not a dictionary
        if key not in ("sync", "label", "level", "transport", *_OF_SHOAL)
    }
    transport = table.take("transport", _word, "")
    level = _level(table, usual, transport or carries, is_named=bool(transport))
    for key in _OF_SHOAL:
        if key in table and (transport or carries) != SHOAL:
            sentence = f"Only the transport {SHOAL!r} knows it: name that one, or leave it out."
            raise table.error(sentence, key)
    spec = StrategySpec(
        table.take("sync", _word),
        options,
        table.take("label", _word, ""),
        transport,
        table.take("loss_bound", _bound, 0.0),
        table.take("tags", parse_flag, True),
        level,
        table.take("holes", lambda value: parse_one_of(value, tuple(POLICIES)), "zero"),
        table.take("wire", lambda value: parse_one_of(value, WIRE_TYPES), "float32"),
    )
    table.end()
    return spec


def _level(table: Table, usual: Level, transport: str, *, is_named: bool) -> Level:
    """Return the level that a table says, "" if it says none, and see that its transport fits.

    Without a level of its own the table has the level `usual`; `is_named` says whether the
    transport is this table's.
    """
    said = cast(Level, table.take("level", lambda value: parse_one_of(value, LEVELS), ""))
    level = said or usual
    key = "level" if said else "transport"
    if level == "closed-form" and transport and (said or is_named):
        raise table.error("A closed form knows no transport: leave it out, or take flows.", key)
    if level == "packets" and not transport and "strategy" not in table:
        raise table.error("Packets are those of a transport: name one.", "level" if said else None)
    return said


def _slow(table: Table, workers: int) -> tuple[dict[int, float], dict[int, float]]:
    """Return factors by rank, and how probable a slow step is for those that are slow at random."""
    slow: dict[int, float] = {}
    probabilities: dict[int, float] = {}
    for each in table.tables("slow"):
        rank = each.take("rank", lambda value: parse_whole(value, 0, workers - 1))
        if rank in slow:
            raise each.error(f"Worker {rank} is described twice.", "rank")
        slow[rank] = each.take("factor", _factor)
        if "probability" in each:
            probabilities[rank] = each.take(
                "probability", lambda value: check_probability(parse_number(value))
            )
        each.end()
    return slow, probabilities


def parse_compute(value: object) -> float:
    """Return the seconds that a step computes, of a text such as "20 ms"; raise `UsageError`."""
    seconds = parse_duration(value)
    if seconds == 0:
        message = f"A step computes for more than nothing, not {value!r}."
        raise UsageError(message)
    return seconds


def _cost(value: object) -> float:
    seconds = parse_duration(value)
    if not 0 <= seconds <= _MOST_COST_S:
        message = f"Software costs an exchange 0 to {_MOST_COST_S:g} s, not {value!r}."
        raise UsageError(message)
    return seconds


def _bound(value: object) -> float:
    bound = parse_number(value)
    if not 0 <= bound < 1:
        message = f"A loss bound is a share of at least 0 and less than 1, not {bound:g}."
        raise UsageError(message)
    return bound


def _timeout(value: object) -> float:
    seconds = parse_duration(value)
    if not 0 < seconds < _MOST_TIMEOUT_S:
        message = f"A timeout is more than 0 s and less than {_MOST_TIMEOUT_S:g} s, not {value!r}."
        raise UsageError(message)
    return seconds


def _tick(value: object) -> float:
    seconds = parse_duration(value)
    if not _LEAST_TICK_S <= seconds <= _MOST_TICK_S:
        message = f"A tick is 1 ns to 1 ms, not {value!r}."
        raise UsageError(message)
    return seconds


def _spread(value: object) -> float:
    spread = parse_number(value)
    if not 0 <= spread <= _MOST_SPREAD:
        message = f"A spread is 0 to {_MOST_SPREAD:g}, not {spread:g}."
        raise UsageError(message)
    return spread


def _factor(value: object) -> float:
    factor = parse_number(value)
    if not 0 < factor <= 1000:
        message = f"A worker computes 0 to 1000 times as long, not {factor:g}."
        raise UsageError(message)
    return factor


def _size(value: object) -> int:
    size = parse_size(value)
    if size < _ELEMENT_BYTES:
        message = f"A model has at least {_ELEMENT_BYTES} bytes, not {size}."
        raise UsageError(message)
    return size


def _word(value: object) -> str:
    if not isinstance(value, str) or not value:
        message = f"It takes a word in quotes, not {value!r}."
        raise UsageError(message)
    return value


def _option(value: object) -> Any:
    if isinstance(value, (dict, list)):
        message = f"An option is a number, a word or true or false, not {value!r}."
        raise UsageError(message)
    return value
