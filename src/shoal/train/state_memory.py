"""State on its way between workers: a tree of values taken apart into a skeleton and memory.

The skeleton (names, shapes and plain values) is small; the tensors' bytes lie in memory that a
transport sends piece by piece. Knows no transport.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import cycle
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import torch

from shoal.carriers import HOST
from shoal.train.flat_parameters import bytes_of

if TYPE_CHECKING:
    from torch import Tensor

_LARGE_BYTES: Final = 1 << 20
"""The size from which a tensor is sent by itself."""
_PIECE_BYTES: Final = 4 << 20
"""The most bytes that one worker gives before it is another one's turn."""
_ALIGNED: Final = 16
"""Small tensors begin at multiples of so many bytes, as every type needs."""


def taken_apart(state: Any) -> tuple[Any, list[Tensor]]:
    """Return `state` with tensors without values, and the tensors with values, in order."""
    found: list[Tensor] = []

    def take_out(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")

    return mapped(state, take_out), found


def put_together(skeleton: Any, tensors: Sequence[Tensor]) -> Any:
    """Return the state that was taken apart into `skeleton` and `tensors`.

    The large tensors themselves are in it, and copies of the small ones, whose memory is shared.
    """
    values = (each if is_large(each) else each.clone() for each in tensors)
    return mapped(skeleton, lambda _: next(values))


def copied(tensors: Sequence[Tensor], *, all_of_them: bool) -> tuple[list[Tensor], list[Tensor]]:
    """Return memory that has the values of `tensors`, and the tensors in it.

    Large ones are copied only if `all_of_them` are, or if they are not contiguous in host memory.
    """
    large = {n: each for n, each in enumerate(tensors) if is_large(each)}
    places = {} if all_of_them else {n: bytes_of(each) for n, each in large.items()}
    memory, found = memory_for(tensors, places)
    with torch.no_grad():
        for copy, tensor in zip(found, tensors, strict=True):
            if copy.data_ptr() != tensor.data_ptr():
                copy.copy_(tensor)
    return memory, found


def memory_for(
    tensors: Sequence[Tensor], places: Mapping[int, Tensor] = MappingProxyType({})
) -> tuple[list[Tensor], list[Tensor]]:
    """Return memory, as bytes, for tensors of these shapes and types, and the tensors in it.

    Small ones lie together, and each large one by itself: in fresh memory, or in that of `places`,
    by its number.
    """
    sizes = [num_bytes(tensor) for tensor in tensors]
    padded = [
        0 if is_large(each) else -(-num_bytes(each) // _ALIGNED) * _ALIGNED for each in tensors
    ]
    together = torch.empty(sum(padded), dtype=torch.uint8, device=HOST)
    memory, found = [together] if len(together) else [], []
    start = 0
    for number, (tensor, size, step) in enumerate(zip(tensors, sizes, padded, strict=True)):
        if step:
            place = together[start : start + size]
        elif number in places:
            place = places[number]
        else:
            place = torch.empty(size, dtype=torch.uint8, device=HOST)
        if not step:
            memory.append(place)
        start += step
        found.append(place.view(tensor.dtype).view(tensor.shape))
    return memory, found


def dealt(memory: Iterable[Tensor], givers: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
    """Yield the pieces of all `memory`, in bytes, each with the rank that gives it."""
    pieces = (piece for each in memory for piece in each.split(_PIECE_BYTES))
    yield from zip(cycle(givers), pieces, strict=False)


def mapped(value: Any, act: Callable[[Tensor], Tensor]) -> Any:
    """Return `value` with every tensor in it replaced, in a fixed order."""
    if isinstance(value, torch.Tensor):
        return act(value)
    if isinstance(value, dict):
        return {key: mapped(each, act) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([mapped(each, act) for each in value])
    return value


def is_large(tensor: Tensor) -> bool:
    """Return whether a tensor is sent by itself."""
    return num_bytes(tensor) >= _LARGE_BYTES


def num_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor's values."""
    return tensor.numel() * tensor.element_size()
