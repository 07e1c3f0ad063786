"""How tensors are divided among the members of a process group, and what cannot be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def check_shards(shard: Tensor, whole: Tensor, size: int) -> None:
    """Raise `UsageError` unless `whole` is made of `size` shards like `shard`."""
    if shard.dtype != whole.dtype or shard.numel() * size != whole.numel():
        message = (
            f"Shards of {shard.numel()} {shard.dtype} on {size} ranks do not make"
            f" {whole.numel()} {whole.dtype}."
        )
        raise UsageError(message)


def row_bytes(tensor: Tensor, splits: Sequence[int], size: int) -> list[int]:
    """Return the bytes that go to or come from each member."""
    rows = tensor.shape[0] if tensor.dim() else 0
    if not splits:
        if rows % size:
            message = f"A tensor of {rows} rows cannot be split evenly over {size} ranks."
            raise UsageError(message)
        splits = [rows // size] * size
    if len(splits) != size or sum(splits) != rows or min(splits) < 0:
        message = f"The splits {list(splits)} do not divide {rows} rows among {size} ranks."
        raise UsageError(message)
    row = tensor.numel() // rows * tensor.element_size() if rows else 0
    return [split * row for split in splits]
