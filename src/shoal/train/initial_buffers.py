"""A model's buffers as rank 0 has them: statistics to begin with, masks, permutations, counts.

And parameters that are never averaged, such as quantized weights.

They go in one message of bytes, whatever their types: some cannot be summed, and of floating-point
ones those that are averaged are told by their values, which are the same on every rank after this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from shoal.carriers.host_copy import HOST
from shoal.train.flat_parameters import constant_parameters

if TYPE_CHECKING:
    from torch import Tensor, nn

    from shoal.comm import Communicator


def broadcast_buffers(model: nn.Module, communicator: Communicator) -> None:
    """Replace every worker's buffers by rank 0's; collective. All have them in the same shapes.

    Parameters that are not averaged likewise.
    """
    held = (*model.buffers(), *constant_parameters(model))
    buffers = [each for each in held if each.layout == torch.strided and each.numel()]
    if not buffers:
        return
    with torch.no_grad():
        own = [_bytes_of(each) for each in buffers]
        message = torch.cat(own)
        communicator.broadcast(message, 0)
        parts = message.split([len(each) for each in own])
        for buffer, mine, told in zip(buffers, own, parts, strict=True):
            if not torch.equal(mine, told):  # those of rank 0 are left as they are
                buffer.copy_(told.clone().view(buffer.dtype).view(buffer.shape))


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.detach().to(HOST).contiguous().view(-1).view(torch.uint8)
