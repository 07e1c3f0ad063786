"""One run of a sweep: a function, its arguments, and a key of all that its result depends on.

A run travels to other processes, so its function is a module's own and its arguments are values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import shoal

_SHOWS_ONLY: Final = ("cli", "report")
"""Rooms that no run's result depends on."""
_SOURCES: Final = ("*.py", "*.toml", "*.json")


@dataclass(frozen=True, slots=True)
class Run:
    """`work(**arguments, tick=...)`, where `tick` is told the share that is done now and then.

    Arguments and result are values: they can be pickled, are written out in full by `repr`, and the
    result is one that msgspec can encode.
    """

    name: str
    """What progress and errors call it."""
    work: Callable[..., Any]
    arguments: Mapping[str, Any]
    weight: float = 1.0
    """The approximate time that the run takes, relative to the others."""

    @property
    def key(self) -> str:
        """A hash of the function, its arguments (scenario, parameters, seed) and Shoal's code."""
        text = repr((self.work.__module__, self.work.__qualname__, sorted(self.arguments.items())))
        if " at 0x" in text:
            message = f"Run {self.name!r} has an argument that is no value: {text}"
            raise TypeError(message)
        return hashlib.blake2b(f"{code_version()} {text}".encode(), digest_size=12).hexdigest()


@lru_cache(maxsize=1)
def code_version() -> str:
    """Return a hash of the package's sources, but for what only shows results."""
    root = Path(shoal.__file__).parent
    digest = hashlib.blake2b(digest_size=8)
    for file in sorted(each for kind in _SOURCES for each in root.rglob(kind)):
        place = file.relative_to(root)
        if place.parts[0] not in _SHOWS_ONLY:
            digest.update(f"{place.as_posix()} ".encode() + file.read_bytes())
    return digest.hexdigest()
