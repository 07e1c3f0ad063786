"""The option that replaces values of a scenario: a run for each value, and for each combination."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Annotated, Final

import typer

from shoal.errors import UsageError
from shoal.scenario import parse_scenario, value_of

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.scenario import Scenario

SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUES",
        help="Simulate with each of these values, such as access.loss=0.1%,1%; may be repeated, for"
        " every combination. Tables of an array count from 1: training.strategy.1.interval=1,4.",
    ),
]

_MOST: Final = 10_000


def parse_settings(texts: Sequence[str] | None) -> list[dict[str, str]]:
    """Return every combination of values, by key as they were given; one without any if none were.

    Raises `UsageError` for what is no key and values.
    """
    wanted: dict[str, list[str]] = {}
    for text in texts or ():
        key, separator, given = text.partition("=")
        values = [each.strip() for each in given.split(",")]
        if not (key and separator and all(values)):
            message = f"--set takes KEY=VALUES, such as access.loss=0.1%,1%, not {text!r}."
            raise UsageError(message)
        if key == "seed":
            raise UsageError("--set seed: --seeds says with which seeds to repeat; leave it out.")
        if key in wanted:
            message = f"--set {key} is there twice: give it all its values at once."
            raise UsageError(message)
        wanted[key] = list(dict.fromkeys(values))
    if prod(map(len, wanted.values())) > _MOST:
        message = f"--set makes at most {_MOST:,} combinations."
        raise UsageError(message)
    return [
        dict(zip(wanted, values, strict=True)) for values in itertools.product(*wanted.values())
    ]


def words(settings: Mapping[str, str]) -> str:
    """Return what has been set, as it is written on a command line."""
    return " ".join(f"{key}={value}" for key, value in settings.items())


def headings(keys: Iterable[str]) -> dict[str, str]:
    """Return what a table calls each key: its last word, or all of it where two end alike."""
    last = {key: key.rpartition(".")[2] for key in keys}
    often = Counter(last.values())
    return {key: word if often[word] == 1 else key for key, word in last.items()}


def changed(text: str, path: Path, settings: Mapping[str, str]) -> Scenario:
    """Return the scenario in the text of the file at `path` with these values.

    Raises `UsageError` for a key that there is not, or a value that it cannot have.
    """
    changes = {key: value_of(value) for key, value in settings.items()}
    try:
        return parse_scenario(text, str(path), path.parent, changes)
    except UsageError as error:
        message = f"--set {words(settings)}: {error}"
        raise UsageError(message) from error
