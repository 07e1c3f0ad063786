"""Image arrays ready for a model: from uint8 pixels to normalized float32, channels first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shoal.workloads.cache import Array, Arrays

if TYPE_CHECKING:
    from collections.abc import Sequence


def image_arrays(train: tuple[Array, Array], test: tuple[Array, Array], num_classes: int) -> Arrays:
    """Normalize pixels by the mean and the deviation of each channel over the training images.

    `train` and `test` are (pixels, labels): pixels of shape (N, C, H, W), labels of shape (N,).
    """
    pixels = train[0]
    mean = pixels.mean(axis=(0, 2, 3), dtype=np.float64)
    deviation = pixels.std(axis=(0, 2, 3), dtype=np.float64)
    deviation[deviation == 0] = 1  # a channel that never changes has nothing to scale
    return Arrays(
        _normalized(train[0], mean, deviation),
        train[1].astype(np.int64),
        _normalized(test[0], mean, deviation),
        test[1].astype(np.int64),
        num_classes,
    )


def _normalized(pixels: Array, mean: Array, deviation: Array) -> Array:
    images = pixels.astype(np.float32)
    images -= mean.astype(np.float32)[:, None, None]
    images /= deviation.astype(np.float32)[:, None, None]
    return images


def stack(images: Sequence[Array]) -> Array:
    """Return pictures of shape (H, W, 3) as one array of shape (N, 3, H, W)."""
    return np.stack(images).transpose(0, 3, 1, 2)
