"""Help texts: what is in brackets is a style to rich, and left out, unless it is escaped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.text import Text
from typer.main import get_command

from shoal.cli.app import _make_app


def texts(command: Any, name: str = "shoal") -> Iterator[tuple[str, str]]:
    """Yield every help text of a command and of those under it, with what it is of."""
    yield name, command.help or ""
    for each in command.params:
        yield f"{name} {each.name}", getattr(each, "help", None) or ""
    for word, one in getattr(command, "commands", {}).items():
        yield from texts(one, f"{name} {word}")


def test_nothing_is_eaten() -> None:
    found = dict(texts(get_command(_make_app())))
    assert len(found) > 100
    for name, text in found.items():
        assert Text.from_markup(text).plain == text.replace("\\[", "["), name
    for name in ("shoal simulate scenario", "shoal plan cluster"):
        assert "[training] table" in Text.from_markup(found[name]).plain
