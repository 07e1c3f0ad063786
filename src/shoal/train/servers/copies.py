"""Copies of a server's optimizer state that another worker keeps, in case that server is lost.

The weights of a lost server can be had from the workers' last pulls; momenta and the like are not
pulled. So one worker gets a copy of each shard's optimizer state every few updates, with an answer.
The copy is some updates behind, which moving averages over many updates bear, and costs a small
share of the traffic.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from shoal.carriers import HOST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from shoal.strategies import Holding
    from shoal.train.servers.shard import ParameterShard


@dataclass(frozen=True, slots=True)
class StateCopy:
    """A copy of one shard's optimizer state, as it was received."""

    holding: Holding
    """The pushes that the shard held then."""

    packed: Tensor
    """The bytes of the states of all shards of one process and piece."""

    place: int
    """The index of this shard among them."""

    def unpack(self) -> dict[str, Any]:
        """Return the state; see `ParameterShard.optimizer_state`."""
        file = io.BytesIO(self.packed.numpy().tobytes())
        state: dict[str, Any] = torch.load(file, weights_only=True)[self.place]
        return state


def pack(shards: Sequence[ParameterShard]) -> Tensor:
    """Return the optimizer state of shards as bytes; none if they have no state (yet)."""
    if not any(shard.has_state for shard in shards):
        return torch.empty(0, dtype=torch.uint8, device=HOST)
    file = io.BytesIO()
    torch.save([shard.optimizer_state() for shard in shards], file)
    return torch.frombuffer(bytearray(file.getbuffer()), dtype=torch.uint8)
