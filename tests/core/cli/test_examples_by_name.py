"""Examples that come with the package are named, and take the place of a file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from shoal.cli.commands import make_app
from shoal.cli.options import file_or_example
from shoal.errors import UsageError
from shoal.scenario import example_file, example_names, read_spec


@pytest.mark.parametrize("name", example_names())
def test_every_example_is_a_cluster(name: str) -> None:
    assert read_spec(example_file(name)).topology.hosts > 1


def test_an_unknown_name_lists_those_that_there_are() -> None:
    with pytest.raises(UsageError) as refused:
        file_or_example(None, "nowhere", "a lab")
    assert all(name in str(refused.value) for name in example_names())


@pytest.mark.parametrize("given", [(None, None), (Path("a.toml"), "lossy-star")])
def test_a_file_or_an_example_is_needed_and_not_both(given: tuple[Path | None, str | None]) -> None:
    with pytest.raises(UsageError, match="--example"):
        file_or_example(*given, "a lab")


def test_a_file_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert file_or_example(Path("a.toml"), None, "a lab") == Path("a.toml")
    assert capsys.readouterr().err == ""


def test_with_an_example_all_words_of_lab_run_are_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A command's first word is not taken for the file that is missing."""
    import shoal.lab

    class Checked(Exception):
        pass

    def check(command: list[str]) -> None:
        raise Checked(command)

    monkeypatch.setattr(shoal.lab, "check_command", check)
    run = ["lab", "run", "--example", "lossy-star", "--", "./train.sh", "a"]
    monkeypatch.setattr(sys, "argv", ["shoal", *run])
    with pytest.raises(Checked) as found:
        make_app()(run, standalone_mode=False)
    assert found.value.args == (["./train.sh", "a"],)
