"""Labs and scenarios that come with the package, each a file to read, to run and to copy."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from shoal.errors import UsageError

_FOLDER: Final = Path(__file__).parent / "examples"


def example_names() -> list[str]:
    """Return the names of all examples, in order."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def example_file(name: str) -> Path:
    """Return the file of the example `name`; raise `UsageError`, which lists them, if none is."""
    if name not in example_names():
        message = f"There is no example {name!r}. There are {', '.join(example_names())}."
        raise UsageError(message)
    return _FOLDER / f"{name}.toml"
