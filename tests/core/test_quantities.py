"""Quantities with units: exact where they are written exactly, refused where a unit is missing."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.quantities import (
    duration_text,
    parse_duration,
    parse_rate,
    parse_share,
    parse_size,
    rate_text,
    share_text,
)


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_rate, "100 Mbit/s", 100_000_000),
        (parse_rate, "2.5Gbit/s", 2_500_000_000),
        (parse_rate, " 9600 bit/s ", 9600),
        (parse_duration, "20 us", 20e-6),
        (parse_duration, "1.5 min", 90.0),
        (parse_duration, "3 ns", 3e-9),
        (parse_duration, "1e-3 s", 0.001),
        (parse_size, "128 kB", 128_000),
        (parse_size, "128 KiB", 131_072),
        (parse_size, "1500 B", 1500),
        (parse_share, "0.1 %", 0.001),
        (parse_share, 0.25, 0.25),
        (parse_share, 1, 1.0),
    ],
)
def test_values_are_exact(parse: Callable[[object], float], text: object, value: float) -> None:
    assert parse(text) == value


@given(st.integers(0, 10**6), st.sampled_from(["ns", "us", "ms", "s"]))
def test_whole_numbers_are_the_nearest_float(number: int, unit: str) -> None:
    scale = {"ns": 10**9, "us": 10**6, "ms": 10**3, "s": 1}[unit]
    assert parse_duration(f"{number} {unit}") == float(Fraction(number, scale))


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_rate, "100"),
        (parse_rate, 100),
        (parse_rate, "100 mbit/s"),
        (parse_rate, "-1 Mbit/s"),
        (parse_rate, "100 MB/s"),
        (parse_duration, "fast"),
        (parse_duration, "1 s 2 ms"),
        (parse_size, "1 kb"),
        (parse_size, True),
        (parse_share, "101 %"),
        (parse_share, -0.1),
        (parse_share, True),
        (parse_share, "1"),
        (parse_duration, "1000000.1 s"),
        (parse_duration, "1e99 s"),
        (parse_size, "1000000.1 GB"),
        (parse_size, "1e99 B"),
        (parse_rate, f"{'9' * 400} bit/s"),
        (parse_size, f"{'9' * 5000} B"),
        (parse_share, f"{'9' * 400} %"),
    ],
)
def test_what_could_mean_several_things_or_is_too_large_to_count_is_refused(
    parse: Callable[[object], float], text: object
) -> None:
    with pytest.raises(UsageError, match="It takes a"):
        parse(text)


@given(st.floats(1, 1e15), st.floats(1e-9, 60), st.floats(0, 1))
def test_what_is_written_reads_back_to_four_digits(rate: float, time: float, share: float) -> None:
    assert parse_rate(rate_text(rate)) == pytest.approx(rate, rel=1e-3, abs=1)
    assert parse_duration(duration_text(time)) == pytest.approx(time, rel=1e-3, abs=1e-9)
    assert parse_share(share_text(share)) == pytest.approx(share, rel=1e-3, abs=1e-6)


def test_quantities_are_written_as_people_do() -> None:
    assert [rate_text(each) for each in (100e6, 94_813_000, 2.5e9, 12)] == [
        "100 Mbit/s",
        "94.81 Mbit/s",
        "2.5 Gbit/s",
        "12 bit/s",
    ]
    assert [duration_text(each) for each in (0, 20e-6, 1.5e-3, 90)] == [
        "0 ns",
        "20 us",
        "1.5 ms",
        "90 s",
    ]
    assert [share_text(each) for each in (0, 0.001, 0.0315, 1)] == [
        "0 %",
        "0.1 %",
        "3.15 %",
        "100 %",
    ]
