"""Parts of compiled code that one process has written and another links."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PARTS = ["_lasts", "first_place", "longest_wait", "place_of", "recalls"]


def run(cache: Path, records: int = 0) -> tuple[list[str], list[float]]:
    """Return the parts that a new process wrote itself, and what their callers returned.

    Numba comes upon so many types of records there before those that are passed to them.
    """
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("use_parts.py"), str(records)],
        env=os.environ | {"XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    )
    written, results = json.loads(done.stdout)
    return sorted(written), results


def kept_parts(cache: Path) -> dict[str, Path]:
    """Return the parts' files by their functions' names: each is called with one list of types."""
    files = [each for each in cache.rglob("parts-*/*") if each.is_file()]
    assert len(files) == len(PARTS)
    return {each.name.rpartition("-")[0].rpartition(".")[2]: each for each in files}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """Return a folder in which a process has kept its parts, and what these did."""
    folder = tmp_path_factory.mktemp("cache")
    written, results = run(folder)
    assert written == PARTS
    *places, wait = results
    assert len(set(places)) == 5
    assert min(places) >= 0
    assert wait == 250.0
    return folder, results


@pytest.fixture
def cache(kept: tuple[Path, list[float]], tmp_path: Path) -> Path:
    """Return a folder that holds those parts, and no function that is whole."""
    folder = tmp_path / "cache"
    shutil.copytree(kept[0], folder)
    for functions in list(folder.rglob("functions")):
        shutil.rmtree(functions)
    return folder


def test_another_process_writes_none_of_the_parts_that_are_kept(
    kept: tuple[Path, list[float]], cache: Path
) -> None:
    assert sorted(kept_parts(cache)) == PARTS
    assert run(cache) == ([], kept[1])


@pytest.mark.long  # damaged entries are tried in processes/test_kept_code.py
def test_a_part_that_is_damaged_or_missing_is_written_anew(
    kept: tuple[Path, list[float]], cache: Path
) -> None:
    files = kept_parts(cache)
    content = bytearray(files["place_of"].read_bytes())
    content[len(content) // 2] ^= 1
    files["place_of"].write_bytes(content)
    files["first_place"].unlink()
    files["_lasts"].unlink()
    assert run(cache, records=3) == (["_lasts", "first_place", "place_of"], kept[1])
    assert sorted(kept_parts(cache)) == PARTS
