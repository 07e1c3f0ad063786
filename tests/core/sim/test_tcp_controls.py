"""Congestion controls against their formulas, and what queues they make."""

from __future__ import annotations

from itertools import pairwise
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

from shoal.sim.transports import controls
from shoal.sim.transports.controls import cubic, dctcp, pfabric
from shoal.sim.transports.transport_settings import Transport, write_rules
from shoal.sim.transports.transport_tables import FLOW, RULES, Mode
from shoal.switching.settings import Link
from shoal.switching.tables import NEVER, QUEUES

if TYPE_CHECKING:
    from shoal.sim.transports.packet_network import PacketNetwork


def test_the_share_of_marks_follows_its_recursion() -> None:
    """Windows of ten packets, of which so many come marked; a window shrinks once in each."""
    flow = np.zeros(1, FLOW)[0]
    flow["mode"], flow["fraction"], flow["window"] = Mode.OPEN, 1.0, 100.0
    alpha, window = 1.0, 100.0
    flow["una"], flow["nxt"], flow["observed_to"] = 1, 10, 10
    for marks in (0, 3, 10, 0, 0, 1, 7):
        for place in range(10):
            if place == 9:
                flow["nxt"] = flow["una"] + 10
            if place == 0 and marks:
                window *= 1 - alpha / 2
            dctcp.note_echo(flow, int(place < marks))
            flow["una"] += 1
        alpha += (marks / 10 - alpha) / 16
        assert flow["fraction"] == pytest.approx(alpha, rel=1e-12)
        assert flow["window"] == pytest.approx(window, rel=1e-12)


def test_a_timeout_after_a_mark_leaves_the_window_free_to_grow() -> None:
    rules, flow = np.zeros(1, RULES)[0], np.zeros(1, FLOW)[0]
    write_rules(rules, Transport("dctcp"), local_rate=1e9)
    controls.begin(rules, flow)
    flow["mode"], flow["window"], flow["una"], flow["nxt"] = Mode.OPEN, 40.0, 60, 100
    controls.note_ack(rules, flow, 1, 1, 0, 0)
    assert (flow["window"], flow["reduced_to"]) == (pytest.approx(40 * (1 - 1 / 2)), 100)
    controls.note_timeout(rules, flow)
    flow["mode"], flow["una"], flow["is_limited"] = Mode.TIMED_OUT, 61, 1
    for window in (2.0, 3.0, 4.0):
        controls.note_ack(rules, flow, 1, 0, 0, 0)
        assert flow["window"] == window


@pytest.mark.parametrize("value", [0.0, 1e-9, 0.3, 1.0, 8.0, 1e9])
def test_cube_roots(value: float) -> None:
    assert cubic.cube_root(value) == pytest.approx(value ** (1 / 3), rel=1e-9, abs=1e-5)


def test_cubic_follows_its_curve() -> None:
    """A loss at 2,048 packets and a round trip of 100 ms: there again after 11.5 s."""
    network = network_of(
        long_way(port(), 0.05), "cubic", first_window=1_000, most_window=2_048, min_timeout_s=1.0
    )
    number = send(network, 0, 1, 1_000_000)
    network.run(410 * MS)
    flow = network.flows[0]
    assert flow["window"] == 2_048
    trunk = 4
    set_rate(network, 410 * MS, trunk, 0)
    set_rate(network, 410 * MS + 60 * US, trunk, GIGABIT)
    network.run(1_000 * MS)
    assert network.figures().lost > 0
    assert (network.figures().recoveries, network.figures().timeouts) == (1, 0)
    assert flow["peak"] == 2_048
    rise_s = ((2_048 - 0.7 * 2_048) / 0.4) ** (1 / 3)
    assert flow["rise_s"] == pytest.approx(rise_s, rel=1e-6)
    sampled = []
    for at in range(1_000, 12_000, 500):
        assert network.run(at * MS) == []
        seconds = (at * MS - int(flow["epoch"])) / 1e12
        curve = 0.4 * (seconds - rise_s) ** 3 + 2_048
        assert flow["window"] == pytest.approx(curve, rel=0.01), at
        sampled.append(float(flow["window"]))
    assert all(before < after for before, after in pairwise(sampled[:18]))
    assert number == 0


def queue_lengths(network: PacketNetwork, until: int, step: int) -> np.ndarray:
    """Return how many packets wait for host 0, sampled after a while."""
    cables = network.topology.cables
    place = next(k for k, cable in enumerate(cables) if cable.target == 0)
    lengths = []
    for at in range(until // 4, until, step):
        network.run(at)
        queues = network.state.queues[place * QUEUES : (place + 1) * QUEUES]
        lengths.append(queues["bytes"].sum() / FRAME)
    return np.array(lengths)


def test_dctcp_keeps_a_queue_near_its_mark_where_newreno_fills_the_buffer() -> None:
    # Hosts as fast as the port would lock each other out for ever: what one sends comes just when
    # a place is free (phase effects: Floyd and Jacobson, 1992).
    hosts = port(10 * GIGABIT)
    topology = star_with(3, port(limit=250, mark=20), Link(2.5e-5), host=hosts)
    seen = {}
    for control in ("dctcp", "newreno"):
        network = network_of(topology, control, min_timeout_s=0.01)
        for sender in (1, 2):
            send(network, sender, 0, 20_000, at=sender * 333 * US)
        seen[control] = queue_lengths(network, 200 * MS, 50 * US), network.figures()
    lengths, figures = seen["dctcp"]
    assert 10 < lengths.mean() < 30
    assert np.percentile(lengths, 99) < 40
    assert figures.dropped == figures.timeouts == 0
    assert figures.marked > 100
    lengths, figures = seen["newreno"]
    assert figures.dropped > 5
    assert figures.recoveries >= 3
    assert lengths.mean() > 100
    assert lengths.max() > 240


@pytest.mark.parametrize("loss", [0.0005, 0.002, 0.01])
def test_newreno_under_random_loss_obeys_the_square_root(loss: float) -> None:
    """Goodput sqrt(3 / 2p) packets per round trip (Mathis et al., 1997), by a factor of 1.3."""
    packets = 100_000
    network = network_of(
        long_way(port(10 * GIGABIT), 5e-3, loss=loss), min_timeout_s=0.02, most_window=2_048
    )
    finish(network, [send(network, 0, 1, packets)])
    figures = network.figures()
    assert figures.lost > packets * loss
    trips = lasted(network)[0] / network.idle_round_trip(0, 1)
    law = (3 / (2 * loss)) ** 0.5
    assert law / 1.3 < packets / trips < law * 1.3


def test_ranks_of_pfabric_span_four_times_as_much_each() -> None:
    bdp = 12.0
    ranks = [pfabric.queue_of(left, bdp) for left in (1, 12, 13, 48, 49, 12 << 12, 10**9)]
    assert ranks == [0, 0, 1, 1, 2, 6, 7]


def test_pfabric_lets_a_short_message_pass_a_long_one() -> None:
    took = {}
    for control in ("pfabric", "newreno"):
        topology = star_with(3, port(limit=400), Link(1e-5), host=port(10 * GIGABIT))
        network = network_of(topology, control)
        send(network, 1, 0, 3_000)
        number = send(network, 2, 0, 8, at=20 * MS)
        assert finish(network, [number])
        took[control] = lasted(network)[1]
        while (network.records["end"] < 0).any():
            assert network.run(NEVER)
        check_idle(network)
    idle = 8 * FRAME_PS + FRAME_PS // 10 + 20 * US
    assert took["pfabric"] <= idle + 2 * FRAME_PS
    assert took["newreno"] > 5 * idle


def test_pfabric_recovers_from_a_crowded_port_by_its_small_timer_alone() -> None:
    network = network_of(star_with(17, port(limit=24), Link(1e-5)), "pfabric")
    hosts = range(1, 17)
    number = network.start(0, hosts, [0] * 16, [40.0 * FRAME] * 16)
    took = finish(network, [number])[number]
    figures = network.figures()
    assert figures.dropped > 50
    assert figures.timeouts > 16
    assert figures.recoveries == 0
    assert took < 2 * 16 * 40 * FRAME_PS
    check_idle(network)


def test_lossless_keeps_its_window() -> None:
    network = network_of(star_with(5, port()), "lossless", window=30)
    finish(network, [network.start(0, range(1, 5), [0] * 4, [500.0 * FRAME] * 4)])
    figures = network.figures()
    assert figures.dropped == figures.retransmitted == 0
    # Bytes never run out: all of them are through as soon as the port can be.
    assert network.now == 4 * 500 * FRAME_PS + FRAME_PS + 2 * US
