"""How much a background flow is to have sent, and when it is silent."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.lab.hosts.background import Arrears, due_bytes, is_silent
from shoal.scenario.cluster_spec import Flow

STEADY = Flow(0, 1, "udp", 8_000_000)
BURSTS = Flow(0, 1, "udp", 8_000_000, burst_s=0.25, period_s=1.0)


def test_a_steady_flow_keeps_to_its_rate() -> None:
    assert due_bytes(STEADY, 0.5) == 500_000
    assert not is_silent(STEADY, 0.5)


def test_a_flow_without_a_rate_has_no_end() -> None:
    assert due_bytes(Flow(0, 1, "tcp", None), 0.0) == math.inf


def test_bursts_are_sent_at_the_rate_and_then_nothing() -> None:
    assert [due_bytes(BURSTS, at) for at in (0.0, 0.125, 0.25, 0.9, 1.0, 2.125)] == [
        0,
        125_000,
        250_000,
        250_000,
        250_000,
        625_000,
    ]
    assert [is_silent(BURSTS, at) for at in (0.0, 0.2, 0.25, 0.9, 1.1)] == [
        False,
        False,
        True,
        True,
        False,
    ]


@given(st.floats(0, 1000), st.floats(0, 1))
def test_nothing_that_is_due_is_taken_back(elapsed_s: float, more_s: float) -> None:
    before, after = due_bytes(BURSTS, elapsed_s), due_bytes(BURSTS, elapsed_s + more_s)
    assert before <= after + 1e-6
    assert after - before <= 1_000_000 * more_s + 1e-3


def test_what_could_not_be_sent_in_time_is_not_made_up_for() -> None:
    arrears = Arrears(STEADY)  # a byte in a microsecond
    assert arrears.at(0.01, 0) == 10_000
    assert arrears.at(0.02, 10_000) == 10_000
    assert arrears.at(3.0, 20_000) == 20_000, "the link was down: no more than 20 ms of it are left"
    assert arrears.at(3.0, 40_000) == 0
    assert arrears.at(3.01, 40_000) == pytest.approx(10_000)
    assert Arrears(Flow(0, 1, "tcp", None)).at(3.0, 5) == math.inf
