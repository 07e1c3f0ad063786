"""When averages are due: the rule that real and simulated training share."""

from __future__ import annotations

import pytest

from shoal.errors import UsageError
from shoal.strategies import LocalSGD


def test_an_average_is_due_every_few_steps() -> None:
    points = LocalSGD(interval=3)
    assert [steps for steps in range(1, 10) if points.is_due_after(steps)] == [3, 6, 9]
    assert all(LocalSGD(interval=1).is_due_after(steps) for steps in (1, 2, 3))


def test_only_the_word_delays_them() -> None:
    assert not LocalSGD(interval=4).is_delayed
    assert LocalSGD(interval=4, overlap="next-steps").is_delayed
    with pytest.raises(
        UsageError, match="overlap is one of none, next-forward, layers, next-steps where"
    ):
        LocalSGD(interval=4, overlap="backward")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="must be a whole number of at least 1"):
        LocalSGD(interval=0)


def test_state_is_not_averaged_while_computing_changes_it() -> None:
    assert LocalSGD(interval=1, average_state=True).options()["average_state"] is True
    assert LocalSGD(interval=1).options()["average_state"] is False
    with pytest.raises(UsageError, match="average_state is for overlap='none'"):
        LocalSGD(interval=1, overlap="next-steps", average_state=True)
    with pytest.raises(UsageError, match="scale_adam is not for overlap='layers'"):
        LocalSGD(interval=1, overlap="layers", scale_adam=True)
    with pytest.raises(UsageError, match="average_state must be True or False"):
        LocalSGD(interval=1, average_state="yes")  # type: ignore[arg-type]
