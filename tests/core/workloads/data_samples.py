"""Small data sets made in memory, for tests that need a `Dataset` and no file."""

from __future__ import annotations

import torch

from shoal.workloads.dataset import Dataset, InputKind, Task


def image_dataset(shape: tuple[int, int, int] = (1, 8, 8), samples: int = 40) -> Dataset:
    """Ten classes that can be told apart: each has its own mean picture."""
    generator = torch.Generator().manual_seed(7)
    centers = torch.randn(10, *shape, generator=generator)
    targets = torch.arange(samples) % 10
    inputs = centers[targets] + 0.3 * torch.randn(samples, *shape, generator=generator)
    return Dataset(
        "pictures", Task.CLASSIFICATION, InputKind.IMAGE, inputs, targets, inputs, targets, 10
    )


def text_dataset(vocabulary: int = 256, length: int = 64) -> Dataset:
    """Counting upwards: the next symbol is the symbol plus one."""
    symbols = (torch.arange(20)[:, None] * 7 + torch.arange(length + 1)) % vocabulary
    inputs, targets = symbols[:, :-1].contiguous(), symbols[:, 1:].contiguous()
    return Dataset(
        "counting", Task.LANGUAGE, InputKind.SYMBOLS, inputs, targets, inputs, targets, vocabulary
    )


def field_dataset(sizes: tuple[int, ...] = (5, 3, 4), samples: int = 200) -> Dataset:
    """Yes exactly where the first field is the value 2."""
    generator = torch.Generator().manual_seed(7)
    columns = [torch.randint(0, size, (samples,), generator=generator) for size in sizes]
    inputs = torch.stack(columns, dim=1)
    targets = (inputs[:, 0] == 2).long()
    return Dataset(
        "table", Task.BINARY, InputKind.FIELDS, inputs, targets, inputs, targets, 2, sizes
    )
