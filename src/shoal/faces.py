"""A room's face: the names that other rooms import from it, each from the file that has it.

The room's `__init__.pyi` lists them, for readers and type checkers, and here. A file is imported
when one of its names is first asked for: nobody loads torch for a constant beside it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final

_SUFFIX: Final = ".pyi"


def face(room: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return a room's `__getattr__` and `__dir__`, which know the names in its stub."""

    def get(name: str) -> object:
        home = _homes(room).get(name)
        if home is None:
            message = f"module {room!r} has no attribute {name!r}"
            raise AttributeError(message)
        if home == room:  # a module, whose name is public
            return import_module(f"{room}.{name}")
        found = getattr(import_module(home), name)
        setattr(sys.modules[room], name, found)
        return found

    def names() -> list[str]:
        return sorted(_homes(room))

    return get, names


@cache
def _homes(room: str) -> dict[str, str]:
    """Return the module that has each public name."""
    path = sys.modules[room].__file__
    assert path is not None
    stub = ast.parse(Path(path).with_suffix(_SUFFIX).read_text(encoding="utf-8"))
    return {
        alias.name: node.module
        for node in stub.body
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
    }
