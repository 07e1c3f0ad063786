"""What is sent waits in this host only as long as it must to keep the link busy."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_shaped_ports import ShapedLink
from transfers import Transfer
from virtual_link import joined

from shoal.transport.endpoint import Endpoint, TransportConfig
from shoal.transport.own_queue import (
    AFTER_A_PAUSE,
    AT_ONCE_US,
    FAST_BYTES,
    FAST_US,
    LEAST_BYTES,
    MOST_BYTES,
    PACKET_BYTES,
    TARGET_US,
    hold_nothing,
    longest_wait,
    may_send,
    note_pause,
    packets_at_once,
    wait_ahead,
)
from shoal.transport.tables import NEVER


@dataclass
class Host:
    """Hands over whatever it may, to a link that drains `rate` bytes per microsecond.

    It looks up to `late_us` later than it wants to, and earlier when a packet arrives, which one
    does within any `arrivals_us`. What the link has not carried it saves, up to `saves` bytes, and
    carries at once later.
    """

    rate: float
    late_us: int = 0
    arrivals_us: int = 0
    saves: float = 0.0
    saved: float = 0.0
    now: int = 0
    waiting: float = 0.0
    idle_us: float = 0.0
    fullest: float = 0.0
    core: np.void = field(default_factory=lambda: Endpoint(0, 2, TransportConfig()).state.core[0])
    random: random.Random = field(default_factory=lambda: random.Random(1))

    def run(self, duration_us: int) -> None:
        self.idle_us = self.fullest = 0.0
        end = self.now + duration_us
        while self.now < end:
            self.core["waiting"] = int(self.waiting)
            while may_send(self.core, self.now):
                self.waiting += PACKET_BYTES * packets_at_once(self.core)
                self.core["waiting"] = int(self.waiting)
            self.fullest = max(self.fullest, self.waiting)
            looks_at = int(self.core["look_at"]) + self.random.randint(0, self.late_us)
            if self.arrivals_us > 0:
                looks_at = min(looks_at, self.now + self.random.randint(1, self.arrivals_us))
            self._pass(looks_at)

    def _pass(self, until: int) -> None:
        assert self.now < until < NEVER
        drained = (until - self.now) * self.rate + self.saved
        self.saved = min(max(0.0, drained - self.waiting), self.saves)
        self.idle_us += max(0.0, drained - self.waiting - self.saved) / self.rate
        self.waiting = max(0.0, self.waiting - drained)
        self.now = until

    def rest(self, duration_us: int) -> None:
        """Have nothing to send for a while."""
        hold_nothing(self.core)
        self._pass(self.now + round(2 * self.waiting / self.rate) + 1)
        self.core["waiting"] = int(self.waiting)
        note_pause(self.core, self.now)
        self._pass(self.now + duration_us)


@given(rate=st.floats(0.5, 800.0))
def test_a_full_queue_lasts_for_the_target_and_the_link_is_never_idle(rate: float) -> None:
    host = Host(rate)
    host.run(500_000)
    host.run(100_000)
    longest = max(LEAST_BYTES, min(TARGET_US * rate, max(FAST_BYTES, FAST_US * rate)))
    assert host.fullest <= 1.2 * longest + packets_at_once(host.core) * PACKET_BYTES
    assert host.idle_us < 1_000


@pytest.mark.parametrize("rate", [2.5, 12.5, 125.0])
def test_a_host_that_looks_late_gets_a_longer_queue(rate: float) -> None:
    host = Host(rate, late_us=6_000)
    host.run(1_000_000)
    host.run(1_000_000)
    assert host.idle_us < 0.05 * 1_000_000


def test_a_host_does_not_look_again_before_a_packet_can_have_gone() -> None:
    """A packet is there as a whole until all of it has gone: looks in between see nothing new."""
    core = Endpoint(0, 2, TransportConfig(segment_bytes=9_000)).state.core[0]
    core["own_rate"], core["waiting"] = 1.0, 1_000_000
    assert not may_send(core, 10)
    core["waiting"] = core["own_limit"] / 2 + 1  # all but a packet of what had to go
    assert not may_send(core, int(core["look_at"]))
    looked_at = int(core["look_at"])
    assert not may_send(core, looked_at)
    assert core["look_at"] - looked_at >= 9_000


def test_a_link_that_becomes_slower_or_faster_is_followed() -> None:
    host = Host(125.0)
    for rate in (125.0, 12.5, 1_250.0, 125.0):
        host.rate = rate
        host.run(200_000)
        host.run(100_000)
        assert host.fullest <= min(1.3 * TARGET_US * rate, MOST_BYTES) + 44 * PACKET_BYTES
        assert host.idle_us < 2_000


@pytest.mark.parametrize("arrivals_us", [0, 200, 3_000])
@pytest.mark.parametrize("saves", [10, 40])
def test_what_a_shaper_has_saved_up_is_not_taken_for_its_rate(saves: int, arrivals_us: int) -> None:
    host = Host(2.5, saves=saves * PACKET_BYTES, arrivals_us=arrivals_us)
    for _ in range(10):
        host.run(100_000)
        assert host.fullest <= (48 + saves) * PACKET_BYTES
        host.rest(30_000)


@pytest.mark.parametrize("rate", [6.25, 12.5, 125.0])
def test_after_a_pause_little_waits_until_a_full_queue_would_be_through(rate: float) -> None:
    host = Host(rate)
    host.run(500_000)
    full, lasts = float(host.core["own_limit"]), round(longest_wait(host.core))
    host.rest(10_000)
    host.run(lasts // 2)
    assert host.fullest <= AFTER_A_PAUSE * full + packets_at_once(host.core) * PACKET_BYTES
    assert host.idle_us < 0.1 * lasts
    host.run(2 * lasts)
    assert host.fullest > 0.9 * full


@given(rate=st.floats(3.0, 800.0))
def test_how_long_packets_will_wait_is_told_once_it_is_known(rate: float) -> None:
    host = Host(rate)
    host.core["waiting"] = FAST_BYTES
    assert wait_ahead(host.core) == 0
    host.run(500_000)
    host.core["waiting"] = FAST_BYTES
    assert wait_ahead(host.core) == pytest.approx(FAST_BYTES / rate, rel=0.1, abs=2)


def test_where_nothing_ever_waits_batches_are_as_large_as_may_be() -> None:
    core = Endpoint(0, 2, TransportConfig(largest_batch=44)).state.core[0]
    assert all(may_send(core, now) for now in range(1_000))
    assert packets_at_once(core) == 44


@pytest.mark.parametrize("packets", [0.3, 1.0, 2.6, 20.5, 100.0])
def test_what_is_handed_over_together_is_what_the_link_carries_in_a_moment(packets: float) -> None:
    host = Host(packets * PACKET_BYTES / AT_ONCE_US)
    host.run(500_000)
    assert host.core["own_rate_known"]
    assert packets_at_once(host.core) == pytest.approx(min(max(1, packets), 44), rel=0.1, abs=1)


@pytest.mark.parametrize("sees_own_port", [False, True])
def test_what_is_urgent_passes_what_has_not_been_handed_over(*, sees_own_port: bool) -> None:
    """When three large messages have been under way for a while, a small one is posted."""
    plain, endpoints = joined(4, TransportConfig(first_budget_packets=400))
    link = ShapedLink(endpoints, plain.faults, seed=1, rate=2.5, sees_own_port=sees_own_port)
    for target in (1, 2, 3):
        Transfer(link, 0, target, np.ones(100_000, np.float32), layer_class=7).post()
    link.pass_time(60_000)
    Transfer(link, 0, 1, np.ones(1_000, np.float32), iteration=2, layer_class=0).post()
    begin = link.now
    link.run(lambda: any(ticket for ticket in link.finished[1]))
    took = link.now - begin
    alone = 4_000 / 2.5
    if sees_own_port:
        assert took < alone + 3 * TARGET_US + 8_000
    else:
        assert took > 60_000
