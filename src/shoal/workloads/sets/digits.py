"""digits: 1,797 handwritten digits of 8 x 8 pixels, the file that scikit-learn carries.

For quick checks and tests; too small for conclusions about training.
"""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import numpy as np

from shoal.workloads.fetch import Fetcher, WantedFile
from shoal.workloads.packages import python_package
from shoal.workloads.sets.images import image_arrays
from shoal.workloads.sets.split import random_split

if TYPE_CHECKING:
    from shoal.workloads.cache import Arrays

FILES = (
    WantedFile(
        "digits.csv.gz",
        "6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8",
        gzipped=True,
    ),
)
SOURCES = python_package("scikit-learn", "sklearn/datasets/data")


def load(fetcher: Fetcher) -> Arrays:
    """Return images of shape (N, 1, 8, 8), a fifth of them (359) for the test."""
    path = fetcher.obtain("digits", FILES, SOURCES)["digits.csv.gz"]
    with gzip.open(path, "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float64)
    pixels, labels = table[:, :64].reshape(-1, 1, 8, 8), table[:, 64]
    train, test = random_split(len(table), 0.2)
    return image_arrays((pixels[train], labels[train]), (pixels[test], labels[test]), 10)
