"""Converted data sets on disk: a folder of .npy files each, built once, mapped by every worker.

Owns the folder layout, the lock that lets one of many starting workers do the building, and the
check that what is read is what was written. Must not know where raw files come from or what the
arrays mean.

Layout: CACHE/fashion-mnist-v1/{manifest.json, train_inputs.npy, ...}; raw files that were fetched
lie in CACHE/downloads/NAME/. Arrays are mapped copy-on-write, so eight workers on one machine share
one copy in memory.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from shoal.decoding import decode_json
from shoal.errors import DataError, DeadlineExceeded, ResourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

FORMAT = 1
"""The version of converted files: it is raised whenever the same raw files would be converted to
different arrays."""

LOCK_DEADLINE_SECONDS = 1800.0
"""How long a worker waits for another one that fetches and converts the same data set."""

_PARTS = ("train_inputs", "train_targets", "test_inputs", "test_targets")


@dataclass(frozen=True, slots=True)
class Arrays:
    """A converted data set: what a loader returns and the cache stores."""

    train_inputs: Array
    """First axis counts the samples; already normalized."""

    train_targets: Array
    test_inputs: Array
    test_targets: Array

    num_classes: int
    """Classes, or the size of the vocabulary for a language."""

    field_sizes: tuple[int, ...] = ()
    """The number of values of each field, for categorical inputs of shape (samples, fields)."""


class _StoredFile(msgspec.Struct, frozen=True):
    size_bytes: int
    sha256: str


class _Manifest(msgspec.Struct, frozen=True):
    files: dict[str, _StoredFile]
    num_classes: int
    field_sizes: tuple[int, ...]


def default_cache_dir() -> Path:
    """Return the folder used when the caller names none: `SHOAL_DATA_DIR`, or `~/.cache/shoal`."""
    named = os.environ.get("SHOAL_DATA_DIR")
    return Path(named) if named else Path.home() / ".cache" / "shoal"


def converted(cache_dir: Path, key: str) -> Path:
    """Return the folder that holds what is stored under `key`, if it is."""
    return cache_dir / f"{key}-v{FORMAT}"


def load_or_build(cache_dir: Path, key: str, build: Callable[[], Arrays]) -> tuple[Arrays, str]:
    """Return the arrays stored under `key` and their fingerprint, building them if absent.

    Of many processes that ask at once, one builds and the others wait. Raises `DataError` for a
    damaged folder, `ResourceError` where the folder cannot be written, `DeadlineExceeded` when
    another process keeps building past `LOCK_DEADLINE_SECONDS`, and whatever `build` raises.
    """
    folder = converted(cache_dir, key)
    if not folder.is_dir():
        with locked(cache_dir / f".{key}.lock"):
            if not folder.is_dir():
                _write(folder, build())
    return _read(folder)


@contextmanager
def locked(path: Path, deadline_seconds: float = LOCK_DEADLINE_SECONDS) -> Iterator[None]:
    """Hold the file lock `path`; the operating system releases it if this process dies."""
    from filelock import FileLock, Timeout

    with writing_to(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            held = FileLock(path, deadline_seconds).acquire()
        except Timeout:
            message = f"Another process still holds {path}: end it, or wait and start again."
            raise DeadlineExceeded(message) from None
    with held:
        yield


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Turn the operating system's refusal to write below `folder` into a `ResourceError`."""
    try:
        yield
    except OSError as error:
        message = f"Cannot write to {folder} ({error.strerror}): choose another cache directory."
        raise ResourceError(message) from error


def _write(folder: Path, arrays: Arrays) -> None:
    """Store `arrays` in a folder of its own that appears whole or not at all."""
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    with writing_to(folder.parent):
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        files = {}
        for part in _PARTS:
            path = unfinished / f"{part}.npy"
            np.save(path, getattr(arrays, part))
            files[path.name] = _StoredFile(path.stat().st_size, content_sha256(path))
        manifest = _Manifest(files, arrays.num_classes, arrays.field_sizes)
        (unfinished / "manifest.json").write_bytes(msgspec.json.encode(manifest))
        unfinished.rename(folder)


def _read(folder: Path) -> tuple[Arrays, str]:
    manifest = _read_manifest(folder / "manifest.json")
    mapped = {}
    for part in _PARTS:
        path = folder / f"{part}.npy"
        _check(path, manifest.files[path.name])
        # mode "c": private pages on write, so torch may have a writable view of a shared file
        mapped[part] = np.load(path, mmap_mode="c")
    arrays = Arrays(**mapped, num_classes=manifest.num_classes, field_sizes=manifest.field_sizes)
    sums = "".join(manifest.files[f"{part}.npy"].sha256 for part in _PARTS)
    return arrays, hashlib.sha256(sums.encode()).hexdigest()


def _read_manifest(path: Path) -> _Manifest:
    try:
        manifest = decode_json(path.read_bytes(), _Manifest, f"{path} is no manifest")
    except (OSError, DataError) as error:
        raise _damaged(path, "unreadable") from error
    if set(manifest.files) != {f"{part}.npy" for part in _PARTS}:
        raise _damaged(path, "incomplete")
    return manifest


def _check(path: Path, stored: _StoredFile) -> None:
    try:
        size_bytes = path.stat().st_size
        if size_bytes != stored.size_bytes:
            raise _damaged(path, f"{size_bytes} bytes instead of {stored.size_bytes}")
        if content_sha256(path) != stored.sha256:
            raise _damaged(path, "its checksum is wrong")
    except OSError as error:
        raise _damaged(path, error.strerror) from error


def content_sha256(path: Path, *, gzipped: bool = False) -> str:
    """Return the SHA-256 of a file's content in hexadecimal, decompressed first if `gzipped`."""
    with gzip.open(path) if gzipped else path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _damaged(path: Path, reason: str | None) -> DataError:
    return DataError(
        f"{path} is damaged ({reason}): delete the folder {path.parent} and it is built again."
    )
