"""Decodes foreign JSON, MessagePack, TOML and UTF-8: the outcome is a value, or one sentence.

Owns which exceptions decoders raise, which are more than they document: text that is not UTF-8,
brackets nested thousands deep and numbers of thousands of digits are no `DecodeError`. Knows
neither files nor sockets: `fault` is the caller's word for what is wrong, and names the place.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from shoal.errors import DataError, ShoalError

T = TypeVar("T")
Content = TypeVar("Content")

DEEPEST: Final = 64
"""Levels of tables and lists that a TOML text may have: code that copies or prints its values walks
down them."""

_NESTED: Final = "its brackets are nested too deep"


def decoded(
    decode: Callable[[Content], T],
    content: Content,
    fault: str,
    advice: str = "",
    raises: type[ShoalError] = DataError,
) -> T:
    """Return what `decode` makes of `content`, which may be anything.

    Raises `raises`, with the sentence "`fault` (why); `advice`.", if it can make nothing of it.
    `fault` says of which place what is not so, such as "run.json is not a Shoal result file".
    """
    try:
        return decode(content)
    except RecursionError:
        reason = _NESTED
    except UnicodeDecodeError:  # its place may count from a string's begin, not the text's
        reason = "not all of it is UTF-8"
    except ValueError as error:  # msgspec's and tomllib's errors are of this kind
        reason = str(error).rstrip(".")
    message = f"{fault} ({reason}); {advice}." if advice else f"{fault} ({reason})."
    raise raises(message) from None


def decode_json(
    content: bytes | str,
    kind: type[T],
    fault: str,
    advice: str = "",
    raises: type[ShoalError] = DataError,
) -> T:
    """Return the `kind` that a JSON text holds; `decoded` says what is raised if it holds none."""
    return decoded(msgspec.json.Decoder(kind).decode, content, fault, advice, raises)


def decode_msgpack(
    content: bytes,
    kind: type[T],
    fault: str,
    advice: str = "",
    raises: type[ShoalError] = DataError,
) -> T:
    """Return the `kind` in a MessagePack; `decoded` says what is raised if it holds none."""
    return decoded(msgspec.msgpack.Decoder(kind).decode, content, fault, advice, raises)


def decode_toml(
    text: str,
    fault: str,
    advice: str = "",
    raises: type[ShoalError] = DataError,
) -> dict[str, Any]:
    """Return the values of a TOML text; `decoded` says what is raised for other content."""
    return decoded(_shallow_toml, text, fault, advice, raises)


def decode_text(
    content: bytes,
    fault: str,
    advice: str = "",
    raises: type[ShoalError] = DataError,
) -> str:
    """Return `content` as UTF-8 text; `decoded` says what is raised for other content."""
    return decoded(_utf8, content, fault, advice, raises)


def _utf8(content: bytes) -> str:
    return content.decode("utf-8")


def _shallow_toml(text: str) -> dict[str, Any]:
    """Return the values of a TOML text; raise `ValueError` for what is nested beyond `DEEPEST`."""
    values = tomllib.loads(text)
    level: list[Any] = [values]
    for _ in range(DEEPEST):
        level = [
            inner
            for each in level
            for inner in (each.values() if isinstance(each, dict) else each)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return values
    raise ValueError(_NESTED)
