"""What a writer of a checkpoint that was killed leaves behind goes with the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shoal.errors import DataError
from shoal.train.checkpoints import Saving, _check_shared, _there

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def test_the_next_checkpoint_takes_away_what_was_not_finished(tmp_path: Path) -> None:
    later = {".step-000000000009.pt.7", "step-000000000003.pt", "notes.txt"}
    for name in (".step-000000000003.pt.99", ".step-000000000004.pt.5", *later):
        (tmp_path / name).write_bytes(b"half")
    saving = Saving(tmp_path / "step-000000000005.pt")
    saving.begin({"format": 1}, keep=2)
    saving.wait()
    assert {each.name for each in tmp_path.iterdir()} == {*later, "step-000000000005.pt"}


def parts_of(steps: int, view: int, numbers: Iterable[int], count: int) -> list[str]:
    return [f"step-{steps:012}.view-{view}.part-{n}-of-{count}.pt" for n in numbers]


def test_a_checkpoint_that_lacks_a_part_is_none(tmp_path: Path) -> None:
    whole = [*parts_of(3, 0, range(2), 2), *parts_of(9, 1, range(3), 3)]
    lacking = [*parts_of(9, 0, [0], 2), *parts_of(12, 1, [0, 2], 3), *parts_of(6, 0, [1], 2)]
    for name in (*whole, *lacking, "step-000000000004.pt", "step-000000000005.part-1-of-2.pt"):
        (tmp_path / name).touch()
    assert [[path.name for path in parts] for parts in _there(tmp_path)] == [
        whole[:2],
        ["step-000000000004.pt"],
        whole[2:],
    ]


def test_older_parts_go_once_a_newer_checkpoint_is_whole(tmp_path: Path) -> None:
    def left() -> set[str]:
        return {each.name for each in tmp_path.iterdir()}

    def save(name: str) -> None:
        saving = Saving(tmp_path / name)
        saving.begin({"format": 1}, keep=1)
        saving.wait()

    old, new = parts_of(3, 0, range(2), 2), parts_of(6, 0, range(2), 2)
    lacking = parts_of(2, 0, [1], 2)
    for name in (*old, *lacking):
        (tmp_path / name).touch()
    save(new[0])
    assert left() == {*old, new[0]}, "the newer one is not whole yet"
    save(new[1])
    assert left() == {*new}


def test_parts_that_never_made_a_whole_are_not_overlooked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _check_shared(tmp_path / "none")
    _check_shared(tmp_path)
    for steps in (2, 4):  # it died while it wrote its first ones
        (tmp_path / parts_of(steps, 0, [1], 2)[0]).touch()
    assert not caplog.records
    _check_shared(tmp_path)
    assert "step-000000000002.view-0.part-1-of-2.pt, and no whole one" in caplog.text
    (tmp_path / parts_of(6, 0, [1], 2)[0]).touch()
    with pytest.raises(DataError, match="all workers must save into one folder"):
        _check_shared(tmp_path)
