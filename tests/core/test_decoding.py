"""Whatever bytes come, decoding gives a value or one sentence of the class that was asked for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.decoding import DEEPEST, decode_json, decode_msgpack, decode_text, decode_toml
from shoal.errors import DataError, ProtocolError, ShoalError, UsageError


class Card(msgspec.Struct):
    name: str
    notes: dict[str, Any] = {}


BAD_JSON = {
    "truncated": b'{"name": "a',
    "of another kind": b"[1, 2]",
    "a flipped bit": b'{"name": "\xe1"}',
    "nested": b'{"name": "a", "notes": {"x": ' + b"[" * 5000,
    "a number of thousands of digits": b'{"name": ' + b"1" * 5000 + b"}",
    "half a surrogate": b'{"name": "\\ud800"}',
    "nothing": b"",
}


@pytest.mark.parametrize("content", BAD_JSON.values(), ids=BAD_JSON)
def test_bad_json_is_one_sentence(content: bytes) -> None:
    with pytest.raises(DataError, match=r"\Acard\.json is no card \(.+\); make one\.\Z"):
        decode_json(content, Card, "card.json is no card", "make one")


def test_the_class_is_the_callers() -> None:
    with pytest.raises(ProtocolError, match=r"\ARank 3 sent no card \(.+\)\.\Z"):
        decode_msgpack(b"\x81\xa4name\xa1\xff", Card, "Rank 3 sent no card", raises=ProtocolError)


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 5000,
        "a" + ".a" * 5000 + " = 1",
        "a = " + "[" * DEEPEST + "]" * DEEPEST,
        "a = " + "1" * 5000,
        "a = ",
    ],
)
def test_bad_toml_is_one_sentence(text: str) -> None:
    with pytest.raises(UsageError, match=r"\Aspec\.toml is not TOML \([^()]+.*\)\.\Z"):
        decode_toml(text, "spec.toml is not TOML", raises=UsageError)


def test_what_is_nested_less_is_read() -> None:
    depth = DEEPEST - 1
    found: Any = decode_toml("a = " + "[" * depth + "]" * depth, "it")["a"]
    for _ in range(depth - 1):
        (found,) = found
    assert found == []


def test_text_says_that_it_is_not_utf_8() -> None:
    assert decode_text("Schwärme".encode(), "it") == "Schwärme"
    with pytest.raises(DataError, match=r"\Anotes is not text \(not all of it is UTF-8\)\.\Z"):
        decode_text(b"Schw\xe4rme", "notes is not text")


@given(st.binary() | st.recursive(st.binary(), lambda inner: st.builds(lambda x: b"[" + x, inner)))
def test_nothing_else_is_raised(content: bytes) -> None:
    sentences: list[str] = []
    for kind in (Card, dict[str, Any], list[int]):
        for decode in (decode_json, decode_msgpack):
            try:
                found = decode(content, kind, "it")
            except ShoalError as error:
                sentences.append(str(error))
            else:
                assert isinstance(found, kind if kind is Card else (dict, list))
    assert all(each.startswith("it (") for each in sentences)
