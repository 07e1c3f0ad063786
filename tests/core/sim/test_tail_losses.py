"""Losses of which no three later packets tell are found without the timer, as RFC 8985 has it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tcp_networks import (
    FRAME,
    FRAME_PS,
    GIGABIT,
    MS,
    US,
    check_idle,
    finish,
    lasted,
    long_way,
    network_of,
    port,
    send,
    set_rate,
    star_with,
)

from shoal.switching.settings import Link
from shoal.switching.tables import NEVER

if TYPE_CHECKING:
    from shoal.sim.transports.packet_network import PacketNetwork

MARGIN = 2 * MS
TRUNK = 4
BEGIN = FRAME_PS // 10
"""Just before the trunk takes the first packet."""


def over_a_trunk(packets: int, *, lost: tuple[int, int], probes: bool = True) -> PacketNetwork:
    """Return a message's network once it is through; the trunk loses these of its first packets."""
    network = network_of(
        long_way(port(), 0.001), first_window=64, tail_probes=probes, min_timeout_s=0.2
    )
    number = send(network, 0, 1, packets)
    first, last = (BEGIN + k * FRAME_PS for k in lost)
    set_rate(network, first, TRUNK, 0)
    set_rate(network, last, TRUNK, GIGABIT)
    finish(network, [number])
    check_idle(network)
    return network


@pytest.mark.parametrize("lost", [2, 5])
def test_a_lost_tail_costs_a_probe_and_not_the_timer(lost: int) -> None:
    network = over_a_trunk(40, lost=(40 - lost, 45))
    figures, trip = network.figures(), network.idle_round_trip(0, 1)
    assert figures.lost == lost
    assert (figures.timeouts, figures.recoveries) == (0, 1)
    assert figures.retransmitted == lost
    took = lasted(network)[0] - 40 * FRAME_PS
    assert 2 * trip + MARGIN < took < 8 * trip + MARGIN
    without = over_a_trunk(40, lost=(40 - lost, 45), probes=False)
    assert without.figures().timeouts == 1
    assert lasted(without)[0] > 200 * MS


@pytest.mark.parametrize("packets", [1, 40])
def test_a_lone_packet_waits_for_its_timer(packets: int) -> None:
    """Its acknowledgement may be delayed, so Linux gives a probe of it no head start."""
    network = over_a_trunk(packets, lost=(packets - 1, packets))
    assert network.figures().timeouts == 1
    assert lasted(network)[0] > 200 * MS


@pytest.mark.parametrize("behind", [1, 2])
def test_a_loss_that_fewer_than_three_overtake_waits_a_quarter_of_a_round_trip(behind: int) -> None:
    network = over_a_trunk(20, lost=(19 - behind, 20 - behind))
    figures, trip = network.figures(), network.idle_round_trip(0, 1)
    assert (figures.lost, figures.retransmitted, figures.timeouts) == (1, 1, 0)
    assert lasted(network)[0] - 20 * FRAME_PS < 3 * trip + MARGIN
    assert over_a_trunk(20, lost=(19 - behind, 20 - behind), probes=False).figures().timeouts == 1


def test_a_probe_that_was_needless_leaves_the_window_alone() -> None:
    """The path becomes longer: answers come late, and the probe's says that it was a copy."""
    network = network_of(
        long_way(port(), 0.001), first_window=64, most_window=64, min_timeout_s=0.2
    )
    number = send(network, 0, 1, 200)
    network.run(US)
    cable = network.topology.cables[TRUNK]
    network.alter(US, TRUNK, replace(cable, link=replace(cable.link, delay_s=0.008)))
    network.run(20 * MS)
    figures = network.figures()
    assert (figures.retransmitted, figures.duplicates, figures.timeouts) == (1, 1, 0)
    assert network.flows[0]["window"] == 64
    finish(network, [number])
    assert network.figures().recoveries == 0
    check_idle(network)


@pytest.mark.parametrize("control", ["newreno", "cubic", "dctcp"])
def test_few_losses_wait_for_the_timer(control: str) -> None:
    """3 % of 100 messages of 83 packets: also lost again, and among the last."""
    timeouts = {}
    for probes in (True, False):
        topology = star_with(2, port(), Link(2e-5, loss=0.015))
        network = network_of(topology, control, tail_probes=probes)
        for number in range(100):
            network.start(number * 2_000 * MS, [0], [1], [83.0 * FRAME])
        while (network.records["end"] < 0).any():
            assert network.run(NEVER)
        timeouts[probes] = network.figures().timeouts
    assert timeouts[True] < 0.5 * timeouts[False]
    assert timeouts[False] > 15


def test_what_is_lost_again_is_sent_again_without_the_timer() -> None:
    """The head is lost, and once more when it is sent again; new packets behind it tell of it."""
    network = network_of(long_way(port(), 0.001), first_window=32)
    number = send(network, 0, 1, 300)
    set_rate(network, BEGIN, TRUNK, 0)
    set_rate(network, BEGIN + FRAME_PS, TRUNK, GIGABIT)
    while network.figures().recoveries == 0:
        network.run(network.now + US)
    sent_again = network.now
    set_rate(network, sent_again, TRUNK, 0)
    set_rate(network, sent_again + FRAME_PS, TRUNK, GIGABIT)
    finish(network, [number])
    figures = network.figures()
    assert figures.lost >= 2
    assert figures.retransmitted >= figures.lost
    assert figures.timeouts == 0
    assert lasted(network)[0] < 100 * MS
    assert np.all(network.records["received"] == 300 * FRAME)


@pytest.mark.parametrize("probes", [True, False])
def test_a_timeout_that_was_too_short_is_taken_back(probes: bool) -> None:
    """The path becomes longer than the timer: the first answer since is to what was sent before."""
    network = network_of(long_way(port(), 0.001), first_window=64, tail_probes=probes)
    number = send(network, 0, 1, 300)
    network.run(US)
    cable = network.topology.cables[TRUNK]
    network.alter(US, TRUNK, replace(cable, link=replace(cable.link, delay_s=0.25)))
    network.run(253 * MS)
    figures, flow = network.figures(), network.flows[0]
    assert figures.timeouts == 1
    if probes:
        assert figures.retransmitted <= 1  # when the timer ran out, and no probe but new data
        assert flow["window"] > 64
        assert flow["threshold"] == 1_024
    else:
        assert figures.retransmitted > 10
        assert flow["threshold"] < 64
    finish(network, [number])
    assert (network.records["received"] == network.records["size"]).all()
    check_idle(network)
