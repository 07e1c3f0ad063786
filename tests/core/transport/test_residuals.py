"""Error feedback: in the long run every gradient is delivered, whatever the network loses.

The books must balance to the bit at all times: what the iterations' sums have brought and what the
senders still keep is together all that was ever contributed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_graphs import AllReduce
from transfers import Guarded, Transfer
from virtual_link import Datagram, Faults, joined

from shoal.transport import wire
from shoal.transport.endpoint import TransportConfig
from shoal.transport.forms import (
    FLOAT32,
    FLOAT32_AS_BFLOAT16,
    FLOAT32_AS_FLOAT16,
    FLOAT64,
    WIRE_BYTES,
    widening,
)
from shoal.transport.holes import ERROR_FEEDBACK
from shoal.transport.messages import MessageTables, Sending
from shoal.transport.residuals import add_kept, keep_missing
from shoal.transport.tables import DONE, Counter
from thoroughness import examples

if TYPE_CHECKING:
    from numpy.typing import NDArray

SEGMENT = 64


def residual(tables: MessageTables, length: int, dtype: Any) -> NDArray[Any]:
    """Return what `tables` keep, as a buffer's worth of values; they keep it no more."""
    guard = Guarded(length * np.dtype(dtype).itemsize)
    tables.add_kept(guard.address)
    guard.check()
    return guard.bytes.view(dtype).copy()


@settings(max_examples=examples(20))
@given(
    size=st.sampled_from([2, 4]),
    algorithm=st.sampled_from(["direct", "ring"]),
    form=st.sampled_from([FLOAT32, FLOAT64, FLOAT32_AS_BFLOAT16, FLOAT32_AS_FLOAT16]),
    length=st.sampled_from([1, 17, 300, 1_001]),
    bound=st.sampled_from([0.05, 0.3, 0.9]),
    loss=st.floats(0, 0.4),
    reordering=st.floats(0, 1),
    stop_early=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
def test_what_was_not_delivered_is_kept(
    size: int,
    algorithm: str,
    form: int,
    length: int,
    bound: float,
    loss: float,
    reordering: float,
    stop_early: bool,
    seed: int,
) -> None:
    config = TransportConfig(segment_bytes=SEGMENT, stop_early=stop_early)
    faults = Faults(loss=loss, reordering=reordering, duplication=loss / 2)
    link, _ = joined(size, config, faults=faults, seed=seed)
    dtype = np.float64 if form == FLOAT64 else np.float32
    random = np.random.default_rng(seed)
    high = 4 if widening(form) > 1 else 99  # so that every sum is exact in the wire's type
    rounds = [random.integers(-high, high + 1, (size, length)).astype(dtype) for _ in range(4)]
    job = AllReduce(
        link, range(size), rounds[0], algorithm=algorithm, form=form, piece_length=64,
        loss_bound=bound, policy=ERROR_FEEDBACK,
    )  # fmt: skip
    brought = np.zeros(length, dtype)
    for number, gradients in enumerate(rounds):
        for me, guard in enumerate(job.guards):
            guard.bytes.view(dtype)[:] = gradients[me]
            job.tables[me].add_kept(guard.address)
            assert not job.tables[me].keeps_something
        job.post_all(7, number)
        link.run()
        results = job.results()
        for other in results[1:]:
            np.testing.assert_array_equal(results[0], other)
        brought += results[0] * dtype(size)
    kept = sum(residual(tables, length, dtype) for tables in job.tables)
    np.testing.assert_array_equal(brought + kept, np.sum(rounds, axis=(0, 1)))


def test_nothing_is_overwritten_before_what_it_lost_is_kept() -> None:
    """The STOPs of all contributions get lost for a while, so the mean must not go into place."""
    config = TransportConfig(segment_bytes=SEGMENT)
    link, endpoints = joined(2, config)
    values = np.arange(2 * 640, dtype=np.float32).reshape(2, 640)
    dropped = 0

    def drop(datagram: Datagram) -> bool:
        nonlocal dropped
        if datagram.kind == wire.STOP and dropped < 30 and link.now < 20_000:
            dropped += 1
            return True
        return False

    link.drop = drop
    job = AllReduce(link, (0, 1), values, loss_bound=0.5, policy=ERROR_FEEDBACK)
    job.post_all(7, 0)
    link.run()
    early = sum(each.counts(None)[Counter.EARLY] for each in endpoints)
    assert dropped > 0
    assert early > 0
    kept = sum(residual(tables, 640, np.float32) for tables in job.tables)
    np.testing.assert_array_equal(job.results()[0] * 2 + kept, values.sum(axis=0))


@pytest.mark.parametrize("form", [FLOAT32, FLOAT64, FLOAT32_AS_BFLOAT16, FLOAT32_AS_FLOAT16])
@pytest.mark.parametrize("count", [4, 31, 32, 33, 100])
def test_missing_segments_are_kept_and_added_where_they_belong(form: int, count: int) -> None:
    dtype = np.float64 if form == FLOAT64 else np.float32
    tables = MessageTables(
        2, SEGMENT, form, sending=[Sending(1, 3, count, loss_bound=0.999)], keeps_missing=True
    )
    values = np.random.default_rng(count).standard_normal(count + 3).astype(dtype)
    tables.place(values.ctypes.data)
    row = tables.outgoing[0]
    per_segment = SEGMENT // WIRE_BYTES[form]
    assert 1 <= row["kept_room"] <= row["segments"]
    missing = np.random.default_rng(count + 1).random(int(row["segments"])) < 0.5
    missing[np.flatnonzero(missing)[row["kept_room"] :]] = False
    packed = np.zeros(64, np.bool_)
    packed[: len(missing)] = missing
    bits = np.packbits(packed, bitorder="little").view(np.uint64)
    tables.outgoing["missing"] = bits.ctypes.data
    keep_missing(tables.outgoing[0], SEGMENT)
    before = values.copy()
    values[:] = 5
    expected = values.copy()
    lost = np.repeat(missing, per_segment)[:count]
    expected[3:][lost] += before[3:][lost]
    add_kept(tables.outgoing, values.ctypes.data, SEGMENT)
    np.testing.assert_array_equal(values, expected)
    add_kept(tables.outgoing, values.ctypes.data, SEGMENT)
    np.testing.assert_array_equal(values, expected)


def test_a_bitmap_that_claims_more_than_the_bound_overruns_nothing() -> None:
    link, endpoints = joined(2, TransportConfig(segment_bytes=SEGMENT))
    transfer = Transfer(link, 0, 1, np.ones(16 * 100, np.float32), keeps_missing=True)
    tables = MessageTables(
        2, SEGMENT, FLOAT32, sending=[Sending(1, 0, 1600, loss_bound=0.05)], keeps_missing=True
    )
    tables.place(transfer.guards[0].address)
    row = tables.outgoing[0]
    assert row["kept_room"] == 6
    bits = np.full(2, ~np.uint64(0))
    tables.outgoing["missing"] = bits.ctypes.data
    keep_missing(row, SEGMENT)
    assert row["kept_segments"] == 6
    assert row["state"] != DONE
    assert endpoints[0].state.operations["active"].sum() == 0


@pytest.mark.long
def test_the_part_that_gets_lost_moves_from_iteration_to_iteration() -> None:
    """A receiver that stops at its bound cuts off what is sent last: never always the same."""
    config = TransportConfig(
        segment_bytes=SEGMENT, budget_packets=8, first_budget_packets=8, stop_early=True
    )
    link, _ = joined(2, config)
    segments, rounds = 100, 60
    values = np.ones((2, 2 * 16 * segments), np.float32)
    job = AllReduce(
        link, (0, 1), values, piece_length=16 * segments, loss_bound=0.2, policy=ERROR_FEEDBACK
    )
    lost = np.zeros(segments, np.int64)
    for number in range(rounds):
        for guard in job.guards:
            guard.bytes.view(np.float32)[:] = 1
        job.post_all(7, number)
        link.run()
        kept = residual(job.tables[0], values.shape[1], np.float32)
        lost += kept.reshape(2, segments, 16)[1].any(axis=1)
    assert lost.sum() >= 0.15 * segments * rounds  # it does stop early
    assert lost.max() <= 0.4 * rounds  # each part is lost now and then: 0.2 on average
    assert lost.min() >= 1
