"""How replicas begin alike: their models' forms are compared, and buffers copied from rank 0.

Two models fit together when their parameters and buffers have the same names, shapes and data
types in the same order and share memory alike, and their optimizers are of the same kind. Values
may differ: all workers start from rank 0's.

Buffers (initial statistics, masks, permutations, counts), and parameters that are not trained, such
as frozen layers and quantized weights, go in messages of bytes, whatever their types: some cannot
be summed, and which floating-point buffers are averaged depends on their values, which are the same
on every rank after this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from shoal.train.flat_parameters import bytes_of, frozen_parameters
from shoal.train.shared_memory import stretches_of, tensors_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor, nn

    from shoal.comm import Communicator

_MESSAGE_BYTES: Final = 64 << 20
"""The size from which a message takes no more tensors: it is a copy, in host memory."""


def fingerprint_model(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """Return one line for the optimizer and one per parameter and buffer."""
    lines = [f"optimizer {type(optimizer).__name__}"]
    for name, parameter in model.named_parameters():
        kind = "trainable" if parameter.requires_grad else "frozen"
        lines.append(f"{kind} {name} {tuple(parameter.shape)} {parameter.dtype}")
    for name, buffer in model.named_buffers():
        lines.append(f"buffer {name} {tuple(buffer.shape)} {buffer.dtype}")
    named = {id(each): name for name, each in (*model.named_parameters(), *model.named_buffers())}
    for stretch in stretches_of(tensors_of(model)):
        names = [named[id(each)] for each in stretch.tensors if id(each) in named]
        if len(names) > 1:
            lines.append(f"one memory {' '.join(names)}")
    return lines


def broadcast_buffers(model: nn.Module, communicator: Communicator, source: int) -> None:
    """Replace every worker's buffers by those of `source`; collective. All have the same shapes.

    Parameters that are not trained are replaced as well.
    """
    held = (*model.buffers(), *frozen_parameters(model))
    dense = [each for each in held if each.layout == torch.strided and each.numel()]
    with torch.no_grad():
        for tensors in _in_messages(dense):
            own = [bytes_of(each) for each in tensors]
            message = torch.cat(own)
            communicator.broadcast(message, source)
            parts = message.split([len(each) for each in own])
            for tensor, mine, told in zip(tensors, own, parts, strict=True):
                if not torch.equal(mine, told):  # the source's own tensors are left as they are
                    tensor.copy_(told.clone().view(tensor.dtype).view(tensor.shape))


def _in_messages(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Yield `tensors` in their order, as many together as make a message."""
    together: list[Tensor] = []
    size = 0
    for tensor in tensors:
        together.append(tensor)
        size += tensor.nbytes
        if size >= _MESSAGE_BYTES:
            yield together
            together, size = [], 0
    if together:
        yield together
