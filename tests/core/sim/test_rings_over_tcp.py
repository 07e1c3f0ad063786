"""A ring over TCP goes in rounds that wait for each other, on connections that stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tcp_networks import (
    ACK_PS,
    FRAME,
    FRAME_PS,
    GIGABIT,
    LOCAL_RATE,
    MS,
    US,
    check_idle,
    finish,
    long_way,
    network_of,
    port,
    set_rate,
    star_with,
)

from shoal.switching.settings import Link
from thoroughness import examples

if TYPE_CHECKING:
    from shoal.sim.transports.packet_network import PacketNetwork


def sum_once(network: PacketNetwork, hosts: list[int], packets: float, at: int = 0) -> int:
    """Return how long a ring takes whose pieces are so many full packets."""
    number = network.ring(at, hosts, len(hosts) * packets * FRAME)
    return finish(network, [number])[number] - at


@pytest.mark.parametrize("members", [2, 3, 8])
@pytest.mark.parametrize("packets", [1, 6])
def test_a_round_takes_a_piece_and_its_way(members: int, packets: int) -> None:
    """Nobody sends on what has not come whole: a piece and a switch's delay, 2(S-1) times."""
    network = network_of(star_with(members, port()), "lossless", window=64)
    took = sum_once(network, list(range(members)), packets)
    each = (packets + 1) * FRAME_PS + 2 * US
    rounds = 2 * (members - 1)
    assert rounds * each <= took < rounds * (each + 2 * packets * ACK_PS)
    assert network.records["packets"].tolist() == [rounds * packets] * members
    check_idle(network)


def test_a_slow_link_holds_up_every_round() -> None:
    network = network_of(star_with(4, port()), "lossless", window=64)
    for cable in (0, 1):
        set_rate(network, 0, cable, GIGABIT // 10)
    took = sum_once(network, [0, 1, 2, 3], 10)
    assert took > 6 * 10 * 10 * FRAME_PS


def test_a_timeout_of_one_hop_stalls_them_all() -> None:
    """Its first piece is lost, and too few follow to tell of it: its timer is 200 ms."""
    network = network_of(star_with(3, port()), tail_probes=False)
    number = network.ring(0, [0, 1, 2], 3.0 * FRAME)
    set_rate(network, 0, 0, 0)
    set_rate(network, 20 * US, 0, GIGABIT)
    took = finish(network, [number])[number]
    assert network.figures().timeouts == 1
    assert took > 200 * MS
    assert network.records["end"].min() > 200 * MS  # nobody is done while others wait


def test_rounds_within_a_host_move_at_the_local_rate() -> None:
    network = network_of(star_with(2, port()), "lossless", window=64)
    took = sum_once(network, [0, 0, 1, 1], 10)
    piece, hop = 10 * FRAME * 8_000_000_000_000 // (8 * LOCAL_RATE), 11 * FRAME_PS + 2 * US
    assert took > 3 * piece + 3 * hop
    assert took < 6 * (piece + hop) + 100 * US
    check_idle(network)


def test_a_window_goes_on_where_the_last_ring_has_left_it() -> None:
    network = network_of(long_way(port(), 0.005), most_window=1_024)
    first = sum_once(network, [0, 1], 200)
    grown = float(network._ends.connections["window"][0])
    assert grown > 100
    second = sum_once(network, [0, 1], 200, at=network.now)
    trip = network.idle_round_trip(0, 1)
    assert second < first - 2 * trip


def test_a_window_that_has_paused_begins_anew() -> None:
    network = network_of(long_way(port(), 0.005), most_window=1_024)
    sum_once(network, [0, 1], 200)
    threshold = float(network._ends.connections["threshold"][0])
    later = network.now + 10_000 * MS
    number = network.ring(later, [0, 1], 400.0 * FRAME)
    network.run(later + US)
    flow = network.flows[network.flows["mode"] > 1][0]
    assert flow["window"] == 10
    assert flow["threshold"] >= threshold
    finish(network, [number])


def test_two_rings_at_once_have_connections_of_their_own() -> None:
    network = network_of(star_with(3, port()))
    numbers = [network.ring(0, [0, 1, 2], 90.0 * FRAME) for _ in range(2)]
    assert network._ends.connections["is_busy"].sum() == 3
    finish(network, numbers)
    check_idle(network)
    assert network._ends.connections["is_busy"].sum() == 0


@given(
    hosts=st.lists(st.integers(0, 4), min_size=2, max_size=7),
    size=st.floats(1.0, 400_000.0),
    loss=st.sampled_from([0.0, 0.02, 0.2]),
    limit=st.sampled_from([None, 4]),
    control=st.sampled_from(["newreno", "cubic", "dctcp", "lossless", "pfabric"]),
    spray=st.booleans(),
)
@settings(max_examples=examples(60), deadline=None)
def test_every_byte_comes_once_whatever_happens(
    hosts: list[int], size: float, loss: float, limit: int | None, control: str, spray: bool
) -> None:
    topology = star_with(5, port(limit=limit), Link(1e-6, loss=loss))
    network = network_of(topology, control, spray=spray, min_timeout_s=1e-3, max_timeout_s=0.02)
    finish(network, [network.ring(0, hosts, size), network.ring(5 * US, hosts[::-1], size)])
    check_idle(network)
    records = network.records
    crosses = records["source"] != records["target"]
    assert np.all(records["received"] == records["size"] * crosses)
    assert (records["packets"] % (2 * (len(hosts) - 1)) == 0).all()
