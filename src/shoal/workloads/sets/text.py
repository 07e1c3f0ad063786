"""Byte-level language: running text cut into windows of 64 bytes, each byte predicting the next.

A vocabulary of 256 needs no tokenizer and no vocabulary file.
"""

from __future__ import annotations

import numpy as np

from shoal.errors import DataError
from shoal.workloads.cache import Arrays

WINDOW = 64
"""Length of a sample, in bytes."""

VOCABULARY = 256

_TEST_BLOCK = 256
"""Test samples are runs of this many windows: 16 KiB of text."""

_TEST_EVERY = 10
"""One run of this many is for the test, the last of them."""


def windows(text: bytes) -> Arrays:
    """Cut `text` into samples of shape (N, 64), int64; targets are the bytes one further on.

    Raises `DataError` when it is too short to have both training and test samples.
    """
    count = (len(text) - 1) // WINDOW
    block = np.arange(count) // _TEST_BLOCK
    for_test = block % _TEST_EVERY == _TEST_EVERY - 1
    if not for_test.any():
        least = _TEST_EVERY * _TEST_BLOCK * WINDOW
        message = f"A text of {len(text)} bytes is too short: {least} are needed."
        raise DataError(message)
    codes = np.frombuffer(text, np.uint8).astype(np.int64)
    inputs = codes[: count * WINDOW].reshape(count, WINDOW)
    targets = codes[1 : count * WINDOW + 1].reshape(count, WINDOW)
    return Arrays(
        inputs[~for_test], targets[~for_test], inputs[for_test], targets[for_test], VOCABULARY
    )
