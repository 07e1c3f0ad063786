"""When averages are due: the rule that real and simulated training share."""

from __future__ import annotations

import pytest

from shoal.errors import UsageError
from shoal.groups.averaging_points import AveragingPoints


def test_an_average_is_due_every_few_steps_and_they_count_from_0() -> None:
    points = AveragingPoints(3)
    assert [points.round_after(steps) for steps in range(1, 8)] == [
        None,
        None,
        0,
        None,
        None,
        1,
        None,
    ]
    assert [AveragingPoints(1).round_after(steps) for steps in (1, 2, 3)] == [0, 1, 2]


def test_only_the_word_delays_them() -> None:
    assert not AveragingPoints(4).is_delayed
    assert AveragingPoints(4, "next-steps").is_delayed
    with pytest.raises(UsageError, match="overlap is one of none, next-steps where"):
        AveragingPoints(4, "backward")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="must be a whole number of at least 1"):
        AveragingPoints(0)
