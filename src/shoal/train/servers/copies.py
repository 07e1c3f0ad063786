"""Copies of a server's optimizer state that another worker keeps, in case that server is lost.

The weights of a lost server are what others have pulled of it last; momenta and the like nobody
pulls. So of each shard one worker gets a copy every few updates, with an answer: some updates
behind, which moving averages over many updates bear, and at a small share of the traffic.
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
    """A copy of one shard's optimizer state, as it came."""

    holding: Holding
    """What the shard held then."""

    packed: Tensor
    """Bytes of the states of the shards of one server and piece."""

    place: int
    """The index of this one among them."""

    def unpack(self) -> dict[str, Any]:
        """Return the state; see `ParameterShard.optimizer_state`."""
        file = io.BytesIO(self.packed.numpy().tobytes())
        state: dict[str, Any] = torch.load(file, weights_only=True)[self.place]
        return state


def pack(shards: Sequence[ParameterShard]) -> Tensor:
    """Return the optimizer state of shards as bytes; none if they have no state yet, or never."""
    if not any(shard.has_state for shard in shards):
        return torch.empty(0, dtype=torch.uint8, device=HOST)
    file = io.BytesIO()
    torch.save([shard.optimizer_state() for shard in shards], file)
    return torch.frombuffer(bytearray(file.getbuffer()), dtype=torch.uint8)
