"""Numbers that users give: what is taken, as what, and in which sentence the rest is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.arguments import flag, one_of, seconds, share, whole_number
from shoal.errors import UsageError


@pytest.mark.parametrize("value", [2, 3, np.int64(3), np.array(3)])
def test_whole_numbers_come_back_plain(value: Any) -> None:
    number = whole_number(value, "It", low=2, high=3)
    assert type(number) is int
    assert number == value


@pytest.mark.parametrize("value", [1, 4, 2.0, "2", None, True, np.array([2, 3]), float("nan")])
def test_other_numbers_than_whole_ones_in_their_range_are_refused(value: Any) -> None:
    with pytest.raises(UsageError, match=r"^It must be a whole number from 2 to 3, not .*\.$"):
        whole_number(value, "It", low=2, high=3)


def test_without_a_largest_one_any_will_do() -> None:
    assert whole_number(1 << 70, "It", low=0) == 1 << 70
    assert whole_number(-5, "It", low=-5, high=-1) == -5
    with pytest.raises(UsageError, match="from -5 to 0, not 1"):
        whole_number(1, "It", low=-5, high=0)
    with pytest.raises(UsageError, match="of at least 0, not -1"):
        whole_number(-1, "It", low=0)


@pytest.mark.parametrize("value", [0, 0.5, np.float32(0.25)])
def test_shares_come_back_plain(value: Any) -> None:
    assert type(share(value, "It")) is float
    assert share(value, "It") == value


@pytest.mark.parametrize("value", [1, -0.1, float("nan"), "0.1", None, True, 1j])
def test_what_is_no_share_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match=r"^It is a share of at least 0 and less than 1, not "):
        share(value, "It")


@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan"), "60", None, 3e6])
def test_what_is_no_time_is_refused(value: Any) -> None:
    assert seconds(2, "It") == 2.0
    wanted = r"^It must be a positive number of seconds, 2000000 at most, not .*\.$"
    with pytest.raises(UsageError, match=wanted):
        seconds(value, "It")


@pytest.mark.parametrize("value", [0, 1, "False", "no", None, np.array([True, False])])
def test_what_is_no_flag_is_refused(value: Any) -> None:
    assert flag(False, "It") is False
    with pytest.raises(UsageError, match=r"^It must be True or False, not "):
        flag(value, "It")


@pytest.mark.parametrize(
    ("given", "meant"),
    [("fp16", "float16"), ("BF16", "bfloat16"), ("half", "float16"), ("float61", "float16")],
)
def test_the_nearest_word_is_asked_for(given: str, meant: str) -> None:
    words = ("float32", "float16", "bfloat16")
    with pytest.raises(UsageError) as refused:
        one_of(given, "wire type", words)
    assert str(refused.value) == (
        f"Unknown wire type {given!r}; choose one of float32, float16, bfloat16. Did you mean"
        f" {meant!r}?"
    )


def test_a_word_that_is_near_to_none_gets_the_list_alone() -> None:
    with pytest.raises(UsageError, match=r"^Unknown thing 7; choose one of a, b\.$"):
        one_of(7, "thing", ("a", "b"))
