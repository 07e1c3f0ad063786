"""The window kernel against closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from flows import FULL, GIGABIT, SLOT, star_of
from many_packets import arrivals_at_load
from many_windows import waits_at

from shoal.sim.packet.simulation import Flow, Simulation
from shoal.switching.settings import Port
from shoal.switching.tables import Count
from thoroughness import seldom


@pytest.mark.parametrize("senders", [2, 7, 31, 64])
@pytest.mark.parametrize("burst", [1, 8, 20])
def test_a_burst_loses_what_does_not_fit(senders: int, burst: int) -> None:
    """N senders on equal links, M packets each at once, B places: N M - (B + M) are dropped."""
    places = 16
    shape = star_of(senders + 1, access=Port(GIGABIT, limit_packets=places))
    flows = [Flow(k, senders, FULL, burst, SLOT) for k in range(senders)]
    simulation = Simulation(shape, flows, least_size=FULL)
    simulation.finish()
    dropped = simulation.counts[..., Count.DROPPED_FULL].sum()
    assert dropped == max(0, senders * burst - (places + burst))
    assert simulation.flows["delivered"].sum() == senders * burst - dropped


@pytest.mark.parametrize(
    ("load", "within"),
    seldom([(0.5, 0.02), (0.8, 0.02), (0.9, 0.02), (0.95, 0.05)], often=[(0.8, 0.02)]),
)
def test_waiting_times_are_those_of_theory(load: float, within: float) -> None:
    """M/D/1: a packet waits load / (2 (1 - load)) transmission times on average."""
    arrivals = arrivals_at_load(load, SLOT, 1_000_000, seed=5)
    waits = waits_at(GIGABIT, arrivals, np.zeros_like(arrivals))
    assert waits.mean() == pytest.approx(load / (2 * (1 - load)) * SLOT, rel=within)


def test_two_classes_wait_as_long_as_theory_says() -> None:
    """Non-preemptive priority (Cobham): R / (1 - load1) and R / ((1 - load1) (1 - load))."""
    load = 0.8
    arrivals = arrivals_at_load(load, SLOT, 1_000_000, seed=7)
    queues = np.random.default_rng(8).integers(0, 2, len(arrivals))
    waits = waits_at(GIGABIT, arrivals, queues)
    residual = load * SLOT / 2
    high = residual / (1 - load / 2)
    assert waits[queues == 0].mean() == pytest.approx(high, rel=0.01)
    assert waits[queues == 1].mean() == pytest.approx(high / (1 - load), rel=0.03)


def test_a_lone_flow_takes_the_time_of_its_links() -> None:
    simulation = Simulation(star_of(2), [Flow(0, 1, FULL, 10, 2 * SLOT, start_ps=5)])
    simulation.finish()
    (flow,) = simulation.flows
    alone = 2 * SLOT + 2_000_000
    assert (flow["delivered"], flow["delivered_bytes"]) == (10, 10 * FULL)
    assert (flow["delay"], flow["longest"]) == (10 * alone, alone)
    assert flow["last_at"] == 5 + 9 * 2 * SLOT + alone == simulation.now_ps
