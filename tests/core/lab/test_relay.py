"""Lines that are cut out of chunks, against a slow oracle, and targets that fail."""

from __future__ import annotations

import contextlib
import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import ResourceError
from shoal.lab import relay as relays
from shoal.lab.relay import LineSplitter, Relay


def cut(*chunks: bytes) -> list[bytes]:
    splitter = LineSplitter()
    lines = [line for chunk in chunks for line in splitter.push(chunk)]
    return lines + splitter.finish()


def oracle(text: bytes, most: int) -> list[bytes]:
    """Return the lines of `text` as soon as all of it is there."""
    *ended, rest = re.sub(rb"\r*\n", b"\n", text).split(b"\n")
    lines = [part for line in ended for part in [*filter(None, line.split(b"\r"))] or [b""]]
    lines += filter(None, rest.split(b"\r"))
    return [line[k : k + most] for line in lines for k in range(0, max(1, len(line)), most)]


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([b"a\n\nb"], [b"a", b"", b"b"]),
        ([b"a\r\nb\r\n"], [b"a", b"b"]),
        ([b"a\r", b"\nb"], [b"a", b"b"]),
        ([b"\r", b"\n"], [b""]),
        ([b"\r 0%", b"\r50%\r", b"\r99%", b"\n"], [b" 0%", b"50%", b"99%"]),
    ],
)
def test_lines_end_with_newlines_and_carriage_returns(
    chunks: list[bytes], lines: list[bytes]
) -> None:
    assert cut(*chunks) == lines


def test_progress_is_there_before_its_line_ends() -> None:
    splitter = LineSplitter()
    assert splitter.push(b"50%\r") == [b"50%"]
    assert splitter.push(b"60%\r") == [b"60%"]


@given(chunks=st.lists(st.text("ab\r\n", max_size=8).map(str.encode), max_size=8))
def test_lines_do_not_depend_on_where_they_are_cut(chunks: list[bytes]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relays, "MOST_BYTES", 3)
        assert cut(*chunks) == oracle(b"".join(chunks), 3)


def test_what_has_no_end_is_passed_on_in_parts() -> None:
    splitter = LineSplitter()
    assert splitter.push(b"x" * (relays.MOST_BYTES - 1)) == []
    assert splitter.push(b"xy") == [b"x" * relays.MOST_BYTES]
    assert splitter.push(b"\n") == [b"y"]


def say(relay: Relay, target: int, *texts: bytes) -> None:
    """Have a speaker for each of `texts` say it to `target`, until all have ended."""
    with contextlib.ExitStack() as sources:
        for number, text in enumerate(texts):
            reading, writing = os.pipe()
            source = sources.enter_context(os.fdopen(reading, "rb", buffering=0))
            os.write(writing, text)
            os.close(writing)
            relay.add(f"host{number}", source, target)
        relay.finish()


def test_lines_come_with_the_name_of_who_said_them() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as heard, Relay() as relay:
        say(relay, writing, b"a\rb\n", b"c")
        relay.check()
        os.close(writing)
        assert sorted(heard) == [b"[host0] a\n", b"[host0] b\n", b"[host1] c\n"]


def test_a_reader_that_has_gone_is_told_from_a_target_that_is_full() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        for target, kind, words in (
            (full, ResourceError, f"written to descriptor {full}: No space left on device.$"),
            (writing, BrokenPipeError, "Broken pipe"),
        ):
            with Relay() as relay:
                say(relay, target, b"a\n", b"b\n")
                with pytest.raises(kind, match=words):
                    relay.check()
    finally:
        os.close(writing)
        os.close(full)
