"""How often things are tried: in `make test` some of the cases, all of them in `make test-all`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

ONE_OF_EACH: Final = ("all-reduce", "ds-sync", "ripples", "ad-psgd", "ps-asp")
"""A strategy of each family: those of one family share their course and its executors."""

_IS_ALL = os.environ.get("SHOAL_TEST_ALL") == "1"
_SHARE = 12


def examples(count: int, share: int = _SHARE, least: int = 10) -> int:
    """Return how many of `count` examples of a property are tried: one of `share` in `make test`.

    At least `least` are. A larger share and a smaller least than usual are for examples of which
    each takes long.
    """
    return count if _IS_ALL else max(least, count // share)


def seldom(values: Iterable[Any], *, often: Collection[Any]) -> list[Any]:
    """Return `values` to parametrize with; `make test` tries those in `often` alone.

    It is for cases that take one way through the code, and have failed together so far.
    """
    return [
        value
        if value in often
        else pytest.param(*(value if type(value) is tuple else (value,)), marks=pytest.mark.long)
        for value in values
    ]
