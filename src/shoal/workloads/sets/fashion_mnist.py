"""fashion-mnist: 60,000 + 10,000 pictures of clothes, 28 x 28 gray pixels, 10 classes (MIT).

Xiao, Rasul, Vollgraf, "Fashion-MNIST", 2017. The four files are in the IDX format: a big-endian
header (magic number, then one size per axis), then the bytes.
"""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shoal.errors import DataError
from shoal.workloads.fetch import Fetcher, Folder, WantedFile
from shoal.workloads.packages import DebianPackage
from shoal.workloads.sets.images import image_arrays
from shoal.workloads.website import WebSite

if TYPE_CHECKING:
    from shoal.workloads.cache import Array, Arrays

# Sums of the decompressed files: a distribution's package may have compressed them anew.
FILES = (
    WantedFile(
        "train-images-idx3-ubyte.gz",
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        gzipped=True,
    ),
    WantedFile(
        "train-labels-idx1-ubyte.gz",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        gzipped=True,
    ),
    WantedFile(
        "t10k-images-idx3-ubyte.gz",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        gzipped=True,
    ),
    WantedFile(
        "t10k-labels-idx1-ubyte.gz",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        gzipped=True,
    ),
)
SOURCES = (
    Folder(Path("/usr/share/datasets/fashion-mnist")),
    WebSite("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"),
    DebianPackage("dataset-fashion-mnist", "usr/share/datasets/fashion-mnist"),
)

_UNSIGNED_BYTES = 0x08


def load(fetcher: Fetcher) -> Arrays:
    """Return images of shape (N, 1, 28, 28)."""
    paths = fetcher.obtain("fashion-mnist", FILES, SOURCES)
    train, train_labels, test, test_labels = (read_idx(paths[file.name]) for file in FILES)
    return image_arrays((train[:, None], train_labels), (test[:, None], test_labels), 10)


def read_idx(path: Path) -> Array:
    """Return the array of bytes in a gzipped IDX file. Raises `DataError` if it is not one."""
    with gzip.open(path) as file:
        content = file.read()
    try:
        zero, kind, axes = struct.unpack_from(">HBB", content)
        shape = struct.unpack_from(f">{axes}I", content, 4)
        if zero != 0 or kind != _UNSIGNED_BYTES:
            raise ValueError("magic number")
        return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)
    except (struct.error, ValueError) as error:
        message = f"{path} is not a file of bytes in the IDX format ({error})."
        raise DataError(message) from error
