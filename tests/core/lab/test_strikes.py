"""Which worker of a lab gets which signal when, and what is said of events that come to nothing."""

from __future__ import annotations

import signal

import pytest

from shoal.lab.strikes import Strikes
from shoal.scenario.cluster_spec import WorkerEvent


class Fake:
    def __init__(self) -> None:
        self.signals: list[signal.Signals] = []
        self.code: int | None = None

    def signal(self, number: signal.Signals) -> None:
        self.signals.append(number)
        if number == signal.SIGKILL:
            self.code = 137

    def poll(self) -> int | None:
        return self.code


@pytest.fixture
def started() -> list[tuple[int, int | None]]:
    return []


def strikes(started: list[tuple[int, int | None]], *events: WorkerEvent) -> Strikes:
    def start(rank: int, host: int | None) -> Fake:
        started.append((rank, host))
        return Fake()

    return Strikes(events, start)


def test_workers_are_struck_when_it_is_due(started: list[tuple[int, int | None]]) -> None:
    first = [Fake(), Fake(), Fake()]
    latest = dict(enumerate(first))
    made = strikes(
        started,
        WorkerEvent(2.0, "kill", 1),
        WorkerEvent(1.0, "freeze", 0, lasts_s=2.0),
        WorkerEvent(4.0, "join", 1),
        WorkerEvent(5.0, "join", 3, host=2),
        WorkerEvent(6.0, "kill", 1),
    )
    made.happen(0.9, latest)
    assert not any(each.signals for each in first)
    made.happen(1.5, latest)
    assert first[0].signals == [signal.SIGSTOP]
    made.happen(2.0, latest)
    assert first[1].signals == [signal.SIGKILL]
    made.happen(3.6, latest)
    assert first[0].signals == [signal.SIGSTOP, signal.SIGCONT]
    made.happen(6.0, latest)
    assert started == [(1, None), (3, 2)]
    assert latest[1] is not first[1]
    assert made.killed == [first[1], latest[1]]  # the one that came has been killed, too
    made.end()
    assert made.remarks == []


def test_what_comes_to_nothing_is_said(started: list[tuple[int, int | None]]) -> None:
    ended = Fake()
    ended.code = 0
    made = strikes(started, WorkerEvent(1.0, "kill", 0), WorkerEvent(9.0, "kill", 1))
    made.happen(2.0, {0: ended, 1: Fake()})
    made.end()
    assert ended.signals == []
    assert made.killed == []
    assert made.remarks == [
        "kill rank 0 at 1 s: it had ended by itself",
        "kill rank 1 at 9 s: all had ended before",
    ]
