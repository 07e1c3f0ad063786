"""Profiles and averages against exact arithmetic, links against their probabilities."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_port import OnePort

from shoal.switching.drop_profile import AVERAGE_ONE, decayed, is_too_long
from shoal.switching.link import mean_loss
from shoal.switching.settings import Link, Port, Profile, Queue, fixed, set_link
from shoal.switching.tables import COLORS, ONE, QUEUES, Count, new_state
from thoroughness import examples, seldom

GIGABIT = 1_000_000_000
FULL = 1_500
SLOT = 12_000_000


@given(
    least=st.integers(0, 1 << 24),
    span=st.integers(1, 1 << 24),
    depth=st.integers(-(1 << 24), 1 << 25),
    probability=st.integers(0, 256).map(lambda part: part / 256),
    random=st.integers(0, ONE - 1),
)
def test_the_probability_rises_in_proportion(
    least: int, span: int, depth: int, probability: float, random: int
) -> None:
    profile = new_state(ports=1, seed=0).profiles[0]
    profile["least"], profile["most"] = least, least + span
    profile["probability"] = fixed(probability)
    waiting = max(0, least + depth)
    share = Fraction(waiting - least, span)
    expected = share >= 1 or (share >= 0 and random < int(Fraction(probability) * share * ONE))
    assert is_too_long(profile, waiting, random) == expected


@given(st.integers(0, 1 << 46), st.integers(1, 15), st.integers(0, 100_000))
def test_an_average_decays_as_if_packets_had_found_nothing(
    average: int, weight: int, steps: int
) -> None:
    exact = average * (1 - 2.0**-weight) ** steps
    assert decayed(average, weight, steps) == pytest.approx(exact, rel=1e-4, abs=average * 1e-8 + 2)


def test_an_average_follows_the_queue_slowly() -> None:
    weight, rounds = 4, 200
    queue = Queue(average_weight=weight)
    line = OnePort(Port(GIGABIT, (queue,) * QUEUES))
    expected = 0.0
    for found in range(rounds):
        line.send(1, FULL)
        line.run(1)
        waiting = max(0, found - 1) * FULL  # one is on the link
        expected += (waiting - expected) / 2**weight
        average = line.state.queues[0]["average"] / AVERAGE_ONE
        assert average == pytest.approx(expected, abs=rounds / AVERAGE_ONE + 1)


def test_a_slope_marks_the_share_it_says() -> None:
    """A queue held at 10 packets between 5 and 15 of a slope to 0.4 marks 0.2 of what comes."""
    slope = Profile(5 * FULL, 15 * FULL, 0.4)
    line = OnePort(Port(GIGABIT, (Queue(capable=slope),) * QUEUES))
    for _ in range(12):  # one on the link, and one that leaves before the next arrives
        line.send(0, FULL)
    packets = examples(20_000)
    for turn in range(packets):
        line.send((turn + 1) * SLOT, FULL, ecn=1)
    line.run()
    sigma = (packets * 0.2 * 0.8) ** 0.5
    assert abs(line.count(Count.MARKED) - packets * 0.2) < 4 * sigma


@pytest.mark.parametrize(
    "link",
    seldom(
        [Link(loss=0.01), Link(to_bad=0.002, to_good=0.05, bad_loss=0.5), Link(loss=0.001)],
        often=[Link(loss=0.01), Link(to_bad=0.002, to_good=0.05, bad_loss=0.5)],
    ),
)
def test_links_lose_the_share_they_say(link: Link) -> None:
    line, packets = OnePort(Port(100 * GIGABIT), link), examples(60_000, share=10)
    for turn in range(packets):
        line.send(turn * SLOT, FULL)
    came = {each.number for each in line.run()}
    lost = line.count(Count.LOST)
    assert lost == packets - len(came)
    expected = mean_loss(line.state.links[0]) * packets
    # Bursts: the variance is that of independent losses times about 2 / (to_good).
    burst = 2 / link.to_good if link.to_good else 1
    assert abs(lost - expected) < 4 * (expected * burst) ** 0.5
    if link.to_good:
        gone = np.array([k not in came for k in range(packets)])
        again = gone[1:][gone[:-1]].mean()
        assert 0.35 < again < 0.6  # in the bad state still, and lost again: 0.95 times 0.5


def test_a_burst_that_a_change_ends_leaves_no_link_in_its_bad_state() -> None:
    line = OnePort(Port(100 * GIGABIT), Link(to_bad=1.0, to_good=0.0, bad_loss=1.0))
    line.send(0, FULL)
    assert not line.run()
    set_link(line.state, 0, Link(loss=0.5))
    for turn in range(1, 1_001):
        line.send(turn * SLOT, FULL)
    assert 400 < len(line.run()) < 600


def test_jitter_lets_nothing_overtake_and_reordering_does() -> None:
    delay, jitter = 1e-3, 5e-4
    line = OnePort(Port(GIGABIT), Link(delay_s=delay, jitter_s=jitter))
    for gap in (SLOT, 100 * SLOT):
        sent, at = {}, int(line.state.network[0]["now"])
        for _ in range(2_000):
            at += gap
            sent[int(line.state.network[0]["next_number"])] = at + SLOT
            line.send(at, FULL)
        delivered = line.run()[-2_000:]
        assert [each.number for each in delivered] == list(sent)
        late = np.array([each.at - sent[each.number] for each in delivered]) / 1e12
        assert late.min() >= delay
        assert late.max() <= delay + jitter
    assert late.max() - late.min() > 0.9 * jitter
    line = OnePort(Port(GIGABIT), Link(delay_s=delay, reorder=0.1, reorder_delay_s=5e-5))
    for turn in range(2_000):
        line.send(turn * SLOT, FULL)
    order = [each.number for each in line.run()]
    assert sorted(order) == list(range(2_000))
    overtaken = sum(a > b for a, b in itertools.pairwise(order))
    assert 100 < overtaken < 300


def test_a_link_that_is_down_loses_everything_and_counts_it() -> None:
    line = OnePort(Port(GIGABIT), Link(down=True))
    for turn in range(5):
        line.send(turn * SLOT, FULL)
    assert line.run() == []
    assert line.count(Count.LOST) == 5
    assert mean_loss(line.state.links[0]) == 1.0


def test_the_same_seed_gives_the_same_run_and_another_another() -> None:
    def run(seed: int) -> list[tuple[int, int]]:
        line = OnePort(Port(GIGABIT), Link(loss=0.1, jitter_s=1e-4, reorder=0.1), seed=seed)
        for turn in range(500):
            line.send(turn * SLOT, FULL)
        return [(each.number, each.at) for each in line.run()]

    assert run(3) == run(3)
    assert run(3) != run(4)


def test_profiles_of_both_colors_have_their_rows() -> None:
    state = new_state(ports=2, seed=0)
    assert len(state.profiles) == 2 * QUEUES * COLORS
