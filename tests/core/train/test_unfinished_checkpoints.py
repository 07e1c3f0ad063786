"""What a writer of a checkpoint that was killed leaves behind goes with the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.train.checkpoints import Saving

if TYPE_CHECKING:
    from pathlib import Path


def test_the_next_checkpoint_takes_away_what_was_not_finished(tmp_path: Path) -> None:
    later = {".step-000000000009.pt.7", "step-000000000003.pt", "notes.txt"}
    for name in (".step-000000000003.pt.99", ".step-000000000004.pt.5", *later):
        (tmp_path / name).write_bytes(b"half")
    saving = Saving(tmp_path / "step-000000000005.pt")
    saving.begin({"format": 1}, keep=2)
    saving.wait()
    assert {each.name for each in tmp_path.iterdir()} == {*later, "step-000000000005.pt"}
