"""Packets through several switches: ties, routes, spraying, conservation, running full."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_port import check_conservation, take_delivered
from slow_network import SlowNetwork

from shoal.switching import network
from shoal.switching.settings import Link, Port, Profile, Queue, set_link, set_port
from shoal.switching.tables import PICOSECONDS, QUEUES, Count, State, new_state
from thoroughness import examples, seldom

GIGABIT = 1_000_000_000
HOSTS_A_LEAF = 2
LEAVES = 2
SPINES = 2


def leaf_spine(
    port: Port, link: Link, *, seed: int = 1, spray: bool = False, packets: int = 512
) -> State:
    """Return two leaves of two hosts, two spines: ports of hosts, then of leaves, then of spines.

    Host h is at leaf h // 2. Leaf l's ports: to hosts 2l and 2l + 1, to spines 0 and 1.
    """
    hosts = LEAVES * HOSTS_A_LEAF
    per_leaf = HOSTS_A_LEAF + SPINES
    ports = hosts + LEAVES * per_leaf + SPINES * LEAVES
    state = new_state(
        ports=ports, nodes=LEAVES + SPINES, hosts=hosts, packets=packets, seed=seed
    )._replace(choices=np.arange(ports, dtype=np.int32))
    state.network[0]["spray"] = spray
    for number in range(ports):
        set_port(state, number, port)
        set_link(state, number, link)
    leads_to = state.links["leads_to"]
    for host in range(hosts):
        leads_to[host] = host // HOSTS_A_LEAF
    for leaf in range(LEAVES):
        first = hosts + leaf * per_leaf
        for k in range(HOSTS_A_LEAF):
            leads_to[first + k] = -1 - (leaf * HOSTS_A_LEAF + k)
        for spine in range(SPINES):
            leads_to[first + HOSTS_A_LEAF + spine] = LEAVES + spine
        for host in range(hosts):
            here = host // HOSTS_A_LEAF == leaf
            state.routes[leaf, host] = (
                (first + host % HOSTS_A_LEAF, 1) if here else (first + HOSTS_A_LEAF, SPINES)
            )
    for spine in range(SPINES):
        first = hosts + LEAVES * per_leaf + spine * LEAVES
        for leaf in range(LEAVES):
            leads_to[first + leaf] = leaf
        for host in range(hosts):
            state.routes[LEAVES + spine, host] = first + host // HOSTS_A_LEAF, 1
    return state


def send(
    state: State, source: int, destination: int, at: int, size: int, flow: int, **how: int
) -> bool:
    """Let a packet leave host `source`; return False if the network has no room for it."""
    row = network.take_row(state)
    if row < 0:
        return False
    queue, ecn = how.get("queue", 0), how.get("ecn", 0)
    network.inject(state, row, source, at, size, destination, np.uint64(flow), queue, ecn)
    return True


def finish(state: State) -> list[tuple[int, int]]:
    """Return (number, time) of everything that still arrives."""
    came = []
    while state.network[0]["events"]:
        at = network.next_event(state)
        network.advance(state, at)
        for row in take_delivered(state):
            came.append((int(state.packets[row]["number"]), at))
            network.free_row(state, row)
        check_conservation(state)
    return came


some_traffic = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.integers(0, 3),
        st.sampled_from([0, 0, 0, 1_000, 12_000_000, 30_000_000]),
        st.sampled_from([64, 1_500]),
        st.integers(0, 5),
        st.integers(0, QUEUES - 1),
        st.integers(0, 3),
    ).filter(lambda each: each[0] != each[1]),
    max_size=50,
)


@given(traffic=some_traffic, spray=st.booleans(), delay=st.sampled_from([0.0, 1e-6, 3.3e-6]))
@settings(max_examples=examples(200))
def test_every_packet_comes_when_the_description_says(
    traffic: list[tuple[int, ...]], spray: bool, delay: float
) -> None:
    """Many packets at exactly the same times, so every rule about ties is met."""
    queue = Queue(limit_packets=3, plain=Profile(3_000, 3_000), capable=Profile(1_500, 1_500))
    port = Port(GIGABIT, (queue,) * QUEUES, limit_packets=6)
    state = leaf_spine(port, Link(delay_s=delay), spray=spray)
    slow = SlowNetwork(leaf_spine(port, Link(delay_s=delay), spray=spray), port)
    at = 0
    for source, destination, gap, size, flow, queue_of, ecn in traffic:
        at += gap
        assert send(state, source, destination, at, size, flow, queue=queue_of, ecn=ecn)
        slow.send(source, destination, at, size, flow, queue_of, ecn)
    assert finish(state) == slow.run()


def test_flows_keep_their_path_and_spraying_evens_the_spines() -> None:
    for spray in (False, True):
        state = leaf_spine(Port(100 * GIGABIT), Link(), spray=spray)
        for turn in range(400):
            assert send(state, 0, 2, turn * 1_000_000, 1_500, flow=7)
            assert send(state, 1, 3, turn * 1_000_000, 1_500, flow=8)
            if turn % 100 == 99:
                finish(state)
        finish(state)
        uplinks = state.counts[6:8, ..., Count.SENT].sum(axis=(1, 2)).tolist()
        assert sum(uplinks) == 800
        if spray:
            assert abs(uplinks[0] - 400) < 4 * 200**0.5
        else:
            assert all(each in (0, 400, 800) for each in uplinks)


def test_a_full_network_refuses_and_recovers() -> None:
    state = leaf_spine(Port(GIGABIT), Link(), packets=4)
    assert [send(state, 0, 2, 0, 1_500, 0) for _ in range(6)] == [True] * 4 + [False] * 2
    assert len(finish(state)) == 4
    assert [send(state, 0, 2, PICOSECONDS, 1_500, 0) for _ in range(4)] == [True] * 4
    assert len(finish(state)) == 4


def test_a_destination_without_a_route_is_counted_as_lost() -> None:
    state = leaf_spine(Port(GIGABIT), Link())
    state.routes[0, 3] = 0, 0
    assert send(state, 0, 3, 0, 1_500, 0)
    assert finish(state) == []
    assert state.counts[0, 0, 0, Count.LOST] == 1
    check_conservation(state)


@pytest.mark.parametrize("seed", seldom(range(3), often=range(2)))
def test_nothing_is_lost_uncounted_under_random_load(seed: int) -> None:
    random = np.random.default_rng(seed)
    queue = Queue(
        limit_bytes=20_000, plain=Profile(5_000, 15_000, 0.5), capable=Profile(9_000, 9_000)
    )
    state = leaf_spine(
        Port(GIGABIT, (queue,) * QUEUES, limit_bytes=60_000),
        Link(delay_s=1e-5, jitter_s=1e-5, loss=0.01, reorder=0.05, reorder_delay_s=1e-4),
        seed=seed,
        spray=bool(seed % 2),
        packets=4096,
    )
    at, sent = 0, 0
    for _ in range(examples(3_000)):
        at += int(random.exponential(3_000_000))
        source, destination = random.choice(4, 2, replace=False).tolist()
        sent += send(
            state,
            source,
            destination,
            at,
            int(random.integers(64, 1_500)),
            int(random.integers(9)),
            queue=int(random.integers(QUEUES)),
            ecn=int(random.integers(3)),
        )
    came = finish(state)
    assert state.network[0]["injected"] == sent
    assert state.network[0]["in_network"] == 0
    assert 0 < len(came) < sent
    assert len({number for number, _ in came}) == len(came)
