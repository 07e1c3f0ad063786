"""Elements in memory and on the wire: NumPy and torch are the oracles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from transfers import Guarded

from shoal.errors import UsageError
from shoal.transport.forms import (
    FLOAT32,
    FLOAT32_AS_BFLOAT16,
    FLOAT32_AS_FLOAT16,
    FLOAT64,
    INT32,
    INT64,
    MEMORY_BYTES,
    RAW,
    SUMMABLE,
    WIRE_BYTES,
    WIRE_TYPES,
    finish_sum,
    from_float16,
    put,
    sum_form,
    take,
    to_bfloat16,
    to_float16,
    widening,
)
from shoal.transport.tables import ADD, WRITE

DTYPES: dict[int, Any] = {
    RAW: np.uint8,
    FLOAT32: np.float32,
    FLOAT64: np.float64,
    INT32: np.int32,
    INT64: np.int64,
}
SUMMED = [FLOAT32, FLOAT64, INT32, INT64]


def random_values(form: int, count: int, seed: int) -> np.ndarray[Any, Any]:
    """Random bits: all exponents, infinities and NaNs among them."""
    bits = np.random.default_rng(seed).integers(0, 256, count * MEMORY_BYTES[form], np.uint8)
    return bits.view(DTYPES[form])


def float32_of(*bits: int) -> np.ndarray[Any, Any]:
    return np.array(bits, np.uint32).view(np.float32)


@pytest.mark.parametrize("form", DTYPES)
@pytest.mark.parametrize("count", [1, 3, 16, 17, 363])
def test_what_is_taken_and_written_elsewhere_is_the_same(form: int, count: int) -> None:
    values, size = random_values(form, count, seed=count), WIRE_BYTES[form]
    wire, target = Guarded(count * size), Guarded((count + 2) * size)
    taken = take(form, values.ctypes.data, 0, wire.address, count * size)
    assert taken == (wire.address if widening(form) > 1 else values.ctypes.data)
    put(form, WRITE, target.address, size, taken, count * size)
    assert target.bytes[size:-size].tobytes() == values.tobytes()
    assert not target.bytes[:size].any()
    assert not target.bytes[-size:].any()
    wire.check()
    target.check()


@pytest.mark.parametrize("form", SUMMED)
def test_sums_are_those_of_numpy(form: int) -> None:
    with np.errstate(all="ignore"):
        for count in (1, 7, 64, 365):
            first, second = random_values(form, count, 1), random_values(form, count, 2)
            guard = Guarded(first.nbytes)
            guard.bytes[:] = first.view(np.uint8)
            put(form, ADD, guard.address, 0, second.ctypes.data, second.nbytes)
            guard.check()
            np.testing.assert_array_equal(guard.bytes.view(DTYPES[form]), first + second)


def test_integers_wrap() -> None:
    for form, dtype in ((INT32, np.int32), (INT64, np.int64)):
        total = np.array([np.iinfo(dtype).max], dtype)
        one = np.array([1], dtype)
        put(form, ADD, total.ctypes.data, 0, one.ctypes.data, one.nbytes)
        assert total[0] == np.iinfo(dtype).min


SPECIAL = [
    0x00000000,
    0x80000000,  # -0
    0x00000001,  # smallest subnormal
    0x00008000,  # a tie between 0 and the smallest bfloat16
    0x00008001,
    0x00018000,  # a tie that goes up to even
    0x007FFFFF,  # largest subnormal
    0x3F800000,
    0x3F808000,  # a tie that goes down to even
    0x3F808001,
    0x3F818000,  # a tie that goes up to even
    0x7F7F0000,  # largest bfloat16
    0x7F7F7FFF,
    0x7F7F8000,  # a tie between the largest bfloat16 and infinity
    0x7F7FFFFF,  # largest float32
    0x7F800000,
    0xFF800000,
]


def test_bfloat16_is_rounded_as_torch_rounds() -> None:
    torch = pytest.importorskip("torch")
    generator = np.random.default_rng(5)
    bits = generator.integers(0, 1 << 32, 100_000, np.uint32)
    ties = generator.integers(0, 1 << 16, 20_000, np.uint32) << np.uint32(16) | np.uint32(0x8000)
    every = np.concatenate([np.array(SPECIAL, np.uint32), bits, ties])
    values = every.view(np.float32)
    narrow = np.zeros(len(values), np.uint16)
    take(FLOAT32_AS_BFLOAT16, values.ctypes.data, 0, narrow.ctypes.data, narrow.nbytes)
    expected = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy()
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(narrow.view(np.int16)[numbers], expected[numbers])
    back = (narrow.astype(np.uint32) << np.uint32(16)).view(np.float32)
    assert np.isnan(back[~numbers]).all()


FLOAT16_EDGES = [
    0x477FE000,  # 65504, the largest float16
    0x477FEFFF,  # the largest that is rounded down to it
    0x477FF000,  # 65520, a tie between it and infinity
    0x477FF001,
    0x47800000,  # 65536
    0x38800000,  # 2^-14, the smallest normal float16
    0x387FFFFF,  # just below: rounded up to it
    0x387FC000,  # the largest subnormal
    0x387FE000,  # a tie between the two
    0x387FDFFF,
    0x33800000,  # 2^-24, the smallest subnormal
    0x33000000,  # 2^-25, a tie between it and 0
    0x33000001,
    0x32FFFFFF,
    0x33BFFFFF,
    0x33C00000,  # a tie that goes up to even
    0x3F801000,  # a tie that goes down to even
    0x3F801001,
    0x3F803000,  # a tie that goes up to even
    0x3FFFF000,  # a tie whose carry changes the exponent
]


def test_float16_is_rounded_as_numpy_rounds() -> None:
    generator = np.random.default_rng(8)
    edges = np.array([*SPECIAL, *FLOAT16_EDGES], np.uint32)
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    with np.errstate(invalid="ignore"):
        exact = halves.astype(np.float32).view(np.uint32)
    near = exact[:, None] + np.array([0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF], np.uint32)
    small = generator.integers(0x32000000, 0x39000000, 200_000, np.uint32)
    anything = generator.integers(0, 1 << 32, 500_000, np.uint32)
    bits = np.concatenate([edges, edges | np.uint32(1 << 31), near.reshape(-1), small, anything])
    values = bits.view(np.float32)
    narrow = np.zeros(len(values), np.uint16)
    take(FLOAT32_AS_FLOAT16, values.ctypes.data, 0, narrow.ctypes.data, narrow.nbytes)
    with np.errstate(all="ignore"):
        expected = values.astype(np.float16)
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(narrow[numbers], expected.view(np.uint16)[numbers])
    assert np.isnan(narrow.view(np.float16)[~numbers]).all()
    np.testing.assert_array_equal(narrow[~numbers] >> 15, bits[~numbers] >> 31)


def test_every_float16_becomes_its_float32_and_itself_again() -> None:
    torch = pytest.importorskip("torch")
    halves = np.arange(1 << 16, dtype=np.uint16)
    wide = np.zeros(len(halves), np.float32)
    put(FLOAT32_AS_FLOAT16, WRITE, wide.ctypes.data, 0, halves.ctypes.data, halves.nbytes)
    expected = torch.from_numpy(halves.view(np.float16)).float().numpy()
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(wide.view(np.uint32)[numbers], expected.view(np.uint32)[numbers])
    assert np.isnan(wide[~numbers]).all()
    again = np.zeros_like(halves)
    take(FLOAT32_AS_FLOAT16, wide.ctypes.data, 0, again.ctypes.data, again.nbytes)
    np.testing.assert_array_equal(again[numbers], halves[numbers])
    for half in (0x0001, 0x83FF, 0x7BFF, 0xFC00):  # one by one, not several at once
        assert from_float16(np.uint16(half)) == wide.view(np.uint32)[half]
        assert to_float16(wide.view(np.uint32)[half]) == half


@pytest.mark.parametrize("bits", [0x7F800001, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF, 0x7FC00000])
def test_a_nan_stays_one_and_keeps_its_sign(bits: int) -> None:
    for convert, infinity in ((to_bfloat16, 0x7F80), (to_float16, 0x7C00)):
        narrow = int(convert(np.uint32(bits)))
        assert narrow & infinity == infinity
        assert narrow & 0x7FFF > infinity
        assert narrow >> 15 == bits >> 31


@pytest.mark.parametrize("form", [FLOAT32_AS_BFLOAT16, FLOAT32_AS_FLOAT16])
def test_narrow_floats_are_written_and_added_in_float32(form: int) -> None:
    torch = pytest.importorskip("torch")
    narrow_type = torch.bfloat16 if form == FLOAT32_AS_BFLOAT16 else torch.float16
    values = np.random.default_rng(6).standard_normal(77).astype(np.float32)
    values[::5] *= 1e-5  # subnormal in float16
    narrow = torch.from_numpy(values).to(narrow_type)
    widened = narrow.to(torch.float32).numpy()
    wire = narrow.view(torch.int16).numpy()
    assert widening(form) == 2
    guard = Guarded(values.nbytes)
    memory = guard.bytes.view(np.float32)
    put(form, WRITE, guard.address, 0, wire.ctypes.data, wire.nbytes)
    np.testing.assert_array_equal(memory, widened)
    put(form, ADD, guard.address, 0, wire.ctypes.data, wire.nbytes)
    np.testing.assert_array_equal(memory, widened + widened)
    tail = wire[70:]
    put(form, WRITE, guard.address, 140, tail.ctypes.data, tail.nbytes)
    np.testing.assert_array_equal(memory[70:], widened[70:])
    np.testing.assert_array_equal(memory[:70], 2 * widened[:70])
    guard.check()


@pytest.mark.parametrize(
    ("form", "precision"), [(FLOAT32_AS_BFLOAT16, 2**-8), (FLOAT32_AS_FLOAT16, 2**-11)]
)
def test_a_finished_sum_has_the_bits_that_its_receivers_get(form: int, precision: float) -> None:
    values = np.random.default_rng(7).standard_normal(100).astype(np.float32)
    finished, received = values.copy(), np.zeros_like(values)
    finish_sum(form, finished.ctypes.data, finished.nbytes, 1 / 3)
    narrow = np.zeros(100, np.uint16)
    take(form, finished.ctypes.data, 0, narrow.ctypes.data, 200)
    put(form, WRITE, received.ctypes.data, 0, narrow.ctypes.data, 200)
    assert received.tobytes() == finished.tobytes()
    np.testing.assert_allclose(finished, values / 3, rtol=precision)


@pytest.mark.parametrize("element", SUMMABLE)
@pytest.mark.parametrize("wire", [None, *WIRE_TYPES])
def test_the_wire_type_is_that_of_floats_and_of_nothing_else(
    element: str, wire: str | None
) -> None:
    form = sum_form(element, wire)
    if element.startswith("int"):
        assert form == sum_form(element)
    else:
        sizes = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
        assert WIRE_BYTES[form] == sizes[wire or element]
        assert MEMORY_BYTES[form] == (8 if (element, wire) == ("float64", None) else 4)


def test_what_cannot_be_summed_or_sent_is_said() -> None:
    assert {sum_form(each, "float16") for each in ("uint8", "bool", "complex64", "str")} == {RAW}
    with pytest.raises(UsageError, match=r"Unknown wire type 'float8'; choose one of float32, "):
        sum_form("float32", "float8")


def test_finishing_multiplies_floats_and_leaves_integers() -> None:
    for form in (FLOAT32, FLOAT64):
        values = np.arange(10, dtype=DTYPES[form])
        finish_sum(form, values.ctypes.data, values.nbytes, 0.5)
        np.testing.assert_array_equal(values, np.arange(10) / 2)
    numbers = np.arange(10, dtype=np.int64)
    finish_sum(INT64, numbers.ctypes.data, numbers.nbytes, 0.5)
    np.testing.assert_array_equal(numbers, np.arange(10))


def test_infinities_cancel_to_nan_as_anywhere() -> None:
    total, term = float32_of(0x7F800000), float32_of(0xFF800000)
    put(FLOAT32, ADD, total.ctypes.data, 0, term.ctypes.data, 4)
    assert np.isnan(total[0])
