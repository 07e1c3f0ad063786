"""What the papers' commands hand over: files first, since whoever reads may stop in the middle."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest

from shoal_bench.cli import (
    reproduce_combined,
    reproduce_dlcp,
    reproduce_ds_sync,
    reproduce_ripples,
    reproducing,
)
from shoal_bench.cli.reproducing import hand_over, table_of

if TYPE_CHECKING:
    from pathlib import Path


class ClosedPipe(io.StringIO):
    """Output that nobody reads."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_files_are_written_although_nobody_reads_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of("Title", ["name", "value"])
    table.add_row("one", "1")
    json, plot = tmp_path / "found.json", tmp_path / "found.svg"
    monkeypatch.setattr("sys.stdout", ClosedPipe())
    with pytest.raises(BrokenPipeError):
        hand_over(
            [table], "End.", json=json, report=lambda: {"a": 1}, plot=plot, drawing=lambda: "<svg/>"
        )
    assert json.read_text() == '{\n "a": 1\n}\n'
    assert plot.read_text() == "<svg/>"


def test_what_no_file_is_named_for_is_not_made(capsys: pytest.CaptureFixture[str]) -> None:
    def never() -> str:
        raise AssertionError

    full, empty = table_of("Full", ["name"]), table_of("Empty", ["name"])
    full.add_row("one")
    hand_over([full, empty], "End.", json=None, report=never, plot=None, drawing=never)
    printed = capsys.readouterr().out
    assert "Full" in printed
    assert "Empty" not in printed
    assert printed.endswith("End.\n")


@pytest.mark.parametrize(
    "command", [reproduce_combined, reproduce_dlcp, reproduce_ds_sync, reproduce_ripples]
)
def test_every_command_prints_by_way_of_it(command: object) -> None:
    names = vars(command)
    assert names["hand_over"] is reproducing.hand_over
    assert not {"output_console", "write_whole", "print"} & names.keys()
