"""Options that several subcommands share, and the parsing of their texts."""

from __future__ import annotations

import inspect
import math
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from shoal.errors import ResourceError, UsageError
from shoal.factory_options import check_options

if TYPE_CHECKING:
    from shoal.strategies import AbstractDefinition

ExampleOption = Annotated[
    str | None,
    typer.Option("--example", metavar="NAME", help="An example that comes with Shoal, not a file."),
]

WatchOption = Annotated[
    str | None,
    typer.Option(
        metavar="[HOST:]PORT",
        help="Show the job in a browser, at this port of this machine; default: SHOAL_WATCH.",
    ),
]
READER_IS_GONE: Final = 128 + signal.SIGPIPE
"""The exit code when nobody reads the output of others that a command passes on."""


def file_or_example(file: Path | None, example: str | None, what: str) -> Path:
    """Return the file that was named, or that of an example, which standard error names.

    `what` is what the file holds, such as "a scenario". Raises `UsageError` unless one of the two
    is given, and for an unknown example.
    """
    from shoal.scenario import example_file, example_names

    if (file is None) == (example is None):
        message = f"Name {what} in TOML, or an example by --example: {', '.join(example_names())}."
        raise UsageError(message)
    if file is not None:
        return file
    found = example_file(example or "")
    sys.stderr.write(f"example: {found}\n")
    return found


def parse_slow(texts: list[str]) -> tuple[dict[int, float], dict[int, float]]:
    """Return rank -> factor, and rank -> probability of those slow at random: of "3:5", "3:5:0.2".

    Raises `UsageError` for anything else.
    """
    slow: dict[int, float] = {}
    probabilities: dict[int, float] = {}
    for text in texts:
        try:
            rank, factor, *probability = text.split(":")
            numbers = [float(each) for each in (factor, *probability)]
            is_one = len(numbers) <= 2 and all(map(math.isfinite, numbers))
            slow[int(rank)] = numbers[0]
            probabilities.pop(int(rank), None)
            if probability:
                probabilities[int(rank)] = numbers[1]
        except ValueError:
            is_one = False
        if not is_one:
            message = (
                "--slow takes RANK:FACTOR, such as 3:5 for rank 3 five times slower, or"
                " RANK:FACTOR:PROBABILITY, such as 3:5:0.2 for a fifth of its steps at random, not"
                f" {text!r}."
            )
            raise UsageError(message)
    return slow, probabilities


def parse_options(texts: list[str]) -> dict[str, str | int | float | bool | None]:
    """Return name -> value from texts such as "group_size=4"; numbers, true, false become such."""
    options: dict[str, str | int | float | bool | None] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator:
            message = f"--option takes NAME=VALUE, such as group_size=4, not {text!r}."
            raise UsageError(message)
        options[name.replace("-", "_")] = _value(value)
    return options


def _value(text: str) -> str | int | float | bool | None:
    named: dict[str, bool | None] = {"true": True, "false": False, "none": None}
    if text.lower() in named:
        return named[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def choose_strategy(
    sync: str, options: dict[str, str | int | float | bool | None]
) -> AbstractDefinition:
    """Return the strategy. Raises `UsageError` for an unknown one, or an option of a wrong type."""
    from shoal.strategies import STRATEGIES, make_strategy

    if sync in STRATEGIES:
        check_options(sync, inspect.signature(STRATEGIES[sync]).parameters, options)
    return make_strategy(sync, options)


def require_finite(**options: float | None) -> None:
    """Raise `UsageError` for the first option (Python's name of it) that is infinite or NaN."""
    for name, value in options.items():
        if value is not None and not math.isfinite(value):
            message = f"--{name.replace('_', '-')} must be a finite number, not {value:g}."
            raise UsageError(message)


def require_positive(**options: float | None) -> None:
    """Raise `UsageError` for the first option (Python's name of it) that is not above zero."""
    require_finite(**options)
    for name, value in options.items():
        if value is not None and value <= 0:
            message = f"--{name.replace('_', '-')} must be positive, not {value:g}."
            raise UsageError(message)


def require_writable(*files: Path | None) -> None:
    """Raise `ResourceError` for a file to be written where no file can be: before the work."""
    for file in files:
        if file is not None and not _may_be_written(file):
            message = f"{file} cannot be written: name a file in a folder that you may write to."
            raise ResourceError(message)


def _may_be_written(file: Path) -> bool:
    try:
        folder = file.absolute().parent
    except FileNotFoundError:  # the folder that this process is in has been deleted
        return False
    return not file.is_dir() and os.access(folder, os.W_OK)
