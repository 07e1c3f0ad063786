"""How long layers take in benchmarks: computing counts, and waiting for an exchange does not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from shoal_bench.cluster import pace
from shoal_bench.cluster.pace import Pace, layers_of

MS = 0.001


class Clock:
    """A time that passes only where somebody sleeps, or says that something takes time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.slept = 100.0, 0.0
        monkeypatch.setattr(
            pace, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep)
        )

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


def test_a_step_takes_its_time_a_third_of_it_forward(clock: Clock) -> None:
    net, passed = model(), []
    Pace(net, 2 * MS, passed.append)
    began = clock.now
    loss = net(torch.ones(1, 4)).sum()
    assert clock.now - began == pytest.approx(3 * 2 * MS)
    assert passed == [0, 1, 2]
    loss.backward()
    assert clock.now - began == pytest.approx(3 * 6 * MS)


def test_computing_counts_and_waiting_before_a_layer_does_not(clock: Clock) -> None:
    net = model()

    def takes(seconds: float) -> None:
        clock.now += seconds

    first, *_ = layers_of(net)
    first.register_forward_pre_hook(lambda *_: takes(7 * MS))  # as who waits for an exchange
    first.register_forward_hook(lambda *_: takes(1.5 * MS))  # as computing
    Pace(net, 2 * MS)
    began = clock.now
    net(torch.ones(1, 4))
    assert clock.now - began == pytest.approx((7 + 3 * 2) * MS)
    assert clock.slept == pytest.approx((3 * 2 - 1.5) * MS)


def test_what_takes_longer_than_its_time_is_not_made_up_for(clock: Clock) -> None:
    net = model()
    _, second, _ = layers_of(net)
    second.register_forward_hook(lambda *_: setattr(clock, "now", clock.now + 5 * MS))
    Pace(net, 2 * MS)
    began = clock.now
    net(torch.ones(1, 4))
    assert clock.now - began == pytest.approx((2 + 5 + 2) * MS)
