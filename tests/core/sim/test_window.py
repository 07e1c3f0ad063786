"""The window kernel against the heap kernel and the plain description: the same to the bit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from engines import Heap, Window, check_same
from flows import GIGABIT, MICROSECOND, SLOT, star_of
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_network import SlowNetwork

from shoal.sim.packet.window_tables import new_window
from shoal.switching.settings import Link, Port, Profile, Queue, set_link
from shoal.switching.tables import QUEUES, Count
from shoal.switching.topology import (
    Materials,
    Topology,
    dumbbell,
    fat_tree,
    host_names,
    leaf_spine,
    make_state,
    star,
)
from thoroughness import examples, seldom

BOTH = (Heap, Window)


@pytest.mark.parametrize("hosts", seldom([64, 2_048, 16_384], often=[64, 2_048]))
def test_the_ring_spans_a_large_packets_way_however_many_ports_there_are(hosts: int) -> None:
    """What it does not span is walked past again and again: twice the time of a hop."""
    port = Port(10 * GIGABIT)
    materials = Materials(port, port, Link(1e-6))
    state = make_state(star(host_names(hosts), materials), seed=1, packets=1 << 10)
    window = new_window(state)
    way = MICROSECOND + 9_000 * 8 * 100
    assert len(window.heads) << int(window.clock[0]["shift"]) >= way
    assert int(window.clock[0]["lookahead"]) >> int(window.clock[0]["shift"]) >= 4


some_profile = st.none() | st.builds(
    lambda least, more, chance: Profile(least, least + more, chance),
    st.integers(0, 5_000),
    st.integers(0, 9_000),
    st.sampled_from([0.1, 0.5, 1.0]),
)
some_queue = st.builds(
    Queue,
    limit_bytes=st.none() | st.integers(1_500, 20_000),
    limit_packets=st.none() | st.integers(1, 8),
    share=st.sampled_from([0.001, 0.125, 0.5, 1.0, 8.0]),
    average_weight=st.sampled_from([0, 0, 1, 4]),
    plain=some_profile,
    capable=some_profile,
)
some_port = st.builds(
    Port,
    rate=st.sampled_from([GIGABIT, GIGABIT, 1_300_000_001, 10 * GIGABIT]),
    queues=st.lists(some_queue, min_size=QUEUES, max_size=QUEUES).map(tuple),
    limit_bytes=st.none() | st.integers(3_000, 30_000),
    limit_packets=st.none() | st.integers(1, 30),
)
a_chance = st.sampled_from([0.0, 0.0, 0.1, 0.5])
some_link = st.builds(
    Link,
    delay_s=st.sampled_from([1e-9, 1e-6, 1e-6, 3.3e-6, 1e-3]),
    jitter_s=st.sampled_from([0.0, 0.0, 1e-6, 2e-5]),
    reorder=a_chance,
    reorder_delay_s=st.sampled_from([0.0, 1e-5, 5e-3]),
    loss=a_chance,
    bad_loss=a_chance,
    to_bad=a_chance,
    to_good=a_chance,
    down=st.sampled_from([False] * 19 + [True]),
)
some_materials = st.builds(Materials, some_port, some_port, some_link, some_port, some_link)


def some_shape(materials: Materials) -> st.SearchStrategy[Topology]:
    return st.sampled_from(
        [
            star(host_names(3), materials),
            dumbbell(host_names(4), materials),
            leaf_spine(host_names(4), 2, 2, materials),
            leaf_spine(host_names(6), 3, 2, materials),
        ]
    )


@dataclass(frozen=True)
class Send:
    """A packet `gap` picoseconds after the one before."""

    source: int
    destination: int
    gap: int
    size: int
    flow: int
    queue: int
    ecn: int
    pause: int
    """0: put in together with the next; 1: time passes up to it; 2: to half of the way."""


some_traffic = st.lists(
    st.builds(
        Send,
        source=st.integers(0, 2),
        destination=st.integers(0, 2),
        gap=st.sampled_from([0, 0, 0, 1, 1_000, MICROSECOND, SLOT, 3 * SLOT, 80 * SLOT]),
        size=st.sampled_from([64, 64, 1_500, 9_000]),
        flow=st.integers(0, 5),
        queue=st.integers(0, QUEUES - 1),
        ecn=st.integers(0, 3),
        pause=st.integers(0, 2),
    ),
    max_size=70,
)


def play(engine: Heap, traffic: list[Send], change_at: int, link: Link) -> None:
    """Send everything, time passing now and then; one link is changed in between."""
    at = now = 0
    for index, send in enumerate(traffic):
        at += send.gap
        if send.pause:
            now = max(now, at if send.pause == 1 else (now + at) // 2)
            engine.advance(now)
        if index == change_at:
            set_link(engine.state, len(engine.state.links) - 1, link)
        assert engine.send(
            send.source, send.destination, at, send.size, send.flow, send.queue, send.ecn
        )


@given(
    shape=some_materials.flatmap(some_shape),
    traffic=some_traffic,
    spray=st.booleans(),
    buffer=st.sampled_from([0, 0, 8_000, 30_000, 100_000]),
    seed=st.integers(0, 5),
    down=st.booleans(),
)
@settings(max_examples=examples(400, share=10))
def test_windows_and_heap_agree_to_the_bit(
    shape: Topology, traffic: list[Send], spray: bool, buffer: int, seed: int, down: bool
) -> None:
    """Every feature at random, times that coincide, and the states between as well."""
    buffers = [buffer] * len(shape.switches) if buffer else []
    engines = [engine(shape, seed=seed, spray=spray, shared_buffers=buffers) for engine in BOTH]
    link = Link(delay_s=1e-3, down=down)
    for engine in engines:
        play(engine, traffic, len(traffic) // 2, link)
    for until in (0, 10 * SLOT, 10 * SLOT, 2_000 * SLOT):
        now = sum(send.gap for send in traffic) + until
        for engine in engines:
            engine.advance(now)
        check_same(*engines)
    for engine in engines:
        engine.finish()
    check_same(*engines)
    assert engines[0].state.network[0]["in_network"] == 0


@given(
    traffic=some_traffic,
    spray=st.booleans(),
    delay=st.sampled_from([0.0, 1e-6, 3.3e-6]),
)
@settings(max_examples=examples(100))
def test_every_packet_comes_when_the_description_says(
    traffic: list[Send], spray: bool, delay: float
) -> None:
    """Links without delay as well: the smallest packet's time on them is a window."""
    queue = Queue(limit_packets=3, plain=Profile(3_000, 3_000), capable=Profile(1_500, 1_500))
    port = Port(GIGABIT, (queue,) * QUEUES, limit_packets=6)
    shape = leaf_spine(host_names(4), 2, 2, Materials(port, port, Link(delay_s=delay)))
    engine = Window(shape, seed=1, spray=spray)
    slow = SlowNetwork(Heap(shape, seed=1, spray=spray).state, port)
    at = 0
    for send in traffic:
        at += send.gap
        packet = at, send.size, send.flow, send.queue, send.ecn
        assert engine.send(send.source, send.destination, *packet)
        slow.send(engine.access[send.source], send.destination, *packet)
    engine.finish()
    assert [each[:2] for each in engine.came] == slow.run()


@pytest.mark.parametrize("senders", [3, 40])
def test_very_many_packets_at_the_same_time_are_in_order(senders: int) -> None:
    """More than are sorted by insertion, at one place and at many."""
    engines = [engine(star_of(senders), seed=1, packets=4096) for engine in BOTH]
    for engine in engines:
        for k in range(1_000):
            assert engine.send(k * 7 % senders, k % senders, 0, 64 + k % 3, k)
        engine.finish()
    check_same(*engines)


@pytest.mark.parametrize("seed", seldom(range(4), often=[0, 3]))
def test_a_shared_buffer_is_as_full_as_other_ports_have_left_it(seed: int) -> None:
    """Many arrivals find it nearly full, while other ports that nobody looks at are sending."""
    random = np.random.default_rng(seed)
    queue = Queue(share=[0.25, 0.5, 1.0, 8.0][seed])
    port = Port(GIGABIT, (queue,) * QUEUES)
    shape = star(host_names(8), Materials(Port(10 * GIGABIT), port, Link(1e-6)))
    engines = [engine(shape, seed=1, packets=4096, shared_buffers=[15_000]) for engine in BOTH]
    at = 0
    for _ in range(3_000):
        at += int(random.exponential(0.8 * MICROSECOND))
        source, destination = random.choice(8, 2, replace=False).tolist()
        size, queue_of = int(random.integers(64, 1_500)), int(random.integers(QUEUES))
        for engine in engines:
            assert engine.send(source, destination, at, size, queue=queue_of)
    for engine in engines:
        engine.finish()
    check_same(*engines)
    assert engines[0].state.counts[..., Count.DROPPED_SHARED].sum() > 100


def test_what_is_far_ahead_waits_and_comes_in_time() -> None:
    """Minutes beyond what the ring of buckets spans, before and after what is near."""
    slow = Materials(
        Port(GIGABIT), Port(GIGABIT), Link(delay_s=1e-8, reorder=0.5, reorder_delay_s=9)
    )
    engines = [engine(star(host_names(3), slow), seed=3) for engine in BOTH]
    for engine in engines:
        for k in range(100):
            assert engine.send(k % 3, (k + 1) % 3, (100 - k) ** 6 * 100, 1_500)
        engine.finish()
    check_same(*engines)


def test_a_wider_window_changes_nothing() -> None:
    shape = fat_tree(host_names(16), 4, Materials(Port(GIGABIT), Port(GIGABIT), Link(1e-6)))
    engines = [Window(shape, seed=1, spray=True, least_size=least) for least in (64, 1_500)]
    for engine in engines:
        for k in range(300):
            assert engine.send(k * 5 % 16, k % 16, k * MICROSECOND, 1_500, k)
        engine.finish()
    check_same(*engines)
