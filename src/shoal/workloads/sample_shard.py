"""Which samples each worker trains on, in which order: disjoint shards, shuffled anew every epoch.

Every worker computes the same permutation of the whole data set from (seed, epoch) and takes every
world_size-th element, so no message is needed to agree. Must not know models or the network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from shoal.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from shoal.workloads.dataset import Dataset

# Spreads (seed, epoch) over the generator's 64 bits, so that neighboring seeds share no epoch.
_EPOCH_STRIDE = 0x9E3779B97F4A7C15


def shard_indices(
    sample_count: int, rank: int, world_size: int, seed: int, epoch: int, *, even: bool
) -> Tensor:
    """Return the samples (int64) of `rank` in `epoch`, in the order of use.

    With `even` all shards have sample_count // world_size samples and a few samples sit the epoch
    out; without it every sample is in exactly one shard and sizes differ by at most one.
    Raises `UsageError` for a rank outside the world, or more workers than samples.
    """
    if not 0 <= rank < world_size:
        message = f"Rank {rank} is not one of {world_size} workers."
        raise UsageError(message)
    if world_size > sample_count:
        message = f"{world_size} workers cannot share {sample_count} samples: use fewer."
        raise UsageError(message)
    shard = epoch_order(sample_count, seed, epoch)[rank::world_size]
    return shard[: sample_count // world_size] if even else shard


def epoch_order(sample_count: int, seed: int, epoch: int) -> Tensor:
    """Return all samples (int64) in the order of an epoch."""
    generator = torch.Generator().manual_seed((seed * _EPOCH_STRIDE + epoch) % 2**63)
    return torch.randperm(sample_count, generator=generator)


def batches(
    dataset: Dataset,
    rank: int,
    world_size: int,
    batch_size: int,
    seed: int,
    *,
    first_step: int = 0,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (inputs, targets) of `rank` without end, `batch_size` samples each.

    A batch may begin in one epoch and end in the next, so workers stay in step and a shard may be
    smaller than a batch. `first_step` continues where a run of that many batches ended.
    """
    _check_batch_size(batch_size)
    for chosen in _endless(
        len(dataset.train_inputs), (rank, world_size, seed), batch_size, first_step
    ):
        yield dataset.train_inputs[chosen], dataset.train_targets[chosen]


def _endless(
    sample_count: int, place: tuple[int, int, int], batch_size: int, first_step: int
) -> Iterator[Tensor]:
    rank, world_size, seed = place
    shard_size = sample_count // world_size
    # an empty shard is refused by shard_indices below, with a reason
    epoch, used = divmod(first_step * batch_size, max(1, shard_size))
    left = torch.empty(0, dtype=torch.int64)
    while True:
        shard = shard_indices(sample_count, rank, world_size, seed, epoch, even=True)
        left = torch.cat([left, shard[used:]])
        epoch, used = epoch + 1, 0
        while len(left) >= batch_size:
            yield left[:batch_size]
            left = left[batch_size:]


def epoch_batches(
    dataset: Dataset, rank: int, world_size: int, batch_size: int, seed: int, epoch: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches of `rank` in one epoch; over all ranks every sample comes exactly once.

    The last batch may be smaller, and ranks may differ by one batch: uneven inputs, as real
    training has them.
    """
    _check_batch_size(batch_size)
    shard = shard_indices(len(dataset.train_inputs), rank, world_size, seed, epoch, even=False)
    for chosen in shard.split(batch_size):
        yield dataset.train_inputs[chosen], dataset.train_targets[chosen]


def _check_batch_size(batch_size: int) -> None:
    if batch_size < 1:
        message = f"A batch needs at least one sample, not {batch_size}."
        raise UsageError(message)
