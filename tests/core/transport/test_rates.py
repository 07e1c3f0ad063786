"""Rate control: each member makes progress under any loss, and does what it is for."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from transfers import Transfer
from virtual_link import Datagram, Faults, Port, VirtualLink, joined

from shoal.transport import wire
from shoal.transport.endpoint import TransportConfig
from shoal.transport.rates import ALL_RATE_CONTROLS
from shoal.transport.rates.fixed import BURST_US
from shoal.transport.tables import Counter
from thoroughness import seldom


@pytest.mark.parametrize(
    ("budget", "loss", "rate_control"),
    seldom(
        list(itertools.product([2, 40, 512], [0.0, 0.05, 0.5], ALL_RATE_CONTROLS)),
        often=[
            (2, 0.5, "credit"),
            *itertools.product([2], [0.0], ALL_RATE_CONTROLS),
            (512, 0.5, "credit"),
        ],
    ),
)
def test_every_member_makes_progress(budget: int, loss: float, rate_control: str) -> None:
    config = TransportConfig(
        segment_bytes=64, rate_control=rate_control, budget_packets=budget, rate_bytes_per_us=20.0
    )
    faults = Faults(loss=loss, marks=0.1)
    link, _ = joined(3, config, faults=faults, seed=budget, limit_us=600_000_000)
    transfers = [
        Transfer(link, source, target, np.ones(16 * 100, np.float32))
        for source in range(3)
        for target in range(3)
        if source != target
    ]
    for transfer in transfers:
        transfer.post()
    link.run()
    for transfer in transfers:
        transfer.check_places()


def sending_times(link: VirtualLink) -> list[tuple[int, int]]:
    """Return a list that will hold the time and the size of every data packet."""
    times: list[tuple[int, int]] = []

    def note(datagram: Datagram) -> None:
        if datagram.is_data:
            times.append((datagram.sent_at, len(datagram.payload)))

    link.watch = note
    return times


@pytest.mark.parametrize("rate", [0.5, 10.0, 100.0])
def test_a_fixed_rate_is_never_exceeded_and_reached(rate: float) -> None:
    config = TransportConfig(
        segment_bytes=1024, rate_control="fixed", rate_bytes_per_us=rate, first_budget_packets=512
    )
    link, _ = joined(2, config, faults=Faults(host_delay_us=100), seed=1)
    times = sending_times(link)
    for number in range(2):
        Transfer(link, 0, 1, np.ones(256 * 300, np.float32), iteration=number).post()
    link.run()
    moments = np.array([moment for moment, _ in times])
    carried = np.cumsum([size for _, size in times])
    burst = max(1056, rate * BURST_US)
    for first in range(0, len(times), 7):
        allowed = rate * (moments[first:] - moments[first]) + 2 * burst + 1056
        before = carried[first] - times[first][1]
        assert (carried[first:] - before <= allowed).all()
    assert carried[-1] / (moments[-1] - moments[0]) > 0.9 * rate


def test_dctcp_keeps_the_queue_near_the_marking_threshold() -> None:
    config = TransportConfig(
        segment_bytes=1024, rate_control="dctcp", first_budget_packets=512, delay_target_us=1 << 20
    )
    link, (sender, _) = joined(2, config, port=Port(bytes_per_us=100.0, mark_bytes=20_000))
    queue: list[float] = []
    link.watch = lambda each: queue.append(link._port_free[1] - link.now)
    transfers = [
        Transfer(link, 0, 1, np.ones(256 * 1_000, np.float32), iteration=number)
        for number in range(4)
    ]
    for transfer in transfers:
        transfer.post()
    link.run()
    settled = np.array(queue[len(queue) // 4 :]) * 100
    # 512 packets would be 540 kB
    assert np.median(settled) < 2 * 20_000
    assert sender.state.peers["reported_marked"][1] > 0
    assert link.now < 1.2 * 4_000 * 1_056 / 100


def test_dctcp_without_marks_opens_its_window_until_credit_is_the_limit() -> None:
    config = TransportConfig(segment_bytes=64, rate_control="dctcp", first_budget_packets=512)
    link, (sender, _) = joined(2, config, faults=Faults(delay_us=1_000))
    for number in range(6):
        Transfer(link, 0, 1, np.ones(16 * 1_000, np.float32), iteration=number).post()
    link.run()
    assert sender.state.peers["window"][1] > 512
    assert sender.counts(1)[Counter.SENT] == 6_000


def test_reports_are_asked_for_only_by_those_who_need_them() -> None:
    asked = {}
    for rate_control in ALL_RATE_CONTROLS:
        config = TransportConfig(segment_bytes=64, rate_control=rate_control)
        flags: list[int] = []
        link, (_, receiver) = joined(2, config)
        link.watch = lambda each, flags=flags: flags.append(each.payload[1]) if each.is_data else 0
        Transfer(link, 0, 1, np.ones(16 * 400, np.float32)).post()
        link.run()
        asked[rate_control] = sum(bool(flag & wire.REPORT) for flag in flags)
        assert receiver.counts(0)[Counter.CONTROL_SENT] >= asked[rate_control] / 4
    assert asked["credit"] == asked["fixed"] == 0
    assert asked["timely"] == 400 / 16
    assert asked["dctcp"] > 5


@pytest.mark.long
def test_timely_slows_down_when_the_round_trip_grows_and_speeds_up_when_it_is_short() -> None:
    rates = {}
    for name, bytes_per_us in (("fast", 10_000.0), ("slow", 20.0)):
        config = TransportConfig(
            segment_bytes=1024,
            rate_control="timely",
            rate_bytes_per_us=60.0,
            first_budget_packets=512,
            delay_target_us=2_000,
        )
        link, (sender, _) = joined(2, config, port=Port(bytes_per_us=bytes_per_us))
        for number in range(6):
            Transfer(link, 0, 1, np.ones(256 * 1_000, np.float32), iteration=number).post()
        link.run(lambda link=link: len(link.finished[1]) >= 5)
        rates[name] = float(sender.state.peers["rate"][1])
    assert rates["fast"] > 60
    assert rates["slow"] < 40


def test_timely_spaces_packets_at_its_rate() -> None:
    rate = 20.0  # until the first report comes, after a round trip
    config = TransportConfig(
        segment_bytes=1024,
        rate_control="timely",
        rate_bytes_per_us=rate,
        first_budget_packets=512,
    )
    link, _ = joined(2, config, faults=Faults(delay_us=10_000))
    times = sending_times(link)
    Transfer(link, 0, 1, np.ones(256 * 600, np.float32)).post()
    link.run()
    first = [size for moment, size in times if moment < times[0][0] + 10_000]
    assert 0.9 * rate * 10_000 < sum(first) < 1.1 * rate * 10_000 + rate * BURST_US
