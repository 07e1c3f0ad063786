"""Files of results are written whole or not at all, and never in place of what is no file."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from shoal.errors import ResourceError
from shoal.jobs.files import write_whole

if TYPE_CHECKING:
    from pathlib import Path


def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path: Path) -> None:
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    target.write_bytes(b"old")
    link.symlink_to(target)
    write_whole(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert sorted(tmp_path.iterdir()) == [link, target]


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_whole(pipe, b"content")
    reader.join()
    assert read == [b"content"]
    assert pipe.is_fifo()


def test_what_cannot_be_written_leaves_the_old_file_and_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "result.json"
    place.write_bytes(b"old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", fail)
    with pytest.raises(ResourceError, match=r"Cannot write the trace to .*: No space left"):
        write_whole(place, b"new", "the trace")
    assert place.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [place]
