"""Hosts that answer the moment something arrives, as transports will, in both kernels."""

from __future__ import annotations

import numpy as np
import pytest
from engines import Heap, Window, check_same
from flows import GIGABIT, MICROSECOND

from shoal.sim.packet import window
from shoal.sim.packet.calendar import push
from shoal.sim.packet.window_tables import TIMER
from shoal.switching import network
from shoal.switching.settings import Link, Port, Profile, Queue
from shoal.switching.tables import NEVER, QUEUES
from shoal.switching.topology import Materials, host_names, leaf_spine

HOSTS, ANSWERS = 6, 40
RISING = Queue(plain=Profile(1_000, 4_000, 0.2))
PORT = Port(GIGABIT, (RISING,) * QUEUES)
SHAPE = leaf_spine(host_names(HOSTS), 3, 2, Materials(PORT, PORT, Link(1e-6, jitter_s=3e-7)))


def answer(engine: Heap, row: int, at: int) -> None:
    """Let the host at which a packet has arrived send one to whom its flow names, at once."""
    packet = engine.state.packets[row]
    here, key, number = int(packet["destination"]), int(packet["flow"]), int(packet["number"])
    engine.came.append((number, at, int(packet["ecn"])))
    network.free_row(engine.state, row)
    if number < HOSTS * ANSWERS:
        assert engine.send(here, (here + key) % HOSTS, at, 64 + number % 1_400, key % 5 + 1)


@pytest.mark.parametrize("seed", range(5))
def test_answers_leave_when_what_they_answer_arrives(seed: int) -> None:
    heap = Heap(SHAPE, seed=seed, spray=True)
    windows = Window(SHAPE, seed=seed, spray=True, least_size=64)
    for engine in (heap, windows):
        for host in range(HOSTS):
            for k in range(3):
                assert engine.send(host, (host + k + 1) % HOSTS, host // 2, 64 << k, k + 1)
    while (at := network.next_event(heap.state)) < NEVER:
        network.advance(heap.state, at)
        rows = heap.state.delivered[: heap.state.network[0]["waiting"]].tolist()
        heap.state.network[0]["waiting"] = 0
        for row in rows:
            answer(heap, row, at)
    while (row := window.next_due(windows.state, windows.window, NEVER)) != window.NOBODY:
        answer(windows, row, int(windows.state.packets[row]["at"]))
    assert len(heap.came) > HOSTS * ANSWERS // 2
    check_same(heap, windows)


def test_timers_come_in_time_between_packets() -> None:
    """Also if set while another is reacted to, for the same moment or one before all others."""
    engine = Window(SHAPE, seed=1)
    state, calendar = engine.state, engine.window
    timers = [network.take_row(state) for _ in range(4)]
    for index, row in enumerate(timers):
        state.packets[row]["size"], state.packets[row]["number"] = 0, TIMER + index
    assert engine.send(0, 1, 5 * MICROSECOND, 1_000)
    arrival = 5 * MICROSECOND + 2 * 8 * MICROSECOND + 2 * MICROSECOND
    push(state, calendar, timers[3], 7, 0)
    push(state, calendar, timers[0], arrival, len(state.ports) + HOSTS)
    seen = []
    while (row := window.next_due(state, calendar, NEVER)) != window.NOBODY:
        seen.append((int(state.packets[row]["at"]), row))
        if row == timers[3]:
            push(state, calendar, timers[2], 7, 0)
            push(state, calendar, timers[1], 8, 0)
    assert [row for _, row in seen[:3]] == [timers[3], timers[2], timers[1]]
    assert [at for at, _ in seen[:3]] == [7, 7, 8]
    assert len(seen) == 5
    assert seen[3][0] <= seen[4][0]
    assert np.diff([at for at, _ in seen]).min() >= 0
