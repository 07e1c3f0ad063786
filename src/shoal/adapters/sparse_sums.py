"""Summing sparse tensors over a group: everyone's entries are gathered, and torch adds them up.

Three gathers, one after the other: how many entries each member has, where they are, and what they
are. Exact, whatever the group's loss bound: an index that got lost would move a value elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from shoal.adapters.torch_work import Tell, afterwards
from shoal.carriers import HOST, bytes_of

if TYPE_CHECKING:
    from shoal.wire import TransportGroup

OPERATIONS = 3
"""How many operations of the group a sum makes."""


def sum_sparse(group: TransportGroup, tensor: Tensor, *, mean: bool, tell: Tell) -> None:
    """Start replacing a sparse `tensor` by the sum, or the mean, over all members of `group`.

    Numbers its three operations before it returns; `tell` is called with None or an error once the
    tensor, which comes out coalesced, is complete. Shapes and types must agree on all members.
    """
    local = tensor.detach().coalesce()
    places, values = local.indices().t().contiguous(), local.values().contiguous()
    first, second, third = [group.reserve() for _ in range(OPERATIONS)]

    def gather_places(counts: Tensor) -> None:
        lengths = counts.tolist()

        def gather_values(all_places: Tensor) -> None:
            def add_up(all_values: Tensor) -> None:
                total = torch.sparse_coo_tensor(all_places.t(), all_values, tensor.shape)
                with torch.no_grad():
                    tensor.copy_(total.coalesce() / (group.size if mean else 1))
                tell(None)

            _gather(group, values, lengths, third, add_up, [tensor], tell)

        _gather(group, places, lengths, second, gather_values, [tensor], tell)

    _gather(
        group,
        torch.tensor([len(places)], device=HOST),
        [1] * group.size,
        first,
        gather_places,
        [tensor],
        tell,
    )


def _gather(
    group: TransportGroup,
    mine: Tensor,
    lengths: list[int],
    iteration: int,
    then: Callable[[Tensor], None],
    results: list[Tensor],
    tell: Tell,
) -> None:
    """Gather everyone's rows, `lengths[k]` from member k, and give them to `then`, for `results`.

    `tell` hears of what goes wrong, in `then` as well: it runs in the transport's thread.
    """
    start = sum(lengths[: group.me])
    whole = mine.new_empty((sum(lengths), *mine.shape[1:]))
    whole[start : start + len(mine)] = mine
    row_bytes = math.prod(mine.shape[1:]) * mine.element_size()

    arrived = afterwards(lambda: then(whole), results, tell)
    counts = [length * row_bytes for length in lengths]
    transfer = group.all_gather(bytes_of(whole), counts, iteration=iteration)
    transfer.tell(arrived)
