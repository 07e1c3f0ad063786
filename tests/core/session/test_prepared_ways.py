"""Engines that are prepared for newcomers: which is moved to, and that no other stays open."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from shoal.control import Member
from shoal.errors import DeadlineExceeded, ResourceError, ShoalError
from shoal.membership import Change, Decision, GoingOn, Kind, Preparation, Proposal, Report, View
from shoal.session.ways import Ways

if TYPE_CHECKING:
    import pytest

DEADLINE_S = 10.0
VIEW = View.first(2)


class Engine:
    def __init__(self) -> None:
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()


class Prepared:
    """The ways of rank 0, of which every engine is a fake, and what the control plane hears."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_ready: bool = True) -> None:
        self.member = Member(VIEW, DEADLINE_S, GoingOn())
        self.member.is_ready = is_ready
        training: Any = SimpleNamespace(is_ending=False, has_ended=False, report=lambda: 0)
        training.install = lambda *_: None
        self.member.enter("run-1", training)
        self.engines: dict[int, Engine] = {}
        self.heard: dict[int, ShoalError | None] = {}
        self.has_heard = threading.Condition()
        control: Any = SimpleNamespace(rank=0, prepared=self._hear)
        self.ways = Ways(control, self.member, DEADLINE_S if is_ready else 0.02)
        self.member.prepare = self.ways.prepare
        monkeypatch.setattr(Ways, "_open", lambda _, preparation: self._open(preparation.number))

    def _open(self, number: int) -> Engine:
        if number == 13:
            raise ResourceError("Rank 5 cannot be reached.")
        return self.engines.setdefault(number, Engine())

    def _hear(self, number: int, error: ShoalError | None = None) -> None:
        with self.has_heard:
            self.heard[number] = error
            self.has_heard.notify_all()

    def prepare(self, number: int) -> ShoalError | None:
        """Prepare, and return what is said of that."""
        self.member.prepare_for(Preparation(number, (0, 1, 5), (5,)))
        with self.has_heard:
            assert self.has_heard.wait_for(lambda: number in self.heard, DEADLINE_S)
        return self.heard[number]


def test_what_came_to_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = Prepared(monkeypatch)
    assert prepared.prepare(1) is None
    assert prepared.prepare(2) is None
    assert prepared.engines[1].closed.wait(DEADLINE_S)
    assert prepared.ways.take(2) is prepared.engines[2]
    assert prepared.ways.in_use == 2
    prepared.prepare(3)
    prepared.ways.close()
    assert prepared.engines[3].closed.wait(DEADLINE_S)
    assert not prepared.engines[2].closed.is_set(), "that one is in use"
    prepared.prepare(4)
    assert prepared.engines[4].closed.wait(DEADLINE_S), "nobody will move to it"


def test_what_is_about_to_be_moved_to_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = Prepared(monkeypatch)
    prepared.prepare(1)
    member = prepared.member
    assert member.begin(epoch=0), "so that the next view waits"
    member.propose(Proposal(1, (0, 1, 5), ()))
    joined = Change(Kind.JOINED, 5, "Rank 5 has joined.")
    view = View(1, (0, 1, 5), (0, 0, 0))
    member.decide(Decision(view, (joined,), {0: Report(), 1: Report()}, way=1))
    prepared.prepare(2)
    assert prepared.ways.take(1) is prepared.engines[1]
    assert not prepared.engines[1].closed.is_set()


def test_what_comes_to_nothing_while_it_is_sent_ahead_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepared, has_begun, may_end = Prepared(monkeypatch), threading.Event(), threading.Event()

    def send_ahead(preparation: Preparation, _: object) -> None:
        if preparation.number == 1:
            has_begun.set()
            may_end.wait(DEADLINE_S)
        else:
            raise ResourceError("Rank 5 has ended.")

    prepared.member.send_ahead = send_ahead
    prepared.member.prepare_for(Preparation(1, (0, 1, 5), (5,)))
    assert has_begun.wait(DEADLINE_S)
    assert prepared.prepare(2) is None, "it comes with the rest, then"
    may_end.set()
    assert prepared.engines[1].closed.wait(DEADLINE_S)
    assert 1 not in prepared.heard
    assert not prepared.engines[2].closed.is_set()


def test_why_one_cannot_be_opened_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    error = Prepared(monkeypatch).prepare(13)
    assert isinstance(error, ResourceError)


def test_who_has_not_begun_to_train_does_not_prepare(monkeypatch: pytest.MonkeyPatch) -> None:
    error = Prepared(monkeypatch, is_ready=False).prepare(1)
    assert isinstance(error, DeadlineExceeded)
