"""Options that people give by name, held to the signature of what takes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from shoal.errors import UsageError

_KINDS: Final[dict[str, tuple[type, ...]]] = {
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "str": (str,),
    "None": (type(None),),
}


def check_option_names(
    strategy: str, factory: Callable[..., Any], options: Mapping[str, object]
) -> None:
    """Raise `UsageError` for the first option that the strategy's factory does not take."""
    _check_names(strategy, inspect.signature(factory).parameters, options)


def check_options(
    strategy: str, known: Mapping[str, inspect.Parameter], options: Mapping[str, object]
) -> None:
    """Raise `UsageError` for the first option that is not `known`, or not of its type."""
    _check_names(strategy, known, options)
    for name, value in options.items():
        annotation = known[name].annotation
        if isinstance(annotation, type):  # a Struct's are types, a function's are texts
            annotation = annotation.__name__
        if not _fits(value, str(annotation)):
            message = f"Option {name} of {strategy!r} is of type {annotation}, not {value!r}."
            raise UsageError(message)


def _check_names(
    strategy: str, known: Mapping[str, inspect.Parameter], options: Mapping[str, object]
) -> None:
    for option in options:
        if option not in known:
            names = ", ".join(known) or "none"
            message = f"Strategy {strategy!r} has no option {option!r}; its options: {names}."
            raise UsageError(message)


def _fits(value: object, annotation: str) -> bool:
    """Return whether `value` is what `annotation`, such as "int | None", says."""
    names = annotation.split(" | ")
    if not all(name in _KINDS for name in names):
        return True  # words, and the strategy itself knows them
    if isinstance(value, bool):
        return "bool" in names
    return any(isinstance(value, _KINDS[name]) for name in names if name != "bool")
