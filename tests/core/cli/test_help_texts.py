"""Help that can be read in a terminal of 80 columns, and says which words an option takes."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from shoal.cli import commands as commands_module
from shoal.cli import words
from shoal.cli.commands import COMMANDS, make_app
from shoal.strategies import STRATEGIES

APP = make_app()


def commands(command: Any, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield a command and those under it, with the words that call them."""
    yield names, command
    for name, each in getattr(command, "commands", {}).items():
        yield from commands(each, *names, name)


ALL = dict(commands(get_command(APP)))


def shown(*names: str, option: str = "--help") -> list[str]:
    result = CliRunner().invoke(
        APP, [*names, option], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}
    )
    assert result.exit_code == 0
    return result.stdout.splitlines()


@pytest.mark.parametrize("names", ALL, ids=[" ".join(names) or "shoal" for names in ALL])
def test_help_is_plain_text_of_80_columns(names: tuple[str, ...]) -> None:
    lines = shown(*names)
    assert lines == shown(*names, option="-h")
    assert lines[0].startswith("Usage: ")
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "<bool>" not in text
    assert not any(line.rstrip().endswith("...") for line in lines[1:]), "a summary is cut off"
    for param in ALL[names].params:
        if metavar := getattr(param, "metavar", None):
            assert metavar in text, "broken in the middle"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_of_a_command_what_the_command_says_of_itself(name: str) -> None:
    assert ALL[name,].help.split("\n\n")[0].replace("\n", " ") == COMMANDS[name].summary


def test_commands_of_a_distribution_that_is_half_gone_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = EntryPoint("gone", "no_such_package.cli:GONE", "shoal.commands")
    monkeypatch.setattr(commands_module, "entry_points", lambda group: [gone])
    assert list(get_command(make_app()).commands) == list(COMMANDS)


def test_some_words_of_toml_have_brackets() -> None:
    assert "[training]" in "\n".join(shown("simulate"))


@pytest.mark.parametrize(
    ("names", "known"),
    [
        (("train",), tuple(STRATEGIES)),
        (("train",), words.DATASETS),
        (("train",), words.MODELS),
        (("demo",), tuple(STRATEGIES)),
        (("profile-loss",), words.DATASETS),
    ],
)
def test_help_lists_the_words(names: tuple[str, ...], known: tuple[str, ...]) -> None:
    assert ", ".join(known) in " ".join(" ".join(shown(*names)).split())


def test_words_are_those_of_their_rooms() -> None:
    pytest.importorskip("torch")
    from shoal.carriers.transports import TRANSPORTS
    from shoal.transport.forms import WIRE_TYPES
    from shoal.transport.holes import POLICIES
    from shoal.workloads import DATASETS, MODELS

    assert tuple(DATASETS) == words.DATASETS
    assert tuple(MODELS) == words.MODELS
    assert set(TRANSPORTS) == set(words.TRANSPORTS)
    assert set(POLICIES) == set(words.HOLES)
    assert set(WIRE_TYPES) == set(words.WIRE_TYPES)


def test_completion_gives_the_words_that_begin_so(monkeypatch: pytest.MonkeyPatch) -> None:
    # whatever shell has started the tests
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("bash", "/bin/bash"))
    assert words.completing(list(STRATEGIES))("ripples-") == ["ripples-static", "ripples-random"]
    script = CliRunner().invoke(APP, ["--show-completion", "bash"])
    assert "_SHOAL_COMPLETE" in script.stdout or "COMP_WORDS" in script.stdout
