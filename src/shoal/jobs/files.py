"""Files of results: read as what they should be, and written whole or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from shoal.decoding import decode_json
from shoal.errors import DataError, ResourceError

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")


def read_json(path: Path, kind: type[T], wanted: str, advice: str) -> T:
    """Return the `kind` that is in the JSON file at `path`.

    Raises `DataError` when it is absent, truncated or of another kind; the sentence says that it is
    not what was `wanted`, and gives the `advice`.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        message = f"Cannot read {path}: {error.strerror}."
        raise DataError(message) from error
    return decode_json(content, kind, f"{path} is not {wanted}", advice)


def indented_json(content: object) -> bytes:
    """Return `content` as JSON that people can read, with a newline at its end."""
    return msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n"


def write_whole(path: Path, content: bytes, what: str = "") -> None:
    """Write `content` to `path`, whole or not at all; `ResourceError` if that cannot be.

    `what` it is, for the sentence. What is not a file, such as a pipe, is written to as it is.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        place = path.resolve()  # behind a link, which stays
        draft = place.with_name(f"{place.name}.part")
        try:
            draft.write_bytes(content)
            draft.replace(place)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        message = f"Cannot write {what + ' to ' if what else ''}{path}: {error.strerror}."
        raise ResourceError(message) from error
