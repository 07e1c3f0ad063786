"""Why nothing arrives: only a path that lets small packets pass and no large ones is named."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.transport.tables import COUNTERS, Counter
from shoal.wire.recent_traffic import RecentTraffic

LARGE_ARE_LOST = {Counter.SENT_AGAIN: 9, Counter.CONTROL_RECEIVED: 4}


def explain(passed: dict[Counter, int], before: dict[Counter, int] | None = None) -> str:
    """Return what is said of rank 1 if so much has passed since the first look."""
    counters, traffic = np.zeros((2, COUNTERS), np.int64), RecentTraffic()
    for counter, amount in (before or {}).items():
        counters[1, counter] = amount
    traffic.note(counters, 10.0)
    for counter, amount in passed.items():
        counters[1, counter] += amount
    traffic.note(counters, 11.0)
    return traffic.explain([1], 1436)


def test_a_path_for_small_packets_only_is_named_with_what_to_do() -> None:
    said = explain(LARGE_ARE_LOST)
    assert "between here and rank 1, those with 1436 bytes" in said
    assert "SHOAL_MTU" in said
    assert "doctor" in said


def test_what_arrived_before_says_nothing_of_now() -> None:
    assert explain(LARGE_ARE_LOST, before={Counter.RECEIVED: 1000})


@pytest.mark.parametrize(
    "passed",
    [
        {},
        {Counter.SENT_AGAIN: 9},  # nothing comes back: the peer is gone, or the whole path
        {Counter.CONTROL_RECEIVED: 4},  # it waits for somebody else
        {**LARGE_ARE_LOST, Counter.RECEIVED: 1},  # large ones do arrive
    ],
)
def test_nothing_is_said_of_anything_else(passed: dict[Counter, int]) -> None:
    assert explain(passed) == ""
