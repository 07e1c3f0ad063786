"""Whatever a network does to packets, every message arrives, once and whole."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tcp_networks import (
    FRAME,
    FRAME_PS,
    GIGABIT,
    LOCAL_RATE,
    MS,
    US,
    check_idle,
    fabric,
    finish,
    lasted,
    long_way,
    network_of,
    port,
    send,
    set_rate,
    star_with,
)

from shoal.errors import UsageError
from shoal.sim.packet.simulation import Flow
from shoal.sim.transports.controls import ALL_CONTROLS
from shoal.sim.transports.transport_settings import Transport
from shoal.switching.settings import Link, set_link
from shoal.switching.tables import NEVER
from thoroughness import examples

if TYPE_CHECKING:
    from shoal.sim.transports.packet_network import PacketNetwork

HOSTS = 6
messages = st.lists(
    st.tuples(
        st.integers(0, HOSTS - 1),
        st.integers(0, HOSTS - 1),
        st.sampled_from([0, 1, 64, 1_499, 1_500, 1_501, 40 * FRAME, 200 * FRAME + 7]),
    ),
    min_size=1,
    max_size=5,
)
transfers = st.lists(st.tuples(st.integers(0, 5 * MS), messages), min_size=1, max_size=4)
networks = st.fixed_dictionaries(
    {
        "control": st.sampled_from(list(ALL_CONTROLS)),
        "limit": st.sampled_from([None, 2, 4, 12]),
        "loss": st.sampled_from([0.0, 0.01, 0.1, 0.3]),
        "jitter_s": st.sampled_from([0.0, 3e-6, 1e-4]),
        "reorder": st.sampled_from([0.0, 0.1]),
        "spray": st.booleans(),
        "shares": st.booleans(),
        "min_timeout_s": st.sampled_from([1e-4, 1e-3, 1e-2]),
        "reordering": st.sampled_from([1, 3, 20]),
        "seed": st.integers(0, 3),
    }
)
FAULTS: Counter[str] = Counter()


def lossy(how: dict[str, Any]) -> PacketNetwork:
    link = Link(
        1e-6,
        loss=how["loss"],
        jitter_s=how["jitter_s"],
        reorder=how["reorder"],
        reorder_delay_s=1e-4,
    )
    topology = fabric(HOSTS, 3, 2, port(limit=how["limit"], mark=4), link)
    return network_of(
        topology,
        how["control"],
        spray=how["spray"],
        shared_buffers=[20 * FRAME] * 5 if how["shares"] else (),
        seed=how["seed"],
        window=20,
        most_window=64,
        min_timeout_s=how["min_timeout_s"],
        max_timeout_s=0.1,
        reordering=how["reordering"],
    )


def run_all(network: PacketNetwork, wanted: Any) -> None:
    numbers = []
    for at, some in wanted:
        sources, targets, sizes = zip(*some, strict=True)
        numbers.append(network.start(at, sources, targets, sizes))
    assert len(set(numbers)) == len(numbers)
    assert set(finish(network, numbers)) == set(numbers)


MARKS = {
    "control": "dctcp",
    "limit": None,
    "loss": 0.0,
    "jitter_s": 0.0,
    "reorder": 0.0,
    "spray": False,
    "shares": False,
    "min_timeout_s": 1e-3,
    "reordering": 3,
    "seed": 0,
}
"""A network whose ports mark what queues there: few drawn ones do."""


@given(how=networks, wanted=transfers)
@example(how=MARKS, wanted=[(0, [(source, 0, 200 * FRAME + 7) for source in range(1, HOSTS)])])
@settings(max_examples=examples(150), deadline=None)
def test_every_message_arrives_once(how: dict[str, Any], wanted: Any) -> None:
    network = lossy(how)
    run_all(network, wanted)
    check_idle(network)
    records = network.records
    sizes = [size for _, some in wanted for _, _, size in some]
    assert (records["size"] >= sizes).all()
    assert (records["size"] < np.maximum(sizes, 1) + 64).all()
    crossing = records["source"] != records["target"]
    assert (records["received"] == records["size"] * crossing).all()
    assert (records["end"] > records["start"]).all()
    figures = network.figures()
    assert (figures.flows, figures.given_up) == (len(sizes), 0)
    for name in ("lost", "dropped", "marked", "timeouts", "recoveries", "duplicates"):
        FAULTS[name] += getattr(figures, name)


def test_the_faults_above_have_happened() -> None:
    """Runs after it, in the same process."""
    if not FAULTS:
        pytest.skip("the test above runs elsewhere")
    for name in ("lost", "dropped", "marked", "timeouts", "recoveries", "duplicates"):
        assert FAULTS[name] > 20, name


@pytest.mark.parametrize("control", list(ALL_CONTROLS))
def test_the_same_seed_is_the_same_run_in_however_many_steps(control: str) -> None:
    def digest(seed: int, step: int | None = None) -> str:
        how = {"control": control, "limit": 6, "loss": 0.02, "jitter_s": 1e-6, "reorder": 0.0}
        how |= {"spray": True, "shares": True, "min_timeout_s": 1e-3, "reordering": 3, "seed": seed}
        network = lossy(how)
        number = network.start(0, range(5), [5, 4, 3, 5, 5], [90 * FRAME] * 5)
        at, over = 0, []
        while step is not None and not over:
            at += step
            over = network.run(at)
        assert over == [number] or step is None
        if step is None:
            finish(network, [number])
        assert network.figures().lost > 0
        return network.digest()

    assert digest(1) == digest(1) == digest(1, 17 * US)
    assert digest(1) != digest(2)


def test_tables_grow_with_what_is_under_way() -> None:
    """64 windows of 1,024 packets need four times the rows that there are at first."""
    fast, slow = port(10 * GIGABIT), port(GIGABIT)
    topology = star_with(65, slow, host=fast)
    network = network_of(topology, "lossless", window=1_024)
    before = len(network.state.packets)
    hosts = range(1, 65)
    finish(network, [network.start(0, hosts, [0] * 64, [2_000 * FRAME] * 64)])
    assert len(network.state.packets) >= 4 * before
    many = network.start(network.now, [0] * 999, [1] * 999, [1] * 999)
    assert len(finish(network, [many])) == 1
    assert len(network.flows) >= 999
    check_idle(network)


def test_sprayed_packets_are_not_taken_for_lost_for_long() -> None:
    """A threshold that learns; one that does not halves the window for nothing, again and again."""
    spread = Link(1e-6, jitter_s=1e-4)
    topology = fabric(4, 2, 2, port(), spread)
    took = {}
    for most in (3, 300):
        network = network_of(topology, spray=True, most_window=64, most_reordering=most)
        finish(network, [send(network, 0, 3, 3_000)])
        took[most] = lasted(network)[0], network.figures()
    assert took[3][1].recoveries > 10
    assert took[300][1].recoveries < took[3][1].recoveries / 2
    assert took[300][0] < took[3][0]
    assert took[300][1].timeouts == 0


def test_within_a_host_messages_follow_each_other() -> None:
    network = network_of(star_with(2, port()))
    sizes = [1e6, 3e6]
    network.start(0, [0, 0], [0, 0], sizes)
    ends = finish(network, [0])
    took = [round(sum(sizes[: k + 1]) * 8e12 / LOCAL_RATE) for k in range(2)]
    assert network.records["end"].tolist() == took
    assert list(ends.values()) == [took[1]]
    assert network.figures().hops == 0
    check_idle(network)


def test_a_link_that_is_down_holds_a_message_up_until_it_recovers() -> None:
    network = network_of(star_with(2, port()), min_timeout_s=1e-3)
    number = send(network, 0, 1, 1_000)
    assert network.run(2 * MS) == []
    set_rate(network, 2 * MS, 1, 0)
    assert network.run(50 * MS) == []
    set_rate(network, 50 * MS, 1, GIGABIT // 10)
    assert finish(network, [number])[number] > 50 * MS
    figures = network.figures()
    assert figures.timeouts > 3
    assert figures.lost > 10
    check_idle(network)


def test_a_sender_gives_up_and_what_comes_later_is_thrown_away() -> None:
    network = network_of(star_with(2, port()), min_timeout_s=1e-3, give_up_s=0.05)
    set_rate(network, 0, 3, 0)  # answers get lost, messages arrive
    set_rate(network, 0, 1, 0)
    send(network, 0, 1, 5)
    assert network.run(NEVER) == []
    assert network.figures().given_up == 1
    assert network.records["end"].tolist() == [-1]
    check_idle(network)
    for cable in (1, 3):
        set_rate(network, network.now, cable, GIGABIT)
    assert len(finish(network, [send(network, 0, 1, 5, network.now)])) == 1


def test_rows_of_flows_are_used_again_while_old_packets_are_under_way() -> None:
    """Copies that come late belong to nobody, though the row has a new flow."""
    slow = Link(1e-6, reorder=0.5, reorder_delay_s=0.01)
    network = network_of(star_with(2, port(), slow), min_timeout_s=1e-3)
    for _ in range(60):
        finish(network, [send(network, 0, 1, 3, network.now)])
    assert network.figures().retransmitted > 10
    assert network.figures().flows == 60
    check_idle(network)


def test_sources_send_beside_transfers() -> None:
    """Two packets of the message come to the queue for each that heeds nothing."""
    udp = Flow(1, 2, FRAME, 1_000, 2 * FRAME_PS, queue=7)
    network = network_of(star_with(3, port()), others=[udp], min_timeout_s=1e-1)
    finish(network, [send(network, 0, 2, 400)])
    assert lasted(network)[0] == pytest.approx(1.5 * 400 * FRAME_PS, rel=0.01)
    network.run(NEVER)
    assert network.others["delivered"].tolist() == [1_000]
    check_idle(network)


def test_settings_of_links_change_in_the_middle() -> None:
    network = network_of(long_way(port(), 1e-5), min_timeout_s=1e-3)
    number = send(network, 0, 1, 500)
    network.change(2 * MS, lambda state: set_link(state, 4, Link(1e-3, loss=0.05)))
    finish(network, [number])
    assert network.figures().lost > 5
    check_idle(network)


def test_refusals_are_sentences() -> None:
    network = network_of(star_with(2, port()))
    network.run(MS)
    with pytest.raises(UsageError, match="a transfer begins now or later"):
        send(network, 0, 1, 1, 0)
    assert len(finish(network, [network.start(MS, [0, 1], [1, 0], [1.0, 1.0])])) == 1
    for options, sentence in (
        ({"control": "vegas"}, "no control 'vegas'; there are newreno"),
        ({"most_window": 100}, "a power of two from 64 on"),
        ({"first_window": 2_000}, "The first window is 1 to 1024 packets"),
        ({"ack_bytes": 40}, "64 bytes or more"),
        ({"queue": 8}, "Queues are 0 to 7"),
        ({"reordering": 0}, "overtaken by 1 or more"),
        ({"min_timeout_s": 100.0}, "the least no more than the largest"),
    ):
        with pytest.raises(UsageError, match=sentence):
            Transport(**options)  # type: ignore[arg-type]
