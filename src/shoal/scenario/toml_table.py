"""A table of a TOML text, taken key by key, and the plain values that a spec is made of.

A spec whose fields are a table's keys says once, at each, how it is read: `parsed`. Owns the
sentence on what is wrong, with the line that it stands in, and that nothing in the text is left
unread. Knows nothing of labs.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from shoal.errors import UsageError

if TYPE_CHECKING:
    from shoal.scenario.toml_lines import Path as Keys

T = TypeVar("T")
Word = TypeVar("Word", bound=str)
Parser: TypeAlias = Callable[[object], T]
"""Returns what a value of the text means, or raises `UsageError`."""

MOST_NAMES: Final = 4096
"""The most names in a list."""
MOST_HOSTS: Final = 100_000
"""The most that a file may count; labs, and simulations packet by packet, take fewer."""
_MOST_LETTERS: Final = 63
"""The most letters of a name: hosts are called by theirs, and the kernel and DNS take no longer
ones."""
_LARGEST_NUMBER: Final = (1 << 63) - 1
"""The largest number in TOML; Python reads larger ones, too."""
_PARSED: Final = "parsed"
"""The key under which a field's metadata has its key in the text and its parser."""


class Table:
    """A table of the text whose keys are taken one by one: what is left over is unknown."""

    def __init__(self, values: dict[str, Any], keys: Keys, lines: dict[Keys, int], name: str):
        self._values, self._keys, self._lines, self._name = values, keys, lines, name
        self._known: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def take(self, key: str, parse: Parser[T], default: T | None = None) -> T:
        """Return the parsed value of `key`, or (None: raise `UsageError`) the default."""
        self._known.add(key)
        if key not in self._values:
            if default is None:
                raise self.error(f"{key!r} is missing{self._where}.")
            return default
        value = self._values[key]
        if isinstance(value, int) and abs(value) > _LARGEST_NUMBER:
            raise self.error("Larger than any number here: it has 64 bits.", key)
        with self.at(key):
            return parse(value)

    def take_or_none(self, key: str, parse: Parser[T]) -> T | None:
        """Return the parsed value of `key`, None if the key is missing."""
        self._known.add(key)
        return self.take(key, parse) if key in self else None

    def given(self, kind: type) -> dict[str, Any]:
        """Return by name what is there of the fields of the dataclass `kind` that are `parsed`."""
        found = {}
        for each in fields(kind):
            if _PARSED in each.metadata:
                key, parse = each.metadata[_PARSED]
                value = self.take_or_none(key or each.name.removesuffix("_s"), parse)
                if value is not None:
                    found[each.name] = value
        return found

    def table(self, key: str) -> Table:
        """Return the table `key`, an empty one if the key is missing."""
        self._known.add(key)
        found = self._values.get(key, {})
        if not isinstance(found, dict):
            raise self.error(f"{key!r} is a table, [{key}].", key)
        return Table(found, (*self._keys, key), self._lines, self._name)

    def tables(self, key: str) -> list[Table]:
        """Return the tables of the array `key`, an empty list if the key is missing."""
        self._known.add(key)
        found = self._values.get(key, [])
        if not isinstance(found, list) or any(not isinstance(each, dict) for each in found):
            raise self.error(f"{key!r} is an array of tables, [[{key}]].", key)
        return [
            Table(each, (*self._keys, key, place), self._lines, self._name)
            for place, each in enumerate(found)
        ]

    def rest(self) -> list[str]:
        """Return the keys that are there and have not been taken so far."""
        return [key for key in self._values if key not in self._known]

    def end(self) -> None:
        """Raise `UsageError` if a key is there that has not been taken."""
        for key in self.rest():
            known = ", ".join(sorted(self._known))
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

    def place(self, *keys: str) -> str:
        """Return the text's name, and the line of `keys` from this table on, or around them."""
        return self._place((*self._keys, *keys))

    def places(self) -> dict[Keys, str]:
        """Return where every key of the whole text stands, and the text itself."""
        return {keys: self._place(keys) for keys in ((), *self._lines)}

    @property
    def _where(self) -> str:
        """The name of the table, if it is not in the text at all: its line says it otherwise."""
        if self._keys in self._lines or not self._keys:
            return ""
        return f" in [{'.'.join(map(str, self._keys))}]"

    def error(self, sentence: str, key: str | None = None) -> UsageError:
        """Return an error about `key`, or about this table."""
        if key is None:
            return _SpecError(f"{self.place()}: {sentence}")
        return _SpecError(f"{self.place(key)}: {key}: {sentence}")

    def _place(self, keys: Keys) -> str:
        while keys and keys not in self._lines:
            first = (*keys, 0)  # of an array of tables where one table is wanted
            keys = first if first in self._lines else keys[:-1]
        return f"{self._name}, line {self._lines[keys]}" if keys else self._name


class _SpecError(UsageError):
    """A sentence that says its line already."""


def parsed(parse: Parser[T], default: T, key: str = "") -> T:
    """Return a field of a dataclass that `Table.given` looks for.

    If no key is named it is the field's name without the unit _s.
    """
    return field(default=default, metadata={_PARSED: (key, parse)})


def checked(parse: Parser[T], fits: Callable[[T], bool], sentence: str) -> Parser[T]:
    """Return a parser of what `parse` finds where that `fits`; elsewhere it raises `sentence`.

    In it {value} stands for what the text has, {found} for what `parse` made of it.
    """

    def parse_checked(value: object) -> T:
        found = parse(value)
        if not fits(found):
            raise UsageError(sentence.format(value=value, found=found))
        return found

    return parse_checked


def anything(value: object) -> Any:
    """Return `value` as it is."""
    return value


def whole(least: int, most: int) -> Parser[int]:
    """Return a parser of whole numbers of `least` to `most`."""
    return checked(
        anything,
        lambda value: type(value) is int and least <= value <= most,
        f"It takes a whole number of {least} to {most}, not {{value!r}}.",
    )


def one_of(choices: Sequence[Word]) -> Parser[Word]:
    """Return a parser of one of the words `choices`."""
    return checked(
        anything,
        lambda value: value in choices,
        f"It takes one of {', '.join(choices)}, not {{value!r}}.",
    )


parse_flag: Final[Parser[bool]] = checked(
    anything, lambda value: isinstance(value, bool), "It takes true or false, not {value!r}."
)
parse_word: Final[Parser[str]] = checked(
    anything,
    lambda value: isinstance(value, str) and value != "",
    "It takes a word in quotes, not {value!r}.",
)


def parse_number(value: object) -> float:
    """Return `value` if it is a number; raise `UsageError`."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        message = f"It takes a number, not {value!r}."
        raise UsageError(message)
    return float(value)


def parse_name(value: object) -> str:
    """Return `value` if it can be the name of a host or switch; raise `UsageError`."""
    if not isinstance(value, str) or not re.fullmatch("[0-9A-Za-z][0-9A-Za-z-]*", value):
        message = f"A name has letters, digits and hyphens, not {value!r}."
        raise UsageError(message)
    if len(value) > _MOST_LETTERS:
        message = f"A name has at most {_MOST_LETTERS} letters, not {len(value)}."
        raise UsageError(message)
    return value


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
