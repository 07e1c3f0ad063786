"""Shards: every sample once an epoch over all workers, the same on every worker, reshuffled."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from data_samples import image_dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.workloads.sample_shard import batches, epoch_batches, shard_indices
from thoroughness import examples

WORLDS = st.integers(1, 9).flatmap(lambda world: st.tuples(st.just(world), st.integers(world, 60)))


@given(WORLDS, st.integers(0, 2**31), st.integers(0, 1000))
def test_uneven_shards_hold_every_sample_once(place, seed: int, epoch: int):
    world, samples = place
    shards = [shard_indices(samples, r, world, seed, epoch, even=False) for r in range(world)]
    assert sorted(torch.cat(shards).tolist()) == list(range(samples))
    sizes = {len(shard) for shard in shards}
    assert max(sizes) - min(sizes) <= 1


@given(WORLDS, st.integers(0, 2**31), st.integers(0, 1000))
def test_even_shards_are_disjoint_and_equal(place, seed: int, epoch: int):
    world, samples = place
    shards = [shard_indices(samples, r, world, seed, epoch, even=True) for r in range(world)]
    assert {len(shard) for shard in shards} == {samples // world}
    together = torch.cat(shards).tolist()
    assert len(set(together)) == len(together)


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = {
        tuple(shard_indices(50, 0, 1, seed, epoch, even=True).tolist())
        for seed in range(8)
        for epoch in range(8)
    }
    assert len(orders) == 64


@given(st.integers(1, 4), st.integers(1, 30), st.integers(0, 12))
@settings(max_examples=examples(40))
def test_endless_batches_are_full_and_resume_anywhere(world: int, batch_size: int, step: int):
    dataset = image_dataset()
    rank = world - 1
    whole = list(islice(batches(dataset, rank, world, batch_size, 3), step + 3))
    assert {len(inputs) for inputs, _ in whole} == {batch_size}
    resumed = list(islice(batches(dataset, rank, world, batch_size, 3, first_step=step), 3))
    for (inputs, targets), (same_inputs, same_targets) in zip(whole[step:], resumed, strict=True):
        assert torch.equal(inputs, same_inputs)
        assert torch.equal(targets, same_targets)


def test_endless_batches_pass_over_the_shard_epoch_by_epoch():
    dataset = image_dataset(samples=24)
    seen = torch.cat([targets for _, targets in islice(batches(dataset, 1, 2, 5, 0), 12)])
    inputs = torch.cat([inputs for inputs, _ in islice(batches(dataset, 1, 2, 5, 0), 12)])
    for epoch in range(5):
        shard = shard_indices(24, 1, 2, 0, epoch, even=True)
        assert torch.equal(seen[12 * epoch : 12 * epoch + 12], dataset.train_targets[shard])
        assert torch.equal(inputs[12 * epoch : 12 * epoch + 12], dataset.train_inputs[shard])


def test_finite_epoch_ends_with_a_smaller_batch():
    dataset = image_dataset(samples=23)
    sizes = [
        [len(targets) for _, targets in epoch_batches(dataset, rank, 2, 4, 0, 0)]
        for rank in range(2)
    ]
    assert sizes == [[4, 4, 4], [4, 4, 3]]


@pytest.mark.parametrize(
    ("rank", "world", "batch", "reason"),
    [
        (2, 2, 4, "Rank 2 is not one of 2 workers"),
        (-1, 2, 4, "Rank -1"),
        (0, 41, 4, "41 workers cannot share 40 samples"),
        (0, 2, 0, "at least one sample"),
    ],
)
def test_impossible_shards_are_refused(rank: int, world: int, batch: int, reason: str):
    with pytest.raises(UsageError, match=reason):
        next(batches(image_dataset(), rank, world, batch, 0))
    with pytest.raises(UsageError, match=reason):
        next(epoch_batches(image_dataset(), rank, world, batch, 0, 0))
