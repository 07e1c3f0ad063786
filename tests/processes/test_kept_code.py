"""Machine code of entries, kept between processes: the same results without the compiler.

Every process here is one of its own with the cache that it is told, and says whether it has
imported numba.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from thoroughness import seldom

SCRIPT = """
from __future__ import annotations

import json
import sys
from typing import NamedTuple

import numpy as np

from shoal.compiled import compiled, entry
from shoal.compiled.libc import CLOCK_MONOTONIC, TIMESPEC, microseconds

RECORD = np.dtype([("count", "<i4"), ("mean", "<f8")], align=True)


class Tables(NamedTuple):
    rows: np.ndarray
    grid: np.ndarray


@compiled
def is_larger(value: float, limit: float) -> bool:
    return value > limit


@entry
def scale(tables: Tables, factor: float, extra: np.ndarray, start: int, both: bool) -> float:
    total = 0.0
    for row in range(tables.grid.shape[0]):
        for column in range(tables.grid.shape[1]):
            tables.grid[row, column] *= factor
            total += tables.grid[row, column] / 3.0
        tables.rows[row]["count"] = start + row
        tables.rows[row]["mean"] = total / (row + 1)
    if both:
        for index in range(extra.size):
            extra[index] += total
    return total


@entry
def larger(value: float, limit: float) -> bool:
    return is_larger(value, limit)


@entry
def difference(first: int, second: int) -> int:
    return first - second


@entry
def note_time(times: np.ndarray, found: np.ndarray) -> None:
    found[0] = microseconds(CLOCK_MONOTONIC, times.ctypes.data)


def results(scale):
    grid = np.random.default_rng(1).normal(size=(3, 5))
    tables, extra = Tables(np.zeros(3, RECORD), grid), np.arange(4, dtype=np.float32)
    total = scale(tables, 1.7, extra, -(1 << 31), True)
    more = scale(tables, 0.3, extra, 7, False)
    return [total.hex(), more.hex(), *(each.tobytes().hex() for each in (*tables, extra))]


if __name__ == "__main__":
    found = np.zeros(1, np.int64)
    assert note_time(np.zeros(1, TIMESPEC), found) is None
    assert found[0] > 0
    assert larger(2.5, 2.25) is True
    assert larger(2.25, 2.5) is False
    assert difference(-5, 1 << 62) == -5 - (1 << 62)
    assert difference.given()(3, 4) == -1
    answer = {"results": results(scale), "compiles": "numba" in sys.modules}
    if "--plain" in sys.argv:
        answer["plain"] = results(scale.function)
    print(json.dumps(answer))
"""


class Ran(NamedTuple):
    """What a process printed."""

    results: list[str]
    compiles: bool
    plain: list[str] | None = None


class Place(NamedTuple):
    """A script, and the cache of those who run it."""

    folder: Path

    @property
    def script(self) -> Path:
        return self.folder / "script.py"

    def run(self, *arguments: str, **environment: str) -> Ran:
        place = {"XDG_CACHE_HOME": str(self.folder / "cache")}
        done = subprocess.run(
            [sys.executable, self.script, *arguments],
            env=os.environ | place | environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=50,
        )
        assert done.returncode == 0, done.stderr
        return Ran(**json.loads(done.stdout))

    def kept(self, function: str = "") -> list[Path]:
        """Return the files with machine code."""
        return sorted(self.folder.glob(f"cache/shoal/compiled/*/entries-*/*{function}-*"))


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A place where the script has run once."""
    place = Place(tmp_path_factory.mktemp("warm"))
    place.script.write_text(SCRIPT)
    first = place.run("--plain")
    assert first.compiles
    assert first.results == first.plain  # what Python itself computes, bit by bit
    return place


@pytest.fixture
def place(warm: Place, tmp_path: Path) -> Place:
    """A copy of the warm place, to be spoiled."""
    shutil.copytree(warm.folder, tmp_path, dirs_exist_ok=True)
    return Place(tmp_path)


def test_kept_code_gives_the_same_bits_without_the_compiler(warm: Place) -> None:
    again = warm.run()
    assert not again.compiles
    assert again.results == warm.run("--plain").plain
    assert len(warm.kept()) == 4


def _flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def _call_nobody(content: bytes) -> bytes:
    """Let the code call a function that no library has; all else is as written."""
    body = content[hashlib.sha256().digest_size :].replace(b"clock_gettime", b"clock_nowhere")
    return hashlib.sha256(body).digest() + body


@pytest.mark.parametrize(
    "damage",
    seldom(
        [_flip, _call_nobody, lambda content: content[:-100], lambda content: b""],
        often=[_flip],
    ),
    ids=["a bit", "a symbol", "the end", "all"],
)
def test_damaged_code_is_compiled_anew(
    warm: Place, place: Place, damage: Callable[[bytes], bytes]
) -> None:
    (file,) = place.kept("note_time")
    whole = file.read_bytes()
    assert damage(whole) != whole
    file.write_bytes(damage(whole))
    repaired = place.run()
    assert repaired.compiles
    assert repaired.results == warm.run().results
    assert not place.run().compiles


@pytest.mark.long  # as long as that of one source
def test_code_is_for_one_processor(place: Place) -> None:
    """What stands for another processor here is another setting of numba."""
    assert place.run(NUMBA_OPT="1").compiles
    assert len(place.kept()) == 8


def test_code_is_for_one_source(place: Place) -> None:
    place.script.write_text(SCRIPT.replace("total = 0.0", "total = 1.0"))
    changed = place.run("--plain")
    assert changed.compiles
    assert changed.results == changed.plain


@pytest.mark.long
def test_another_clone_of_the_source_compiles_nothing(place: Place, tmp_path: Path) -> None:
    clone = Place(tmp_path / "clone")
    clone.folder.mkdir()
    clone.script.write_text(SCRIPT)
    shared = {"XDG_CACHE_HOME": str(place.folder / "cache")}
    assert not clone.run(**shared).compiles
    for each in place.kept():
        each.unlink()
    before = _parts(place)
    assert before
    assert clone.run(**shared).compiles  # links the parts that are kept
    assert _parts(place) == before


def _parts(place: Place) -> dict[str, float]:
    """Return the files with the code of compiled functions, and when each was written."""
    found = place.folder.glob("cache/shoal/compiled/*/parts-*/*")
    return {str(each): each.stat().st_mtime for each in found}


def test_code_that_somebody_else_could_have_put_there_is_not_run(place: Place) -> None:
    (folder,) = (place.folder / "cache" / "shoal" / "compiled").iterdir()
    folder.chmod(0o777)
    with pytest.raises(AssertionError, match="could hold code of theirs: remove it, or set"):
        place.run()


@pytest.mark.long
def test_without_a_place_to_write_every_process_compiles(warm: Place) -> None:
    for _ in range(2):
        alone = warm.run(XDG_CACHE_HOME="/proc/nowhere")
        assert alone.compiles
        assert alone.results == warm.run().results
