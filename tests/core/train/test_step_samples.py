"""What a worker tells of its steps: nothing is lost of their time, and little is told of many."""

from __future__ import annotations

import math
import time
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from shoal.errors import UsageError
from shoal.membership import View
from shoal.strategies import AllReduce, Ripples
from shoal.trace import SpanKind
from shoal.train.flat_parameters import FlatParameters
from shoal.train.replica import Stopwatch
from shoal.train.step_samples import StepSampler
from shoal.watch import BOUNDS_S, MOST_STEPS, WorkerSample
from shoal.watch.sampling import LONGEST_S
from thoroughness import examples

if TYPE_CHECKING:
    from collections.abc import Sequence

MS = 1_000_000


class Job:
    """A worker's training in a time of its own."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, strategy: Any = None, *, room: bool = True
    ) -> None:
        self.now_ns = 5_000 * MS
        monkeypatch.setattr(time, "monotonic_ns", lambda: self.now_ns)
        monkeypatch.setattr(time, "time", lambda: self.now_ns / 1e9)
        self.stopwatch = Stopwatch(0)
        self.samples: list[WorkerSample] = []
        self.num_offered = 0
        self.room = room
        replica: Any = SimpleNamespace(
            stopwatch=self.stopwatch,
            communicator=SimpleNamespace(stats=lambda: None),
            session="run-1",
            view=View.first(4),
            flat=FlatParameters(nn.Linear(3, 2)),
            seed=1,
            samples=None,
        )
        self.sampler = StepSampler(replica, strategy or AllReduce(), "gloo", self.take)
        self.step = 0

    def take(self, sample: WorkerSample) -> bool:
        self.num_offered += 1
        if self.room:
            self.samples.append(sample)
        return self.room

    def make(self, own_ms: int, wait_ms: int = 0, exchange_ms: int = 0) -> None:
        self.now_ns += own_ms * MS
        for kind, ms in ((SpanKind.WAIT, wait_ms), (SpanKind.EXCHANGE, exchange_ms)):
            begin_ns = self.now_ns
            self.now_ns += ms * MS
            self.stopwatch.add(kind, begin_ns, self.now_ns, (0, 1, 2, 3), "why")
        self.step += 1
        self.sampler.end_step(self.step)


PARTS = st.tuples(st.integers(1, 900), st.integers(0, 300), st.integers(0, 300))


@settings(max_examples=examples(200))
@given(st.lists(PARTS, min_size=2, max_size=120))
def test_all_time_of_all_steps_is_told_once(steps: Sequence[tuple[int, int, int]]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        job = Job(monkeypatch)
        for each in steps:
            job.make(*each)
    told = steps[1 : job.samples[-1].step] if job.samples else []  # the first has no beginning
    assert sum(each.num_steps for each in job.samples) == len(told)
    for place, name in enumerate(("own_s", "wait_s", "exchange_s")):
        total_ms = sum(each[place] for each in told)
        assert sum(getattr(each, name) for each in job.samples) == pytest.approx(total_ms / 1000)
    lengths_s = [sum(each) / 1000 for each in told]
    counts = [sum(each) for each in zip(*(s.counts for s in job.samples), strict=True)]
    bounds = (0.0, *BOUNDS_S, math.inf)
    if told:
        assert counts == [
            sum(low < length <= high for length in lengths_s) for low, high in pairwise(bounds)
        ]
    for sample in job.samples:
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(sample), type=WorkerSample) == sample
        assert len(sample.recent) == min(sample.num_steps, MOST_STEPS)
        last = steps[sample.step - len(sample.recent) : sample.step]
        assert [(t.own_us, t.wait_us, t.exchange_us) for t in sample.recent] == [
            tuple(1000 * part for part in each) for each in last
        ]


@pytest.mark.parametrize("step_ms", [1, 7, 40, 90, 400, 900, 3000])
def test_about_one_sample_comes_in_a_second_or_one_a_step(
    monkeypatch: pytest.MonkeyPatch, step_ms: int
) -> None:
    job = Job(monkeypatch)
    while job.now_ns < 100_000 * MS:
        job.make(step_ms)
    begun = 10  # samples until the interval has grown to about a second
    seconds = 95
    assert len(job.samples) <= seconds / 0.5 + begun
    assert len(job.samples) >= seconds / max(2.0, step_ms / 1000) - 1
    settled = job.samples[begun:-1]
    assert all(s.seconds <= LONGEST_S + step_ms / 1000 for s in settled)


def test_workers_in_lock_step_tell_of_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    for own_ms in (30, 45, 60):
        job = Job(monkeypatch)
        for _ in range(2000):
            job.make(own_ms, 0, 80 - own_ms)
        told.append([each.step for each in job.samples])
    assert told[0] == told[1] == told[2]


def test_steps_that_become_long_are_told_of_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch)
    for _ in range(3000):
        job.make(2)
    before = len(job.samples)
    for _ in range(5):
        job.make(1500)
    assert len(job.samples) - before >= 2


def test_what_finds_no_room_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, room=False)
    for _ in range(20):
        job.make(600)
    assert job.num_offered >= 9
    job.room = True
    for _ in range(4):
        job.make(600)
    assert job.samples[0].dropped == job.num_offered - len(job.samples)


def test_the_loss_is_read_when_it_is_told_and_no_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, Ripples())
    loss = torch.tensor([0.25], requires_grad=True)
    job.make(600)
    job.sampler.tell_loss(9.0)
    job.sampler.tell_loss(loss)
    job.make(600)
    job.make(1500)
    assert [each.loss for each in job.samples] == [0.25, None]
    assert (job.samples[0].strategy, job.samples[0].is_lock_step) == ("ripples", False)
    assert (job.samples[0].group, job.samples[0].reason) == ((0, 1, 2, 3), "why")
    with pytest.raises(UsageError, match="A loss is one number, not a tensor of shape"):
        job.sampler.tell_loss(torch.zeros(2))


def test_whoever_listens_gets_each_sample_also_if_there_is_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = Job(monkeypatch, room=False)
    heard: list[WorkerSample] = []
    job.sampler.listeners.append(heard.append)
    for _ in range(5):
        job.make(600)
    assert len(heard) == job.num_offered == 4


def test_models_are_sketched_where_they_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    for strategy, differ in ((AllReduce(), False), (Ripples(), True)):
        job = Job(monkeypatch, strategy)
        for _ in range(20):
            job.make(600)
        assert {bool(each.sketch) for each in job.samples} == {differ}
