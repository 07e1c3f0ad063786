"""Bucket layout: which parameters' gradients travel together, and in which order.

Gradients become ready from the last layer to the first, so buckets are filled in reverse order of
the parameters, the first one small so that communication starts early (as PyTorch DDP does; Li et
al., VLDB 2020). Pure sizes in, indices out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.arguments import whole_number

FIRST_BUCKET_BYTES = 1 << 20
BUCKET_BYTES = 25 << 20


@dataclass(frozen=True, slots=True)
class Bucket:
    """Parameters whose gradients are reduced together."""

    parameters: tuple[int, ...]
    """Indices of the parameters, in the order in which they lie in the bucket."""

    offsets: tuple[int, ...]
    """Where each starts, in elements."""

    num_elements: int
    """Elements of the whole bucket."""


def layout_buckets(
    num_elements: Sequence[int],
    element_bytes: int,
    *,
    bucket_bytes: int = BUCKET_BYTES,
    first_bucket_bytes: int = FIRST_BUCKET_BYTES,
) -> tuple[Bucket, ...]:
    """Return buckets for parameters of `num_elements` each, in the order they should be reduced.

    A bucket is closed when it has reached its size (the first one the smaller of both), so a
    parameter is never split. Raises `UsageError` for a bucket size that is not positive.
    """
    for size in (bucket_bytes, first_bucket_bytes):
        whole_number(size, "The bucket size in bytes", low=1)
    buckets: list[Bucket] = []
    parameters: list[int] = []
    offsets: list[int] = []
    filled = 0
    for index in reversed(range(len(num_elements))):
        parameters.append(index)
        offsets.append(filled)
        filled += num_elements[index]
        limit = bucket_bytes if buckets else min(bucket_bytes, first_bucket_bytes)
        if filled * element_bytes >= limit:
            buckets.append(Bucket(tuple(parameters), tuple(offsets), filled))
            parameters, offsets, filled = [], [], 0
    if parameters:
        buckets.append(Bucket(tuple(parameters), tuple(offsets), filled))
    return tuple(buckets)
