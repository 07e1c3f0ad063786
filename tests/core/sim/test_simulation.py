"""Whole runs: flows against the heap kernel, one seed and one hash, refusals in a sentence."""

from __future__ import annotations

import pytest
from engines import Heap
from flows import FULL, GIGABIT, MICROSECOND, SLOT, star_of
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.sim.packet.simulation import Flow, Simulation
from shoal.switching.settings import Link, Port, Profile, Queue, set_link
from shoal.switching.tables import QUEUES, Count, State
from shoal.switching.topology import Materials, Topology, host_names, leaf_spine
from thoroughness import examples

some_flows = st.lists(
    st.builds(
        Flow,
        source=st.integers(0, 5),
        destination=st.integers(0, 5),
        size=st.sampled_from([64, 1_500]),
        packets=st.integers(0, 12),
        interval_ps=st.sampled_from([1, 700, MICROSECOND, SLOT, 30 * SLOT]),
        start_ps=st.sampled_from([0, 0, 700, SLOT]),
        queue=st.integers(0, QUEUES - 1),
        ecn=st.integers(0, 3),
        key=st.integers(0, 9),
    ),
    max_size=12,
)


def lossy_fabric() -> Topology:
    queue = Queue(plain=Profile(3_000, 9_000, 0.5), capable=Profile(1_500, 9_000, 0.5))
    port = Port(GIGABIT, (queue,) * QUEUES)
    link = Link(1e-6, jitter_s=1e-6, loss=0.02)
    return leaf_spine(host_names(6), 3, 2, Materials(port, port, link))


@given(flows=some_flows, spray=st.booleans())
@settings(max_examples=examples(100))
def test_flows_are_packets_put_in_one_by_one(flows: list[Flow], spray: bool) -> None:
    how = {"seed": 4, "spray": spray, "shared_buffers": [20_000] * 5}
    simulation = Simulation(lossy_fabric(), flows, **how)  # type: ignore[arg-type]
    heap = Heap(lossy_fabric(), **how)
    sends = [
        (flow.start_ps + k * flow.interval_ps, heap.access[flow.source], index)
        for index, flow in enumerate(flows)
        for k in range(flow.packets)
    ]
    for at, _, index in sorted(sends):
        flow = flows[index]
        heap.advance(at - 1)
        packet = at, flow.size, flow.key, flow.queue, flow.ecn
        assert heap.send(flow.source, flow.destination, *packet)
    heap.finish()
    simulation.finish()
    assert (simulation.counts == heap.state.counts).all()
    assert simulation.flows["delivered"].sum() == len(heap.came)
    assert simulation.flows["last_at"].max(initial=0) == max(
        (at for _, at, _ in heap.came), default=0
    )
    assert simulation.state.network[0]["draws"] == heap.state.network[0]["draws"]


def digest_of(seed: int, steps: int = 1) -> str:
    flows = [Flow(k, 5 - k, FULL, 200, SLOT, start_ps=k * 1_000, ecn=k % 2) for k in range(6)]
    simulation = Simulation(lossy_fabric(), flows, seed=seed, spray=True)
    for step in range(steps):
        simulation.advance(200 * SLOT * step // steps)
    simulation.finish()
    assert simulation.counts[..., Count.LOST].sum() > 0
    return simulation.digest()


def test_the_same_seed_is_the_same_run_in_however_many_steps() -> None:
    assert digest_of(1) == digest_of(1) == digest_of(1, steps=37)
    assert digest_of(1) != digest_of(2)


def test_packets_put_in_by_hand_come_out_beside_flows() -> None:
    simulation = Simulation(star_of(3), [Flow(0, 1, FULL, 3, SLOT)])
    number = simulation.inject(0, 2, size=FULL, at_ps=SLOT, queue=3, ecn=1, key=8)
    simulation.advance(10 * SLOT)
    (arrival,) = simulation.delivered()
    assert (arrival.number, arrival.destination, arrival.flow) == (number, 2, 8)
    assert (arrival.size, arrival.queue, arrival.ecn) == (FULL, 3, 1)
    assert arrival.at_ps == 3 * SLOT + 2 * MICROSECOND  # older than the flow's of that time
    assert simulation.delivered() == []
    assert simulation.flows["delivered"].tolist() == [3]


def test_settings_change_between_two_moments() -> None:
    simulation = Simulation(star_of(2), [Flow(0, 1, FULL, 10, 2 * SLOT)])
    simulation.advance(9 * SLOT)
    simulation.change(lambda state: set_link(state, 0, Link(down=True, delay_s=1.0)))
    simulation.finish()
    assert simulation.flows["delivered"].tolist() == [5]
    assert simulation.counts[0, ..., Count.LOST].sum() == 5


@pytest.mark.parametrize("delay_s", [1e-9, 1e-5, 1.0])
def test_links_may_become_much_faster_and_slower(delay_s: float) -> None:
    """With packets waiting, under way, far ahead and due at this very moment."""
    flows = [Flow(k, 5 - k, FULL, 20, SLOT // 2, start_ps=k, key=k) for k in range(6)]
    simulation, heap = (
        Simulation(lossy_fabric(), flows, spray=True),
        Heap(lossy_fabric(), seed=1, spray=True),
    )
    for at, k in sorted((k + n * SLOT // 2, k) for k in range(6) for n in range(20)):
        heap.send(k, 5 - k, at, FULL, k)

    def change(state: State) -> None:
        for port in range(0, len(state.ports), 3):
            set_link(state, port, Link(delay_s))

    for engine in (simulation, heap):
        engine.advance(5 * SLOT)
    simulation.change(change)
    change(heap.state)
    for engine in (simulation, heap):
        engine.finish()
    assert (simulation.counts == heap.state.counts).all()
    assert simulation.flows["delivered"].sum() == len(heap.came)
    assert simulation.flows["last_at"].max() == max(at for _, at, _ in heap.came)


def test_refusals_are_sentences() -> None:
    small = Simulation(star_of(2), packets=2, least_size=100)
    for _ in range(2):
        small.inject(0, 1, size=FULL, at_ps=0)
    with pytest.raises(UsageError, match="More than 2 packets are in the network at once"):
        small.inject(0, 1, size=FULL, at_ps=0)
    small.finish()
    assert len(small.delivered()) == 2
    with pytest.raises(UsageError, match="No packet may be smaller than 100 bytes"):
        small.inject(0, 1, size=99, at_ps=1 << 50)
    with pytest.raises(UsageError, match="a packet leaves now or later"):
        small.inject(0, 1, size=FULL, at_ps=0)
    for k in range(3):  # a refusal takes no room
        small.inject(0, 1, size=FULL, at_ps=(1 << 50) + (k << 40))
        small.finish()
        small.delivered()
    with pytest.raises(UsageError, match="Hosts are 0 to 1, not 0 and 2"):
        small.inject(0, 2, size=FULL, at_ps=1 << 60)
    with pytest.raises(UsageError, match="Queues are 0 to 7"):
        small.inject(0, 1, size=FULL, at_ps=1 << 60, queue=8)
    with pytest.raises(UsageError, match="at least 1 ps between them"):
        Simulation(star_of(2), [Flow(0, 1, FULL, 1, 0)])
    with pytest.raises(UsageError, match="No packet may be smaller than 64"):
        Simulation(star_of(2), [Flow(0, 1, 10, 1, 1)])


def test_a_run_that_outgrows_its_room_stops() -> None:
    flows = [Flow(0, 1, FULL, 100, 1)]
    with pytest.raises(UsageError, match="More than 16 packets are in the network at once"):
        Simulation(star_of(2), flows, packets=16).finish()
