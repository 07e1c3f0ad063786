"""Bucket layout: which parameters' gradients travel together, and in which order.

Gradients become ready from the last layer to the first, so buckets are filled in reverse order of
the parameters, the first one small so that communication starts early (as PyTorch DDP does; Li et
al., VLDB 2020). Between hosts there are some of them however small the model is: one bucket of
everything hides behind nothing. Inside a host each costs more than it hides. Pure sizes in, indices
out.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final

from shoal.arguments import whole_number

FIRST_BUCKET_BYTES: Final = 1 << 20
BUCKET_BYTES: Final = 25 << 20
"""The size inside a host, and the most between hosts."""
_PARTS: Final = 8
"""The buckets that a model has between hosts, unless that makes them too small or too large."""
_LEAST_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class Bucket:
    """Parameters whose gradients are reduced together."""

    parameters: tuple[int, ...]
    """Indices of the parameters, in the order in which they lie in the bucket."""

    offsets: tuple[int, ...]
    """The place in the bucket at which each parameter starts, in elements."""

    num_elements: int
    """Elements of the whole bucket."""


def layout_buckets(
    num_elements: Sequence[int],
    element_bytes: int | Sequence[int],
    *,
    kinds: Sequence[Hashable] | None = None,
    bucket_bytes: int | None = None,
    num_hosts: int = 1,
    first_bucket_bytes: int = FIRST_BUCKET_BYTES,
) -> tuple[Bucket, ...]:
    """Return buckets for parameters of `num_elements` each, in the order they should be reduced.

    A bucket is closed when it has reached its size (the first one the smaller of both), so a
    parameter is never split. Parameters of different `kinds` (types, devices) share none; without
    them all are of one. `element_bytes` are those of each parameter, or of all. A `bucket_bytes` of
    None is 25 MiB for workers on one host; on several an eighth of all parameters, at least 64 KiB
    and at most 25 MiB. Raises `UsageError` for a bucket size that is not positive.
    """
    if isinstance(element_bytes, int):
        element_bytes = [element_bytes] * len(num_elements)
    sizes = [count * each for count, each in zip(num_elements, element_bytes, strict=True)]
    if bucket_bytes is None:
        part = max(_LEAST_BYTES, sum(sizes) // _PARTS)
        bucket_bytes = BUCKET_BYTES if num_hosts == 1 else min(part, BUCKET_BYTES)
    for size in (bucket_bytes, first_bucket_bytes):
        whole_number(size, "The bucket size in bytes", low=1)
    buckets: list[Bucket] = []
    filling: dict[Hashable, Bucket] = {}
    for index in reversed(range(len(num_elements))):
        kind = kinds[index] if kinds is not None else None
        before = filling.pop(kind, Bucket((), (), 0))
        bucket = Bucket(
            (*before.parameters, index),
            (*before.offsets, before.num_elements),
            before.num_elements + num_elements[index],
        )
        limit = bucket_bytes if buckets else min(bucket_bytes, first_bucket_bytes)
        if bucket.num_elements * element_bytes[index] >= limit:
            buckets.append(bucket)
        else:
            filling[kind] = bucket
    return (*buckets, *filling.values())
