"""Rows of the section `transport-memory`: what the ranks saw, and what it is held against."""

from __future__ import annotations

import pytest

from shoal_bench.transport_memory import rows_of


def looks(first: int) -> dict[str, dict[str, int]]:
    """Return looks that grow by 40, 20 and 7 MB."""
    sizes = {"before": first, "imported": first + 40, "opened": first + 60, "worked": first + 67}
    return {name: {"pss": size * 10**6, "uss": 0} for name, size in sizes.items()}


@pytest.mark.parametrize(("megabytes", "met"), [(100, False), (151, True)])
def test_the_target_is_64_mb_and_2_percent_of_the_tensor(megabytes: int, met: bool) -> None:
    whole, *parts = rows_of("a case", megabytes, [looks(30), looks(50), looks(10)])
    assert (whole.case, whole.unit) == ("a case", "MB")
    assert whole.value == 67
    assert whole.spread == [67, 67]
    assert whole.target == pytest.approx(64 + megabytes / 50)
    assert whole.met is met
    assert [row.value for row in parts] == [40, 20, 7]
    assert sum(row.value for row in parts) == whole.value
    assert all(row.met is None for row in parts)
