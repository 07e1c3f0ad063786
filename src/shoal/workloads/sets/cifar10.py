"""cifar10: 50,000 + 10,000 color pictures of 32 x 32 pixels, 10 classes (Krizhevsky, 2009).

The official archive is a tar of pickles; it is read only after its checksum has proved it to be the
published one. No package carries it, so it comes from its own site or from the user's disk.

cifar10-jpeg is for people who have the pictures as files: a folder, or a tar, of
{train,test}/CLASS/PICTURE. It goes by another name because its accuracies are not comparable to
the digit: the pixels were compressed anew.
"""

from __future__ import annotations

import pickle
import tarfile
from collections import Counter
from pathlib import Path, PurePath, PurePosixPath
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from shoal.errors import DataError, UsageError
from shoal.extras import install
from shoal.workloads.fetch import Fetcher, WantedFile
from shoal.workloads.sets.images import image_arrays, stack
from shoal.workloads.website import WebSite

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.workloads.cache import Array, Arrays

ARCHIVE = "cifar-10-python.tar.gz"
FILES = (WantedFile(ARCHIVE, "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"),)
SOURCES = (WebSite("https://www.cs.toronto.edu/~kriz/"),)

_PARTS = ("train", "test")
_LEVELS = 3

_TRAIN_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))


def load(fetcher: Fetcher) -> Arrays:
    """Return images of shape (N, 3, 32, 32) from the official archive."""
    return read_archive(fetcher.obtain("cifar10", FILES, SOURCES)[ARCHIVE])


def read_archive(path: Path) -> Arrays:
    """Return the arrays in the official archive, which the caller has verified."""
    parts: dict[str, tuple[Array, Array]] = {}
    with tarfile.open(path) as archive:
        for member in archive:
            name = PurePosixPath(member.name).name
            content = archive.extractfile(member)
            if content is not None and (name in _TRAIN_BATCHES or name == "test_batch"):
                parts[name] = _read_batch(content)
    train = [parts[name] for name in _TRAIN_BATCHES]
    pixels, labels = (np.concatenate(arrays) for arrays in zip(*train, strict=True))
    return image_arrays((pixels, labels), parts["test_batch"], 10)


def _read_batch(content: IO[bytes]) -> tuple[Array, Array]:
    batch: dict[bytes, Any] = pickle.load(content, encoding="bytes")
    return batch[b"data"].reshape(-1, 3, 32, 32), np.asarray(batch[b"labels"])


def load_pictures(fetcher: Fetcher) -> Arrays:
    """Return images of shape (N, 3, H, W) from the user's folder or tar of picture files.

    Classes are numbered in alphabetical order, which is CIFAR-10's own.
    """
    source = fetcher.source or _put_into(fetcher.room("cifar10-jpeg"))
    try:
        pictures = sorted(_pictures(source), key=lambda item: item[0].parts)
    except (OSError, EOFError, tarfile.TarError) as error:
        message = f"Cannot read pictures from {source} ({error})."
        raise DataError(message) from error
    if len({pixels.shape for _, pixels in pictures}) > 1:
        message = f"{source} has pictures of different sizes: they must have one."
        raise DataError(message)
    classes = sorted({path.parts[-2] for path, _ in pictures})
    parts = [_part(pictures, part, classes) for part in _PARTS]
    if any(len(labels) == 0 for _, labels in parts):
        message = f"{source} has no pictures named {{train,test}}/CLASS/PICTURE."
        raise DataError(message)
    return image_arrays(parts[0], parts[1], len(classes))


def _put_into(room: Path) -> Path:
    """Return what the user has put into `room`: a tar, or the folder itself."""
    files = sorted(room.iterdir())
    if not files:
        message = (
            "cifar10-jpeg has no public source: put a tar of {train,test}/CLASS/PICTURE, or the"
            f" folders train and test, into {room}."
        )
        raise DataError(message)
    return files[0] if len(files) == 1 and files[0].is_file() else room


def _part(
    pictures: list[tuple[PurePosixPath, Array]], part: str, classes: list[str]
) -> tuple[Array, Array]:
    """Return the pictures of a part, the classes by turns: its first ones are a sample of it."""
    seen: Counter[str] = Counter()
    turns = []
    for path, pixels in pictures:
        if path.parts[-3] == part:
            seen[path.parts[-2]] += 1
            turns.append((seen[path.parts[-2]], path, pixels))
    chosen = [(path, pixels) for _, path, pixels in sorted(turns, key=lambda turn: turn[:2])]
    labels = np.array([classes.index(path.parts[-2]) for path, _ in chosen], np.int64)
    return (stack([pixels for _, pixels in chosen]) if chosen else labels), labels


def _pictures(source: Path) -> Iterator[tuple[PurePosixPath, Array]]:
    """Yield path and pixels (H, W, 3) of every file at {train,test}/CLASS/PICTURE."""
    if source.is_dir():
        for file in source.rglob("*.*"):
            if _is_picture(file):
                yield PurePosixPath(file), _decode(file)
        return
    with tarfile.open(source) as archive:
        for member in archive:
            content = archive.extractfile(member)
            if content is not None and _is_picture(PurePosixPath(member.name)):
                yield PurePosixPath(member.name), _decode(content)


def _is_picture(path: PurePath) -> bool:
    return len(path.parts) >= _LEVELS and path.parts[-3] in _PARTS


def _decode(file: Path | IO[bytes]) -> Array:
    try:
        from PIL import Image
    except ImportError as error:
        raise UsageError(f"Pictures need Pillow: {install('data')}.") from error
    with Image.open(file) as picture:
        return np.asarray(picture.convert("RGB"))
