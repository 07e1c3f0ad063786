"""Which tensors of a model lie in the same memory: tied weights, views of a parameter.

Two `Parameter` objects may be one memory (`head.weight.data = embedding.weight.data`), and a buffer
may be a view of a parameter. A value written to one is read from the other, so code that moves one
of them has to move both. Knows neither where they are moved to nor why.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from shoal.carriers import unasked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of memory, and the tensors that lie in it: one, or several that overlap."""

    tensors: tuple[Tensor, ...]
    address: int
    """The address at which it begins."""
    num_bytes: int

    @property
    def is_shared(self) -> bool:
        """Whether several tensors lie in it."""
        return len(self.tensors) > 1

    def offset_of(self, tensor: Tensor) -> int:
        """Return how many elements, of the size of its own, lie before `tensor` in the stretch."""
        return (tensor.data_ptr() - self.address) // tensor.element_size()


def stretches_of(tensors: Iterable[Tensor]) -> list[Stretch]:
    """Return the stretches of memory that `tensors` lie in, in the order of their first tensors.

    Tensors that overlap, directly or by way of others, are in one stretch. Tensors without
    elements, or without memory of their own (sparse ones, for example), are left out.
    """
    ordered = list({id(each): each for each in tensors}.values())
    spans = [(*span, index) for index, each in enumerate(ordered) if (span := _span(each))]
    merged: list[tuple[str, int, int, list[int]]] = []
    for device, start, stop, index in sorted(spans):
        if merged and merged[-1][0] == device and start < merged[-1][2]:
            _, first, last, members = merged[-1]
            merged[-1] = (device, first, max(last, stop), [*members, index])
        else:
            merged.append((device, start, stop, [index]))
    merged.sort(key=lambda each: min(each[3]))
    return [
        Stretch(tuple(ordered[index] for index in sorted(members)), start, stop - start)
        for _, start, stop, members in merged
    ]


def tensors_of(model: nn.Module) -> Iterator[Tensor]:
    """Yield the parameters and buffers of `model`, and other tensors that its modules hold."""
    yield from model.parameters()
    yield from model.buffers()
    for module in model.modules():
        yield from (each for each in vars(module).values() if isinstance(each, torch.Tensor))


def without_views_of(parameters: Iterable[Tensor], tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the `tensors` that share no memory with `parameters`."""
    owners, others = list(parameters), list(tensors)
    kept = {id(each) for each in owners}
    views = {
        id(each)
        for stretch in stretches_of([*owners, *others])
        if any(id(each) in kept for each in stretch.tensors)
        for each in stretch.tensors
    }
    return [each for each in others if id(each) not in views]


def _span(tensor: Tensor) -> tuple[str, int, int] | None:
    """Return the device of `tensor`'s memory, its first address and the address past its end."""
    if tensor.layout != torch.strided or not tensor.numel() or tensor.is_meta:
        return None
    with unasked():  # looking needs no values
        try:
            start = tensor.data_ptr()
        except RuntimeError:  # a wrapper around other tensors has none
            return None
        if not start:
            return None
        last = sum(
            (size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True)
        )
    return str(tensor.device), start, start + (last + 1) * tensor.element_size()
