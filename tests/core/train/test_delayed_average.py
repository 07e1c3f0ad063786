"""What an average has changed is added to the model, whatever the worker has learned meanwhile."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from thoroughness import seldom

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import shoal  # noqa: E402
from shoal.errors import DeadlineExceeded, UsageError  # noqa: E402
from shoal.trace import SpanKind  # noqa: E402
from shoal.train.delayed_average import DelayedAverage  # noqa: E402
from shoal.train.flat_parameters import FlatParameters  # noqa: E402
from shoal.train.replica import Stopwatch  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from shoal.trace import Sample, Span

WAIT_S = 10.0


@dataclass
class Sink:
    """Keeps spans."""

    spans: list[Span] = field(default_factory=list)
    wants_samples = False

    def record(self, span: Span) -> None:
        self.spans.append(span)

    def sample(self, sample: Sample) -> None:
        raise NotImplementedError


class Quiet:
    """A communicator that has nothing to say."""

    def check(self) -> None:
        pass


class Worker:
    """A model of ones and its delayed average: what a `Replica` is for it."""

    def __init__(self, wire: str | None = None) -> None:
        self.wire = wire
        self.model: nn.Module = nn.Linear(3, 2)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.fill_(1.0)
        self.flat = FlatParameters(self.model)
        self.sink = Sink()
        self.stopwatch = Stopwatch(0, self.sink)
        self.communicator = Quiet()
        replica: Any = self
        self.delayed = DelayedAverage(replica)

    def learn(self, amount: float) -> None:
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(amount)

    @property
    def values(self) -> set[float]:
        return {float(value) for p in self.model.parameters() for value in p.detach().reshape(-1)}


class Others:
    """The average with them is 10, when they let it be known."""

    def __init__(self) -> None:
        self.is_there = threading.Event()
        self.seen: set[float] = set()

    def __call__(self, flats: Sequence[Tensor], stopwatch: Stopwatch, _wire: str | None) -> None:
        with stopwatch.span(SpanKind.EXCHANGE):
            assert self.is_there.wait(WAIT_S)
        for flat in flats:
            self.seen |= {float(value) for value in flat}
            flat.fill_(10.0)


def test_what_was_learned_meanwhile_stays() -> None:
    worker, others = Worker(), Others()
    worker.delayed.begin(others)
    worker.learn(0.5)
    others.is_there.set()
    worker.delayed.take_in(wait=True)
    assert others.seen == {1.0}
    assert worker.values == {10.5}
    worker.delayed.take_in(wait=True)  # once
    assert worker.values == {10.5}


def test_without_waiting_it_is_taken_in_when_it_is_there() -> None:
    worker, others = Worker(), Others()
    worker.delayed.begin(others)
    worker.delayed.take_in(wait=False)
    assert worker.values == {1.0}
    assert worker.sink.spans == []
    others.is_there.set()
    while worker.values == {1.0}:
        worker.delayed.take_in(wait=False)
    assert worker.values == {10.0}


def test_only_what_the_worker_waited_for_is_its_time() -> None:
    worker, others = Worker(), Others()
    worker.delayed.begin(others)
    timer = threading.Timer(0.05, others.is_there.set)
    timer.start()
    worker.delayed.take_in(wait=True)
    timer.join()
    assert [span.kind for span in worker.sink.spans] == [SpanKind.EXCHANGE]
    assert worker.sink.spans[0].duration_ns > 10_000_000


def test_a_failure_is_raised_where_the_worker_trains() -> None:
    def fails(*_arguments: Any) -> None:
        raise DeadlineExceeded("nobody came")

    worker = Worker()
    worker.delayed.begin(fails)
    with pytest.raises(DeadlineExceeded, match="nobody came"):
        worker.delayed.take_in(wait=True)
    assert worker.values == {1.0}


def test_a_model_that_was_loaded_meanwhile_is_left_alone() -> None:
    worker, others = Worker(), Others()
    worker.delayed.begin(others)
    loaded = {
        name: torch.full_like(value, 3.0) for name, value in worker.model.state_dict().items()
    }
    worker.model.load_state_dict(loaded)
    others.is_there.set()
    worker.delayed.take_in(wait=True)
    assert worker.values == {3.0}
    worker.delayed.begin(others)
    worker.delayed.close()
    assert worker.values == {10.0}


class Meeting:
    """Averages what all workers have sent, as a transport with a narrow wire would."""

    def __init__(self, wire: str) -> None:
        self.wire = wire
        self.sent: list[Tensor] = []

    def hear(self, flats: Sequence[Tensor], _stopwatch: Stopwatch, wire: str | None) -> None:
        assert wire == self.wire
        (flat,) = flats
        assert torch.equal(flat, flat.to(getattr(torch, self.wire)).float()), "it can be sent"
        self.sent.append(flat)

    def end(self) -> None:
        mean = torch.stack(self.sent).mean(0).to(getattr(torch, self.wire)).float()
        for flat in self.sent:
            flat.copy_(mean)
        self.sent.clear()


def average_once(workers: list[Worker], wire: str) -> None:
    meeting = Meeting(wire)
    for worker in workers:
        worker.delayed.begin(meeting.hear)
    while len(meeting.sent) < len(workers):
        pass
    meeting.end()
    for worker in workers:
        worker.delayed.take_in(wait=True)


@pytest.mark.parametrize("wire", ["float16", "bfloat16"])
def test_rounding_moves_the_mean_of_all_models_by_one_rounding_of_it_at_most(wire: str) -> None:
    workers = [Worker(wire) for _ in range(4)]
    torch.manual_seed(3)
    for worker in workers:
        (flat,) = worker.flat.buffers
        flat.copy_(torch.randn_like(flat))
    before = torch.stack([worker.flat.buffers[0].double() for worker in workers])
    average_once(workers, wire)
    after = torch.stack([worker.flat.buffers[0].double() for worker in workers])
    step = torch.finfo(getattr(torch, wire)).eps * before.mean(0).abs()
    assert ((after.mean(0) - before.mean(0)).abs() <= step / 2 + 1e-7).all()
    largest = before.abs().max(0).values
    assert (after.std(0) <= torch.finfo(getattr(torch, wire)).eps * largest).all(), "all met"


@pytest.mark.parametrize("wire", seldom(["float16", "bfloat16"], often=["bfloat16"]))
def test_digits_that_cannot_be_sent_stay(wire: str) -> None:
    workers = [Worker(wire) for _ in range(2)]
    for _ in range(50):
        for worker in workers:
            worker.learn(2**-14)  # less than a step of either type beside 1
        average_once(workers, wire)
    assert all(worker.values == {1 + 50 * 2**-14} for worker in workers)


def test_what_is_too_large_for_the_wire_stays_a_number() -> None:
    workers = [Worker("float16") for _ in range(2)]
    workers[0].learn(1e6)
    workers[1].learn(1e7)
    average_once(workers, "float16")
    assert [worker.values for worker in workers] == [{1e6 + 1}, {1e7 + 1}]


@pytest.mark.parametrize(
    "strategy", [shoal.DSSync, shoal.LocalSGD, shoal.Ripples, shoal.RipplesRandom]
)
def test_another_word_is_refused(strategy: Any) -> None:
    with pytest.raises(UsageError, match="none, next-forward, layers, next-steps"):
        strategy(overlap="backward")
    assert strategy(overlap="next-steps").options()["overlap"] == "next-steps"
