"""Values of a scenario's text replaced, as if others stood there: keys by their dotted paths.

Tables of an array are counted from 1: `training.strategy.2.interval`. Whether a key is known, and
its value makes sense, is said by who reads the text.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from shoal.decoding import decode_toml
from shoal.errors import DataError, UsageError


def value_of(text: str) -> object:
    """Return what `text` means in TOML, or the text itself: of words quotes may be left out."""
    try:
        found = decode_toml(f"value = {text}", f"{text!r} is not TOML")
    except DataError:
        return text
    return found["value"] if len(found) == 1 else text


def with_values(values: Mapping[str, Any], changes: Mapping[str, object]) -> dict[str, Any]:
    """Return a text's values with the values of `changes` in place of theirs, by path.

    Raises `UsageError` for a path that leads through something that is no table.
    """
    changed: dict[str, Any] = copy.deepcopy(dict(values))
    for path, value in changes.items():
        *outer, key = path.split(".")
        place: Any = changed
        for depth, name in enumerate(outer):
            place = _inside(place, name, ".".join(outer[:depth]))
        if not isinstance(place, dict) or not all((*outer, key)):
            message = f"{path!r} names no key of a table."
            raise UsageError(message)
        place[key] = value
    return changed


def _inside(place: Any, name: str, where: str) -> Any:
    """Return what is called `name` in `place`, which is at the path `where`."""
    if isinstance(place, dict):
        return place.setdefault(name, {})
    if not isinstance(place, list):
        message = f"{where!r} is no table: it has no {name!r}."
        raise UsageError(message)
    if not (name.isascii() and name.isdecimal() and 1 <= int(name) <= len(place)):
        message = f"{where!r} has tables 1 to {len(place)}, and no {name!r}."
        raise UsageError(message)
    return place[int(name) - 1]
