"""Bitmaps against Python's sets."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from transfers import CANARY

from shoal.compiled import compiled, lowest_bit
from shoal.transport import bitmap
from thoroughness import examples

BITS = st.one_of(st.integers(1, 200), st.sampled_from([63, 64, 65, 127, 128, 129, 1023, 1024]))


class Guarded:
    """Words of a bitmap between canaries."""

    def __init__(self, bits: int) -> None:
        count = bitmap.words_for(bits)
        self._whole = np.full(8 * (count + 2), CANARY, np.uint8).view(np.uint64)
        self.words, self.bits = self._whole[1:-1], bits
        self.address = self.words.ctypes.data

    def members(self) -> set[int]:
        """Return the set bits, and check that no other word has changed."""
        assert (self._whole[[0, -1]].view(np.uint8) == CANARY).all()
        flags = np.unpackbits(self.words.view(np.uint8), bitorder="little")
        return set(map(int, np.flatnonzero(flags)))

    def fill(self, members: set[int]) -> None:
        self.words[:] = 0
        for index in members:
            self.words[index // 64] |= np.uint64(1 << index % 64)


@given(data=st.data(), bits=BITS)
@settings(max_examples=examples(300))
def test_a_sequence_of_operations_is_that_of_a_set(data: st.DataObject, bits: int) -> None:
    guarded, expected = Guarded(bits), set(range(bits))
    bitmap.fill_bits(guarded.address, bits)
    assert guarded.members() == expected
    indices = st.integers(0, bits - 1)
    for index in data.draw(st.lists(indices, max_size=40)):
        bitmap.clear_bit(guarded.address, index)
        expected.discard(index)
        assert not bitmap.test_bit(guarded.address, index)
    for index in data.draw(st.lists(indices, max_size=10)):
        bitmap.set_bit(guarded.address, index)
        expected.add(index)
        assert bitmap.test_bit(guarded.address, index)
    assert guarded.members() == expected
    assert bitmap.count_bits(guarded.address, bits) == len(expected)
    for start in data.draw(st.lists(st.integers(0, bits + 3), max_size=10)):
        following = min((index for index in expected if index >= start), default=-1)
        assert bitmap.next_bit(guarded.address, bits, start) == following
    bitmap.clear_bits(guarded.address, bits)
    assert guarded.members() == set()


@given(data=st.data(), bits=BITS)
def test_common_bits(data: st.DataObject, bits: int) -> None:
    first, second = Guarded(bits), Guarded(bits)
    members = st.sets(st.integers(0, bits - 1), max_size=50)
    one, other = data.draw(members), data.draw(members)
    first.fill(one)
    second.fill(other)
    assert bitmap.count_common(first.address, second.address, bits) == len(one & other)
    assert bitmap.count_common(0, second.address, bits) == 0


def test_bits_beyond_the_end_are_never_found() -> None:
    guarded = Guarded(70)
    guarded.words[:] = ~np.uint64(0)
    assert bitmap.count_bits(guarded.address, 70) == 70
    assert bitmap.next_bit(guarded.address, 70, 69) == 69
    assert bitmap.next_bit(guarded.address, 70, 70) == -1


@compiled
def lowest(word: np.uint64) -> int:
    return int(lowest_bit(word))


def test_the_lowest_bit_of_every_single_bit_and_of_all_above_it() -> None:
    for index in range(64):
        assert lowest(np.uint64(1 << index)) == index
        assert lowest(np.uint64((1 << 64) - (1 << index))) == index


@given(bits=BITS, data=st.data())
def test_a_run_is_what_is_set_without_a_gap(bits: int, data: st.DataObject) -> None:
    guarded = Guarded(bits)
    bitmap.fill_bits(guarded.address, bits)
    gap, start = data.draw(st.integers(0, bits - 1)), data.draw(st.integers(0, bits - 1))
    most = data.draw(st.integers(0, bits - start))
    bitmap.clear_bit(guarded.address, gap)
    expected = most if gap < start or gap >= start + most else gap - start
    assert bitmap.set_run(guarded.address, start, most) == expected
    bitmap.clear_run(guarded.address, start, most)
    assert guarded.members() == set(range(bits)) - {gap} - set(range(start, start + most))


def test_no_bits_are_an_empty_set() -> None:
    guarded = Guarded(0)
    bitmap.fill_bits(guarded.address, 0)
    bitmap.clear_bits(guarded.address, 0)
    assert bitmap.next_bit(guarded.address, 0, 0) == -1
    assert bitmap.count_bits(guarded.address, 0) == 0
    assert guarded.members() == set()
