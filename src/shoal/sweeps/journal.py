"""The file of finished runs: one line of JSON each, added as soon as a run ends.

A sweep that was interrupted goes on from it. A line that was cut short counts as not written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from shoal.decoding import decode_json
from shoal.errors import DataError, ResourceError

if TYPE_CHECKING:
    from pathlib import Path


class _Line(msgspec.Struct, frozen=True):
    key: str
    name: str
    seconds: float
    """The seconds that the run took."""
    result: msgspec.Raw


class Journal:
    """Results as JSON by the keys of their runs. Raises `DataError` if `path` cannot be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, tuple[bytes, float]] = {}
        self._lacks_newline = False
        try:
            content = path.read_bytes() if path.exists() else b""
        except OSError as error:
            message = f"Cannot read the finished runs in {path}: {error.strerror}."
            raise DataError(message) from error
        for line in content.splitlines():
            try:
                found = decode_json(line, _Line, f"{path} has a line that is no finished run")
            except DataError:  # cut off, perhaps: that run is made again
                continue
            self._known[found.key] = bytes(found.result), found.seconds
        if content and not self._known:
            message = f"{path} holds no finished runs: name another file."
            raise DataError(message)
        self._lacks_newline = bool(content) and not content.endswith(b"\n")

    def find(self, key: str) -> tuple[bytes, float] | None:
        """Return a run's result and the seconds it took, None if it has not been made."""
        return self._known.get(key)

    def begin(self) -> None:
        """Make the file if it is not there. Raises `ResourceError` if it cannot be written."""
        self._append(b"")

    def add(self, key: str, name: str, seconds: float, result: bytes) -> None:
        """Write a run down. Raises `ResourceError` if that cannot be."""
        line = msgspec.json.encode(_Line(key, name, seconds, msgspec.Raw(result))) + b"\n"
        self._append(b"\n" + line if self._lacks_newline else line)
        self._lacks_newline = False
        self._known[key] = result, seconds

    def _append(self, content: bytes) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab", buffering=0) as file:  # one write: others may add as well
                file.write(content)
        except OSError as error:
            message = f"Cannot write finished runs to {self._path}: {error.strerror}."
            raise ResourceError(message) from error
