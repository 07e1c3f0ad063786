"""Folders of compiled code: which are too old, and that none is removed that somebody uses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.compiled import cache_folders
from shoal.compiled.cache_folders import IDLE_S, KEPT, UNUSED_S, hold, outdated, remove_old

NOW = 1_000_000_000.0
DAY = 86400.0

HOLDER = """
import sys
from pathlib import Path
from shoal.compiled.cache_folders import hold
held = hold(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def make(parent: Path, name: str, days: float, *, was_locked: bool = True) -> Path:
    """Make a folder with something in it that was last used so many days ago."""
    folder = parent / name
    (folder / "room").mkdir(parents=True)
    (folder / "room" / "code.nbc").write_bytes(b"code")
    if was_locked:
        (folder / ".used").touch()
        os.utime(folder / ".used", (NOW - days * DAY,) * 2)
    os.utime(folder, (NOW - days * DAY,) * 2)
    return folder


def names(parent: Path) -> set[str]:
    return {each.name for each in parent.iterdir()}


@given(ages=st.lists(st.floats(-10.0, 100 * DAY), max_size=9))
def test_the_newest_stay_unless_long_unused_and_the_others_unless_used_lately(
    ages: list[float],
) -> None:
    last_used = {str(index): NOW - age for index, age in enumerate(ages)}
    gone = outdated(last_used, NOW)
    assert gone == sorted(gone, key=lambda name: (last_used[name], name))
    for name, time in last_used.items():
        newer = sum((each, other) > (time, name) for other, each in last_used.items())
        is_one_too_many = newer + 1 >= KEPT  # the one in use is newer still
        longest_s = IDLE_S if is_one_too_many else UNUSED_S
        assert (name in gone) == (NOW - time > longest_s)


def test_old_ones_are_removed_with_all_that_is_in_them(tmp_path: Path) -> None:
    own = make(tmp_path, "own", 0)
    for number in range(KEPT + 2):
        make(tmp_path, f"version{number}", 2 + number)
    make(tmp_path, "ancient", 31)
    assert set(remove_old(own, NOW)) == {"ancient", "version3", "version4", "version5"}
    assert names(tmp_path) == {"own", "version0", "version1", "version2"}
    assert remove_old(own, NOW) == []


def test_one_that_was_never_locked_goes_by_when_it_was_made(tmp_path: Path) -> None:
    own = make(tmp_path, "own", 0)
    make(tmp_path, "old", 31, was_locked=False)
    make(tmp_path, "new", 29, was_locked=False)
    assert remove_old(own, NOW) == ["old"]
    assert names(tmp_path) == {"own", "new"}


def test_one_that_a_process_uses_stays_and_goes_when_it_has_ended(tmp_path: Path) -> None:
    own, other = make(tmp_path, "own", 0), make(tmp_path, "other", 40)
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(other)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        os.utime(other / ".used", (NOW - 40 * DAY,) * 2)  # in use for as long
        assert remove_old(own, NOW) == []
        assert (other / "room" / "code.nbc").read_bytes() == b"code"
    finally:
        process.kill()
        process.communicate(timeout=10)
    assert remove_old(own, NOW) == ["other"]


def test_who_comes_while_one_is_removed_makes_it_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(tmp_path, "version", 40)
    original = cache_folders.fcntl.flock
    turns = []

    def flock(file: object, operation: int) -> None:
        if not turns:  # after it was opened, and before it is locked
            turns.append(operation)
            folder.rename(tmp_path / "version.1.removed")
        original(file, operation)  # type: ignore[arg-type]

    monkeypatch.setattr(cache_folders.fcntl, "flock", flock)
    held = hold(folder)
    assert held is not None
    with held:
        assert names(folder) == {".used"}
        assert os.path.samestat(os.fstat(held.fileno()), (folder / ".used").stat())


def test_a_removal_that_was_interrupted_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = make(tmp_path, "own", 0)
    make(tmp_path, "old", 40)

    def crash(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(cache_folders.shutil, "rmtree", crash)
        with pytest.raises(KeyboardInterrupt):
            remove_old(own, NOW)
    assert len(names(tmp_path)) == 2
    assert "old" not in names(tmp_path)  # whoever needs it now starts with nothing
    assert remove_old(own, NOW) == []
    assert names(tmp_path) == {"own"}


def test_where_nothing_can_be_kept_nothing_is_held(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert hold(tmp_path / "file" / "folder") is None
    assert remove_old(tmp_path / "nowhere" / "own", NOW) == []


def test_to_use_one_makes_it_new_again(tmp_path: Path) -> None:
    folder = make(tmp_path, "version", 40)
    held = hold(folder)
    assert held is not None
    with held:
        assert (folder / ".used").stat().st_mtime > NOW - 40 * DAY
