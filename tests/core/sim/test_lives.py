"""Workers that stand still and end: what they run takes so much longer, or never ends."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from shoal.sim.flow.flow_network import FlowNetwork
from shoal.sim.network import YieldingNetwork
from shoal.sim.training.lives import Lives
from shoal.sim.virtual_time import Signal, VirtualTime
from shoal.switching.settings import Link, Port
from shoal.switching.topology import Materials, host_names, star
from thoroughness import examples

if TYPE_CHECKING:
    from shoal.sim.virtual_time import Process

RATE = 8_000_000_000
BYTE_PS = 1_000


@pytest.fixture
def time() -> VirtualTime:
    port = Port(RATE)
    network = FlowNetwork(star(host_names(3), Materials(port, port, Link())), local_rate=RATE)
    return VirtualTime(network)


def standing(time: VirtualTime, lives: Lives, rank: int, stops: list[tuple[int, int]]) -> Process:
    for begin, end in stops:
        yield begin - time.now
        lives.stop(rank)
        yield end - time.now
        lives.go_on(rank)


def draw_stops(draw: random.Random) -> list[tuple[int, int]]:
    moments = sorted(draw.sample(range(1, 400), 2 * draw.randrange(4)))
    return list(zip(moments[::2], moments[1::2], strict=True))


def computed(lasts: list[int], stops: list[tuple[int, int]]) -> list[int]:
    """Return when each of a worker's pieces is over: counted picosecond by picosecond."""
    now, ends = 0, []
    for piece in lasts:
        left = piece
        while left:
            left -= not any(begin <= now < end for begin, end in stops)
            now += 1
        while any(begin <= now < end for begin, end in stops):  # whatever is next waits
            now += 1
        ends.append(now)
    return ends


def test_what_a_worker_computes_takes_as_much_longer_as_it_stands_still(
    time: VirtualTime,
) -> None:
    for seed in range(examples(400)):
        draw = random.Random(seed)
        time = VirtualTime(time.network)
        lives, stops = Lives(time), draw_stops(draw)
        lasts, ends = [draw.randrange(1, 80) for _ in range(5)], []

        def work(
            lasts: list[int] = lasts, ends: list[int] = ends, time: VirtualTime = time
        ) -> Process:
            for piece in lasts:
                yield piece
                ends.append(time.now)

        time.begin(standing(time, lives, 0, stops))
        lives.begin(0, work())
        time.run()
        assert ends == computed(lasts, stops)


def test_what_some_do_together_is_held_up_by_each_and_by_all_at_once_only_once(
    time: VirtualTime,
) -> None:
    for seed in range(examples(400)):
        draw = random.Random(seed)
        time = VirtualTime(time.network)
        lives, stops = Lives(time), {rank: draw_stops(draw) for rank in range(3)}
        length, ended = draw.randrange(1, 300), []

        def exchange(
            length: int = length,
            ended: list[int] = ended,
            time: VirtualTime = time,
            lives: Lives = lives,
        ) -> Process:
            yield length
            yield from lives.held_up((0, 1), 0)
            ended.append(time.now)

        for rank, each in stops.items():
            time.begin(standing(time, lives, rank, each))
        time.begin(exchange())
        time.run()
        assert ended == computed([length], stops[0] + stops[1])


def test_an_end_ends_all_that_a_worker_runs_and_what_it_shares_never_ends(
    time: VirtualTime,
) -> None:
    lives, heard, never = Lives(time), [], Signal()

    def say(what: str, after: int) -> Process:
        yield after
        heard.append(what)

    def wait() -> Process:
        yield never
        heard.append("given")

    def shared() -> Process:
        yield 10
        yield from lives.held_up((0, 1), 0)
        heard.append("shared")

    lives.begin(0, say("early", 5))
    lives.begin(0, say("late", 50))
    lives.begin(0, wait())
    lives.begin(1, say("other", 50))
    time.begin(shared())

    def end() -> Process:
        yield 8
        lives.end(0)
        time.give(never)

    time.begin(end())
    time.run()
    assert heard == ["early", "other"]
    assert lives.gone == {0}


def test_what_nobody_waits_for_any_more_takes_no_room(time: VirtualTime) -> None:
    """Two flows share a link until one of them is given up; the other has it from then on."""
    assert isinstance(time.network, YieldingNetwork)
    ended: list[int] = []

    def send(source: int, size: int) -> Process:
        yield time.transfer([source], [2], [size])
        ended.append(time.now)

    first, second = send(0, 1_000), send(1, 1_000)

    def give_up() -> Process:
        yield 400 * BYTE_PS
        time.end(first)

    for process in (first, second, give_up()):
        time.begin(process)
    time.run()
    # 200 bytes of each in 400 bytes' time, then 800 by themselves
    assert ended == [1_200 * BYTE_PS]
    network = time.network
    assert isinstance(network, FlowNetwork)
    network.check_conservation()
    assert network.flows_ended == 2
    assert sum(network.carried()) == pytest.approx(2 * 1_200)


def test_what_has_not_begun_can_be_given_up(time: VirtualTime) -> None:
    ports = Materials(Port(RATE), Port(RATE), Link(delay_s=1e-6))
    network = FlowNetwork(star(host_names(2), ports), local_rate=RATE)
    number = network.start(0, [0], [1], [1e9])
    network.give_up(500_000, number)
    assert network.run(10**9) == [number]
    assert network.now == 2_000_000  # when its first bit would have been there
    network.check_conservation()
