"""What torch.distributed's collectives ask of lists, roots and peers; torch checks little of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def check_member(member: int, size: int, called: str) -> None:
    """Raise `UsageError` unless a group of `size` has the member that `called` names."""
    if not 0 <= member < size:
        message = f"{called} names rank {member} of a group of {size}: 0 to {size - 1} are there."
        raise UsageError(message)


def check_list(
    tensors: Sequence[Tensor], size: int, called: str, *, length: int | None = None
) -> None:
    """Raise `UsageError` unless there is a tensor for every member, of `length` elements if given.

    `called` names the collective.
    """
    if len(tensors) != size:
        message = f"{called} takes a tensor for each of the {size} members, not {len(tensors)}."
        raise UsageError(message)
    if length is not None:
        for member, tensor in enumerate(tensors):
            check_length(tensor, length, member, called)


def check_length(tensor: Tensor, length: int, member: int, called: str) -> None:
    """Raise `UsageError` unless `tensor`, which is that of `member`, has `length` elements."""
    if tensor.numel() != length:
        message = (
            f"{called} of {length} elements got a tensor of {tensor.numel()} for rank {member}."
        )
        raise UsageError(message)
