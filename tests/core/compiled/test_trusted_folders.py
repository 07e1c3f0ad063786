"""Folders of compiled code that somebody else could write to are refused in a sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal.compiled.trust import check_trusted
from shoal.errors import ResourceError


def make(base: Path) -> Path:
    folder = base / "shoal" / "compiled" / "0123"
    folder.mkdir(parents=True)
    for each in (folder, *folder.parents[:2]):
        each.chmod(0o755)
    return folder


def test_a_folder_of_this_user_alone_is_trusted(tmp_path: Path) -> None:
    check_trusted(make(tmp_path), tmp_path)


def test_a_folder_that_is_not_there_yet_is_trusted(tmp_path: Path) -> None:
    check_trusted(tmp_path / "shoal" / "compiled" / "0123", tmp_path)


@pytest.mark.parametrize("above", [0, 1, 2])
@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757])
def test_folders_that_others_may_write_to_are_refused(
    tmp_path: Path, above: int, mode: int
) -> None:
    folder = make(tmp_path)
    changed = (folder, *folder.parents)[above]
    changed.chmod(mode)
    with pytest.raises(ResourceError, match=f"{changed} for compiled code can be written to by"):
        check_trusted(folder, tmp_path)


def test_the_users_cache_may_lie_in_a_folder_like_tmp(tmp_path: Path) -> None:
    folder = make(tmp_path)
    tmp_path.chmod(0o1777)
    check_trusted(folder, tmp_path)
    tmp_path.chmod(0o777)  # here others could put a folder of theirs in its place
    with pytest.raises(ResourceError, match="can be written to by other users"):
        check_trusted(folder, tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
@pytest.mark.parametrize("above", [0, 1, 2, 3])
def test_folders_of_others_are_refused(tmp_path: Path, above: int) -> None:
    folder = make(tmp_path)
    os.chown((folder, *folder.parents)[above], 12345, -1)
    with pytest.raises(ResourceError, match="belongs to another user"):
        check_trusted(folder, tmp_path)
