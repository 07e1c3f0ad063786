"""Tags computed from real values: which blocks are important, and how the threshold follows."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.comm import Layers
from shoal.compiled import compiled
from shoal.transport.bitmap import test_bit as is_set
from shoal.transport.forms import FLOAT32, FLOAT64
from shoal.transport.last_means import STRIDE, LastMeans, change_of
from shoal.transport.messages import Joining, MessageTables, Sending
from shoal.transport.tags import (
    IMPORTANCE,
    LARGE,
    LARGE_CHANGE,
    NONE,
    SMALL,
    ImportanceTagger,
    class_of,
    classes_of,
    layer_class,
    tag_these,
)
from thoroughness import examples

SEGMENT_BYTES = 240


def tables_for(values: np.ndarray, form: int) -> MessageTables:
    half = len(values) // 2
    tables = MessageTables(
        3,
        SEGMENT_BYTES,
        form,
        sending=[Sending(1, 0, half), Sending(2, half, len(values) - half)],
        tagged=True,
    )
    tables.place(values.ctypes.data)
    return tables


def important(tables: MessageTables) -> list[bool]:
    return [
        bool(is_set(int(row["important"]), segment))
        for row in tables.outgoing
        for segment in range(row["segments"])
    ]


@pytest.mark.parametrize(("dtype", "form"), [(np.float32, FLOAT32), (np.float64, FLOAT64)])
def test_large_blocks_are_important_from_the_second_iteration_on(dtype: type, form: int) -> None:
    per_block = SEGMENT_BYTES // np.dtype(dtype).itemsize
    scales = np.random.default_rng(1).permutation(40) + 1.0
    signs = np.where(np.arange(40 * per_block) % 2, 1, -1)
    values = (np.repeat(scales, per_block) * signs).astype(dtype)
    tables, tagger = tables_for(values, form), ImportanceTagger(unimportant=0.25)
    tagger.tag(tables, "weights")
    assert all(important(tables)), "nothing is known yet"
    tagger.tag(tables, "weights")
    assert important(tables) == [scale >= np.quantile(scales, 0.25) for scale in scales]


def test_tags_can_be_turned_round_or_off() -> None:
    per_block = SEGMENT_BYTES // 4
    scales = np.random.default_rng(2).permutation(40) + 1.0
    values = np.repeat(scales, per_block).astype(np.float32)
    values[:per_block] = np.nan
    found = {}
    for importance in IMPORTANCE:
        tables, tagger = tables_for(values, FLOAT32), ImportanceTagger()
        tagger.tag(tables, "weights", importance)
        first = important(tables)
        assert set(first) == {importance != NONE}
        tagger.tag(tables, "weights", importance)
        found[importance] = important(tables)
    assert found[LARGE][0], "what cannot be judged is important"
    assert found[SMALL][0]
    assert found[LARGE][1:] == [not small for small in found[SMALL][1:]]
    assert found[LARGE][1:] == [scale >= np.quantile(scales[1:], 0.5) for scale in scales[1:]]
    assert not any(found[NONE])


def test_the_threshold_is_the_previous_iterations_and_each_tensors_own() -> None:
    values = np.ones(4000, np.float32)
    tables, tagger = tables_for(values, FLOAT32), ImportanceTagger()
    tagger.tag(tables, "a")
    values *= 0.5
    tagger.tag(tables, "a")
    assert not any(important(tables)), "all have shrunk below what was large before"
    tagger.tag(tables, "a")
    assert all(important(tables))
    tagger.tag(tables, "b")
    values *= 2
    tagger.tag(tables, "a")
    assert all(important(tables))


@pytest.mark.parametrize(("dtype", "form"), [(np.float32, FLOAT32), (np.float64, FLOAT64)])
def test_in_means_of_parameters_blocks_that_have_changed_are_important(
    dtype: type, form: int
) -> None:
    per_block = SEGMENT_BYTES // np.dtype(dtype).itemsize
    rng = np.random.default_rng(4)
    sizes, changes = rng.permutation(40) + 1.0, rng.permutation(40) + 1.0
    values = np.repeat(sizes, per_block).astype(dtype)
    tables, tagger = tables_for(values, form), ImportanceTagger(0.25)
    means, at = LastMeans(), values.ctypes.data
    for _ in range(2):  # before the first mean, nothing is known
        sample = means.sample("weights")
        tagger.tag(tables, "weights", LARGE_CHANGE, address=at, sample=sample)
        assert all(important(tables))
    for learnt in range(2):
        means.note("weights", at, form, len(values))
        values += np.repeat(changes, per_block).astype(dtype)
        sample = means.sample("weights")
        tagger.tag(tables, "weights", LARGE_CHANGE, address=at, sample=sample)
        assert all(important(tables)) == (learnt == 0), "the first mean's threshold comes after it"
    expected = [change >= np.quantile(changes, 0.25) for change in changes]
    known = [  # a block of float64 is shorter than what is between two elements that are kept
        any(at % STRIDE == 0 for at in range(block * per_block, (block + 1) * per_block))
        for block in range(40)
    ]
    judged = [tag for tag, is_known in zip(important(tables), known, strict=True) if is_known]
    assert judged == [tag for tag, is_known in zip(expected, known, strict=True) if is_known]
    assert all(tag for tag, is_known in zip(important(tables), known, strict=True) if not is_known)


@compiled
def change(form: int, tensor: int, at: int, count: int, sample: np.ndarray) -> float:
    return change_of(form, tensor, at, count, sample)


@given(
    count=st.integers(1, 400),
    first=st.integers(0, 399),
    length=st.integers(1, 100),
    seed=st.integers(0, 1 << 30),
)
@settings(max_examples=examples(200), deadline=None)
def test_a_change_is_of_the_elements_that_were_kept_however_a_tensor_is_cut(
    count: int, first: int, length: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    first = min(first, count - 1)
    last = min(first + length, count)
    means = LastMeans()
    for dtype, form in ((np.float32, FLOAT32), (np.float64, FLOAT64)):
        values = rng.normal(size=count).astype(dtype)
        before, at = values.copy(), values.ctypes.data
        means.note(form, at, form, count)
        values += rng.normal(size=count).astype(dtype)
        found = change(form, at, at + first * values.itemsize, last - first, means.sample(form))
        kept = [k for k in range(first, last) if k % STRIDE == 0]
        slowly = np.abs(values[kept].astype(float) - before[kept].astype(float))
        assert found == (pytest.approx(slowly.mean()) if kept else np.inf)


def test_a_block_with_a_nan_is_important() -> None:
    values = np.ones(4000, np.float32)
    values[:60] = np.nan
    tables, tagger = tables_for(values * 1.0, FLOAT32), ImportanceTagger()
    keep = values.copy()
    tables.place(keep.ctypes.data)
    tagger.tag(tables, "a")
    tagger.tag(tables, "a")
    assert important(tables)[0]


def test_what_is_passed_on_bears_no_tags() -> None:
    tables = MessageTables(
        2,
        SEGMENT_BYTES,
        FLOAT32,
        sending=[Sending(1, 0, 100), Sending(1, 100, 100, gate=0)],
        gates=[Joining(100, 100)],
        tagged=True,
    )
    assert [bool(address) for address in tables.outgoing["important"]] == [True, False]


def test_front_layers_are_the_most_urgent() -> None:
    classes = [layer_class(layer, 50) for layer in range(50)]
    assert classes[0] == 0
    assert classes[-1] == 7
    assert classes == sorted(classes)
    assert set(classes) == set(range(8))
    assert [layer_class(layer, 3) for layer in range(3)] == [0, 2, 5]


def test_packets_can_be_told_which_are_important() -> None:
    values = np.ones(40 * SEGMENT_BYTES // 4 + 7, np.float32)
    tables = tables_for(values, FLOAT32)
    rng = np.random.default_rng(3)
    for _ in range(2):  # the second time over what is there
        flags = rng.random(int(tables.outgoing["segments"].sum())) < 0.5
        tag_these(tables.outgoing, flags)
        assert important(tables) == flags.tolist()


def test_messages_without_room_for_tags_take_no_flags() -> None:
    tables = MessageTables(
        3,
        SEGMENT_BYTES,
        FLOAT32,
        sending=[Sending(1, 0, 300, gate=0), Sending(2, 300, 100)],
        gates=[Joining(0, 100)],
        tagged=True,
    )
    row = tables.outgoing[1]
    flags = np.arange(int(row["segments"])) % 2 == 0
    tag_these(tables.outgoing, flags)
    found = [bool(is_set(int(row["important"]), k)) for k in range(int(row["segments"]))]
    assert found == flags.tolist()
    assert tables.outgoing["important"][0] == 0


@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=12),
    layers=st.lists(st.integers(0, 29), min_size=12, max_size=12),
    first=st.integers(0, 300),
    length=st.integers(1, 60),
)
@settings(max_examples=examples(200))
def test_a_message_has_the_most_urgent_class_of_its_elements(
    lengths: list[int], layers: list[int], first: int, length: int
) -> None:
    starts = [sum(lengths[:k]) for k in range(len(lengths))]
    numbers = layers[: len(lengths)]
    by_element = [
        layer_class(layer, 30)
        for layer, count in zip(numbers, lengths, strict=True)
        for _ in range(count)
    ]
    first = min(first, len(by_element) - 1)
    last = min(first + length, len(by_element))
    classes = classes_of(starts, numbers, 30)
    assert class_of(classes, first, last) == min(by_element[first:last])
    assert all(one[1] != other[1] for one, other in itertools.pairwise(classes))
    part = Layers(tuple(starts), tuple(numbers), 30).within(first, last)
    assert part.starts[0] == 0
    assert class_of(classes_of(*part), 0, last - first) == min(by_element[first:last])
    assert part.front == min(
        layer
        for layer, start, count in zip(numbers, starts, lengths, strict=True)
        if start < last and start + count > first
    )
