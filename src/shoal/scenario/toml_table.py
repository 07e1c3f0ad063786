"""A table of a TOML text, taken key by key, and the plain values that a spec is made of.

Owns the sentence on what is wrong, with the line that it stands in, and that nothing in the text is
left unread. Knows nothing of labs.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from shoal.errors import UsageError

if TYPE_CHECKING:
    from shoal.scenario.toml_lines import Path as Keys

T = TypeVar("T")

MOST_NAMES: Final = 4096
"""In a list."""
MOST_HOSTS: Final = 100_000
"""The most that a file may count; labs, and simulations packet by packet, take fewer."""
_MOST_LETTERS: Final = 63
"""Of a name: hosts are called by theirs, and the kernel and DNS take no longer ones."""


_LARGEST_NUMBER: Final = (1 << 63) - 1
"""As TOML has them; Python reads larger ones, too."""


class Table:
    """A table of the text whose keys are taken one by one: what is left over is unknown."""

    def __init__(self, values: dict[str, Any], keys: Keys, lines: dict[Keys, int], name: str):
        self._values, self._keys, self._lines, self._name = values, keys, lines, name
        self._known: list[str] = []

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def take(self, key: str, parse: Callable[[object], T], default: T | None = None) -> T:
        """Return the parsed value of `key`, or (None: raise `UsageError`) the default."""
        self._known.append(key)
        if key not in self._values:
            if default is None:
                raise self.error(f"{key!r} is missing{self._where}.")
            return default
        value = self._values[key]
        if isinstance(value, int) and abs(value) > _LARGEST_NUMBER:
            raise self.error("Larger than any number here: it has 64 bits.", key)
        with self.at(key):
            return parse(value)

    def take_or_none(self, key: str, parse: Callable[[object], T]) -> T | None:
        """Return the parsed value of `key`, None where there is none."""
        self._known.append(key)
        if key not in self._values:
            return None
        return self.take(key, parse)

    def table(self, key: str) -> Table:
        """Return the table `key`, empty where there is none."""
        self._known.append(key)
        found = self._values.get(key, {})
        if not isinstance(found, dict):
            raise self.error(f"{key!r} is a table, [{key}].", key)
        return Table(found, (*self._keys, key), self._lines, self._name)

    def tables(self, key: str) -> list[Table]:
        """Return the tables of the array `key`, none where there is none."""
        self._known.append(key)
        found = self._values.get(key, [])
        if not isinstance(found, list) or any(not isinstance(each, dict) for each in found):
            raise self.error(f"{key!r} is an array of tables, [[{key}]].", key)
        return [
            Table(each, (*self._keys, key, place), self._lines, self._name)
            for place, each in enumerate(found)
        ]

    def keys(self) -> list[str]:
        """Return the keys that are there."""
        return list(self._values)

    def end(self) -> None:
        """Raise `UsageError` if something is there that nobody took."""
        for key in self._values:
            if key not in self._known:
                known = ", ".join(sorted(set(self._known)))
                raise self.error(f"{key!r} is not known here; known: {known}.", key)

    @contextlib.contextmanager
    def at(self, key: str | None = None) -> Iterator[None]:
        """Say the line of `key`, or of this table, in a `UsageError` from within."""
        try:
            yield
        except _SpecError:
            raise
        except UsageError as error:
            raise self.error(str(error), key) from error

    @property
    def place(self) -> str:
        """The text's name, and the line where this table begins."""
        return self._place(self._keys)

    def place_of(self, key: str) -> str:
        """Return the text's name, and the line of `key` or of what is around it."""
        return self._place((*self._keys, key))

    def places(self) -> dict[Keys, str]:
        """Return where every key of the whole text stands, and the text itself."""
        return {keys: self._place(keys) for keys in ((), *self._lines)}

    @property
    def _where(self) -> str:
        """In which table, if it is not there at all: its line says it otherwise."""
        return "" if self._keys in self._lines or not self._keys else f" in {self._heading}"

    @property
    def _heading(self) -> str:
        return f"[{'.'.join(str(key) for key in self._keys)}]"

    def error(self, sentence: str, key: str | None = None) -> UsageError:
        """Return an error about `key`, or about this table."""
        place = self._place(self._keys if key is None else (*self._keys, key))
        what = "" if key is None else f"{key}: "
        return _SpecError(f"{place}: {what}{sentence}")

    def _place(self, keys: Keys) -> str:
        while keys and keys not in self._lines:
            first = (*keys, 0)  # of an array of tables where one table is wanted
            keys = first if first in self._lines else keys[:-1]
        return f"{self._name}, line {self._lines[keys]}" if keys else self._name


class _SpecError(UsageError):
    """A sentence that says its line already."""


def parse_whole(value: object, least: int, most: int) -> int:
    """Return `value` if it is a whole number of `least` to `most`; raise `UsageError`."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        message = f"It takes a whole number of {least} to {most}, not {value!r}."
        raise UsageError(message)
    return value


def parse_number(value: object) -> float:
    """Return `value` if it is a number; raise `UsageError`."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        message = f"It takes a number, not {value!r}."
        raise UsageError(message)
    return float(value)


def parse_flag(value: object) -> bool:
    """Return `value` if it is true or false; raise `UsageError`."""
    if not isinstance(value, bool):
        message = f"It takes true or false, not {value!r}."
        raise UsageError(message)
    return value


def parse_one_of(value: object, choices: Sequence[str]) -> str:
    """Return `value` if it is one of `choices`; raise `UsageError`."""
    if value not in choices:
        message = f"It takes one of {', '.join(choices)}, not {value!r}."
        raise UsageError(message)
    return str(value)


def parse_name(value: object) -> str:
    """Return `value` if it can be the name of a host or switch; raise `UsageError`."""
    allowed = isinstance(value, str) and value.replace("-", "").isalnum() and value.isascii()
    if not allowed or not str(value)[0].isalnum():
        message = f"A name has letters, digits and hyphens, not {value!r}."
        raise UsageError(message)
    if len(str(value)) > _MOST_LETTERS:
        message = f"A name has at most {_MOST_LETTERS} letters, not {len(str(value))}."
        raise UsageError(message)
    return str(value)


def name_like(text: str) -> str:
    """Return `text` with hyphens for what no name has."""
    return re.sub("[^0-9A-Za-z]+", "-", text).strip("-")[:_MOST_LETTERS].strip("-") or "lab"


def parse_names(value: object) -> list[str]:
    """Return `value` if it is a list of different names; raise `UsageError`."""
    if not isinstance(value, list) or not 0 < len(value) <= MOST_NAMES:
        message = f"It takes a list of names, not {value!r}."
        raise UsageError(message)
    names = [parse_name(each) for each in value]
    for place, name in enumerate(names):
        if name in names[:place]:
            message = f"The name {name!r} is there twice."
            raise UsageError(message)
    return names
