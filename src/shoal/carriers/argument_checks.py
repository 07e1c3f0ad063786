"""What every communicator over torch tensors asks of its arguments, in the same sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.carriers.mean import NARROW_TYPES, WIDE_TYPES
from shoal.errors import UsageError
from shoal.groups import Group

if TYPE_CHECKING:
    import torch

    from shoal.membership import View


def check_average(
    dtype: torch.dtype,
    rank: int,
    view: View,
    members: tuple[int, ...],
    weights: tuple[int, ...],
) -> None:
    """Raise `UsageError` unless `rank` can average tensors of `dtype` among `members`."""
    if dtype not in WIDE_TYPES + NARROW_TYPES:
        message = f"Only float tensors of 16 to 64 bits can be averaged, not {dtype}."
        raise UsageError(message)
    group = Group(members, weights)
    for member in members:
        check_rank(member, view)
    if rank not in group:
        message = f"Rank {rank} is not in the group {members} that it was to average in."
        raise UsageError(message)


def check_peer(peer: int, rank: int, view: View) -> None:
    """Raise `UsageError` unless `rank` can send to `peer` or receive from it."""
    check_rank(peer, view)
    if peer == rank:
        message = f"Rank {peer} cannot send to itself."
        raise UsageError(message)


def check_rank(rank: int, view: View) -> None:
    """Raise `UsageError` unless `rank` is a member of `view`."""
    if rank not in view.members:
        message = f"Rank {rank} does not exist among {len(view)} workers."
        raise UsageError(message)
