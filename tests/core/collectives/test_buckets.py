"""Bucket layout: every parameter once, in reverse order, sizes respected."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.collectives.buckets import layout_buckets
from shoal.errors import UsageError

sizes = st.lists(st.integers(1, 5000), min_size=1, max_size=60)


@given(sizes=sizes, bucket_bytes=st.integers(1, 20000), first=st.integers(1, 20000))
def test_every_parameter_is_in_one_bucket_in_reverse_order(
    sizes: list[int], bucket_bytes: int, first: int
) -> None:
    buckets = layout_buckets(sizes, 4, bucket_bytes=bucket_bytes, first_bucket_bytes=first)
    order = [index for bucket in buckets for index in bucket.parameters]
    assert order == list(reversed(range(len(sizes))))


@given(sizes=sizes, bucket_bytes=st.integers(1, 20000), first=st.integers(1, 20000))
def test_parameters_lie_side_by_side_and_only_the_last_bucket_is_short(
    sizes: list[int], bucket_bytes: int, first: int
) -> None:
    buckets = layout_buckets(sizes, 4, bucket_bytes=bucket_bytes, first_bucket_bytes=first)
    for number, bucket in enumerate(buckets):
        end = 0
        for index, offset in zip(bucket.parameters, bucket.offsets, strict=True):
            assert offset == end
            end += sizes[index]
        assert end == bucket.num_elements
        limit = min(first, bucket_bytes) if number == 0 else bucket_bytes
        if number < len(buckets) - 1:
            assert end * 4 >= limit
            assert (end - sizes[bucket.parameters[-1]]) * 4 < limit


def test_a_small_model_has_some_buckets_between_hosts_and_one_inside() -> None:
    layers = [62_500] * 16  # a megabyte in each four of them
    assert len(layout_buckets(layers, 4)) == 2  # the first MiB, and the rest
    assert [len(each.parameters) for each in layout_buckets(layers, 4, num_hosts=2)] == [2] * 8
    assert len(layout_buckets([5_000] * 16, 4, num_hosts=2)) == 4  # of 64 KiB and more


def test_a_large_model_has_the_same_buckets_inside_a_host_and_between_them() -> None:
    layers = [1 << 20] * 64
    assert layout_buckets(layers, 4, num_hosts=2) == layout_buckets(layers, 4)


def test_a_bucket_size_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="bucket size"):
        layout_buckets([1], 4, bucket_bytes=0)


def test_parameters_of_different_kinds_share_no_bucket() -> None:
    kinds = ["half", "full", "half", "full", "half"]
    bytes_of = [2 if kind == "half" else 4 for kind in kinds]
    buckets = layout_buckets(
        [10, 10, 10, 10, 10], bytes_of, kinds=kinds, bucket_bytes=50, first_bucket_bytes=30
    )
    assert [bucket.parameters for bucket in buckets] == [(3,), (4, 2, 0), (1,)]
    assert [bucket.offsets for bucket in buckets] == [(0,), (0, 10, 20), (0,)]
    assert [bucket.num_elements for bucket in buckets] == [10, 30, 10]
