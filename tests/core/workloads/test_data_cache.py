"""The cache of converted data sets: what is read is what was written, and it is built once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from shoal.errors import DataError, DeadlineExceeded, ResourceError
from shoal.workloads.cache import Arrays, default_cache_dir, load_or_build, locked

if TYPE_CHECKING:
    from pathlib import Path


def sample_arrays(seed: int = 0) -> Arrays:
    random = np.random.default_rng(seed)
    return Arrays(
        random.normal(size=(12, 1, 3, 3)).astype(np.float32),
        random.integers(0, 10, 12),
        random.normal(size=(4, 1, 3, 3)).astype(np.float32),
        random.integers(0, 10, 4),
        10,
        (3, 4),
    )


def must_not_build() -> Arrays:
    raise AssertionError("built again")


def test_second_load_reads_what_the_first_one_built(tmp_path: Path):
    built = sample_arrays()
    first, fingerprint = load_or_build(tmp_path, "toy", lambda: built)
    second, same_fingerprint = load_or_build(tmp_path, "toy", must_not_build)
    for arrays in (first, second):
        np.testing.assert_array_equal(arrays.train_inputs, built.train_inputs)
        np.testing.assert_array_equal(arrays.train_targets, built.train_targets)
        np.testing.assert_array_equal(arrays.test_inputs, built.test_inputs)
        np.testing.assert_array_equal(arrays.test_targets, built.test_targets)
        assert (arrays.num_classes, arrays.field_sizes) == (10, (3, 4))
    assert fingerprint == same_fingerprint


def test_loaded_arrays_map_the_files(tmp_path: Path):
    arrays, _ = load_or_build(tmp_path, "toy", sample_arrays)
    assert isinstance(arrays.train_inputs, np.memmap)
    arrays.train_inputs[:] = 0  # private pages: the file stays as it is
    again, _ = load_or_build(tmp_path, "toy", must_not_build)
    np.testing.assert_array_equal(again.train_inputs, sample_arrays().train_inputs)


def test_fingerprint_tells_data_apart(tmp_path: Path):
    _, one = load_or_build(tmp_path, "one", lambda: sample_arrays(1))
    _, two = load_or_build(tmp_path, "two", lambda: sample_arrays(2))
    _, copy_of_one = load_or_build(tmp_path, "copy", lambda: sample_arrays(1))
    assert one == copy_of_one != two


@pytest.mark.parametrize("name", ["train_inputs.npy", "test_targets.npy", "manifest.json"])
def test_truncated_file_is_named(tmp_path: Path, name: str):
    load_or_build(tmp_path, "toy", sample_arrays)
    path = tmp_path / "toy-v1" / name
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DataError, match=rf"{name} is damaged.*delete the folder .*toy-v1 and it"):
        load_or_build(tmp_path, "toy", must_not_build)


def test_single_flipped_bit_is_noticed(tmp_path: Path):
    load_or_build(tmp_path, "toy", sample_arrays)
    path = tmp_path / "toy-v1" / "train_inputs.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="checksum is wrong"):
        load_or_build(tmp_path, "toy", must_not_build)


def test_missing_file_is_named(tmp_path: Path):
    load_or_build(tmp_path, "toy", sample_arrays)
    (tmp_path / "toy-v1" / "test_inputs.npy").unlink()
    with pytest.raises(DataError, match=r"test_inputs.npy is damaged"):
        load_or_build(tmp_path, "toy", must_not_build)


def test_manifest_that_forgets_a_file_is_refused(tmp_path: Path):
    load_or_build(tmp_path, "toy", sample_arrays)
    path = tmp_path / "toy-v1" / "manifest.json"
    path.write_text('{"files": {}, "num_classes": 10, "field_sizes": []}')
    with pytest.raises(DataError, match="incomplete"):
        load_or_build(tmp_path, "toy", must_not_build)


def test_failed_build_leaves_nothing_that_looks_built(tmp_path: Path):
    def fail() -> Arrays:
        raise DataError("no source")

    with pytest.raises(DataError, match="no source"):
        load_or_build(tmp_path, "toy", fail)
    load_or_build(tmp_path, "toy", sample_arrays)


def test_of_many_at_once_one_builds(tmp_path: Path):
    calls = []
    everyone = threading.Barrier(4, timeout=20)

    def build() -> Arrays:
        calls.append(1)
        return sample_arrays()

    results: list[str] = []

    def ask() -> None:
        everyone.wait()
        results.append(load_or_build(tmp_path, "toy", build)[1])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert len(calls) == 1
    assert len(results) == 4
    assert len(set(results)) == 1


def test_waiting_for_the_lock_ends_at_its_deadline(tmp_path: Path):
    path = tmp_path / "lock"
    with (
        locked(path),
        pytest.raises(DeadlineExceeded, match="still holds"),
        locked(path, deadline_seconds=0.0),
    ):
        pass


def test_lock_is_free_again_afterwards(tmp_path: Path):
    path = tmp_path / "lock"
    with pytest.raises(DataError), locked(path):
        raise DataError("inside")
    with locked(path, deadline_seconds=0.0):
        pass


def test_cache_that_cannot_be_written_is_a_resource_error(tmp_path: Path):
    occupied = tmp_path / "file"
    occupied.write_text("not a folder")
    with pytest.raises(ResourceError, match="choose another cache directory"):
        load_or_build(occupied / "cache", "toy", sample_arrays)


def test_whoever_names_no_folder_uses_the_one_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SHOAL_DATA_DIR", str(tmp_path / "data"))
    assert default_cache_dir() == tmp_path / "data"
    monkeypatch.setenv("SHOAL_DATA_DIR", "")
    assert default_cache_dir() == tmp_path / "home" / ".cache" / "shoal"
