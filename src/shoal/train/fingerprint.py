"""A model's fingerprint: what workers compare before they average anything.

Two models fit together when their parameters and buffers have the same names, shapes and data
types in the same order and share memory alike, and their optimizers are of the same kind. Values
may differ: all workers start from rank 0's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.train.shared_memory import stretches_of, tensors_of

if TYPE_CHECKING:
    import torch
    from torch import nn


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
