"""Receives from any source against an oracle: sequences of sends and receives, in memory."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.carriers.any_source import AnySource, Wanted
from shoal.errors import UsageError, WorkerLost

SIZE, ME, TAG = 4, 1, 7
OTHERS = [k for k in range(SIZE) if k != ME]


class Arrival:
    """What the transport calls a transfer, as far as `AnySource` knows it."""

    def __init__(self, place: torch.Tensor) -> None:
        self.place, self.callbacks, self.done = place, [], False
        self.error: Exception | None = None

    def tell(self, callback: Any) -> None:
        if self.done:
            callback(self.error)
        else:
            self.callbacks.append(callback)

    def finish(self, error: Exception | None = None) -> None:
        self.done, self.error = True, error
        for callback in self.callbacks:
            callback(error)


class MemoryGroup:
    """A group whose members' messages wait in queues until a receive is posted for each."""

    def __init__(self) -> None:
        self.size, self.me = SIZE, ME
        self.posted: dict[int, deque[Arrival]] = {k: deque() for k in OTHERS}
        self.sent: dict[int, deque[int]] = {k: deque() for k in OTHERS}

    def receive(self, memory: Any, peer: int, *, tag: int, patient: bool = False) -> Arrival:
        arrival = Arrival(memory.owner)
        self.posted[peer].append(arrival)
        self.move(peer)
        return arrival

    def send(self, peer: int, value: int) -> None:
        self.sent[peer].append(value)
        self.move(peer)

    def move(self, peer: int) -> None:
        while self.posted[peer] and self.sent[peer]:
            arrival = self.posted[peer].popleft()
            arrival.place.fill_(self.sent[peer].popleft())
            arrival.finish()


actions = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from(OTHERS)),
        st.tuples(st.just("any"), st.just(0)),
        st.tuples(st.just("from"), st.sampled_from(OTHERS)),
    ),
    max_size=30,
)


@given(actions)
def test_every_message_is_delivered_once_and_in_the_order_of_its_sender(sequence: Any) -> None:
    group = MemoryGroup()
    source = AnySource(group)  # type: ignore[arg-type]
    heard: dict[int, list[int]] = {k: [] for k in OTHERS}
    counts = dict.fromkeys(OTHERS, 0)
    anyone = finished = refused = 0

    def note(member: int, place: torch.Tensor | None, error: Exception | None) -> None:
        nonlocal finished
        assert error is None
        assert place is not None
        finished += 1
        heard[member].append(int(place[0]))

    for action, member in sequence:
        if action == "send":
            group.send(member, counts[member])
            counts[member] += 1
        elif action == "any":
            anyone += 1
            source.receive(Wanted(2, note), TAG)
        elif counts[member] > len(heard[member]):  # else it would wait
            try:
                standing = source.claim(member, 2, TAG)
            except UsageError:
                refused += 1
                assert finished < anyone
                continue
            place = standing.place if standing else torch.empty(2, dtype=torch.uint8)
            arrival: Any
            arrival = (
                standing.transfer
                if standing
                else group.receive(SimpleNamespace(owner=place), member, tag=TAG)
            )
            assert arrival.done
            heard[member].append(int(place[0]))
    for values in heard.values():
        assert values == list(range(len(values)))
    if anyone > finished:  # somebody waits: nothing that has been sent may lie about
        assert all(len(heard[k]) == counts[k] for k in OTHERS)


def test_whoever_waits_hears_of_the_last_loss_only() -> None:
    group = MemoryGroup()
    source = AnySource(group)  # type: ignore[arg-type]
    told: list[Any] = []
    source.receive(Wanted(1, lambda *what: told.append(what)), TAG)
    error = WorkerLost("gone", 0)
    for member in OTHERS[:-1]:
        group.posted[member][0].finish(error)
    assert told == []
    group.posted[OTHERS[-1]][0].finish(error)
    assert told == [(-1, None, error)]
    source.receive(Wanted(1, lambda *what: told.append(what)), TAG)
    assert len(told) == 2


def test_who_gives_up_is_told_once_and_takes_nothing() -> None:
    group = MemoryGroup()
    source = AnySource(group)  # type: ignore[arg-type]
    told: list[Any] = []
    wanted = Wanted(1, lambda *what: told.append(what))
    source.receive(wanted, TAG)
    late = TimeoutError()
    source.give_up(wanted, TAG, late)
    source.give_up(wanted, TAG, late)
    assert told == [(-1, None, late)]
    group.send(2, 9)
    standing = source.claim(2, 1, TAG)
    assert standing is not None
    assert standing.place.tolist() == [9]
    with pytest.raises(UsageError, match="one of 3 bytes needs another tag"):
        source.receive(wanted.__class__(3, wanted.deliver), TAG)


def test_once_its_senders_have_left_a_conversation_leaves_nothing_open() -> None:
    group = MemoryGroup()
    source = AnySource(group)  # type: ignore[arg-type]
    told: list[Any] = []
    senders = [0, 3]
    for leaving in (3, 0):
        wanted = Wanted(2, lambda *what: told.append(what[0]), tuple(senders))
        source.receive(wanted, TAG)
        group.send(leaving, 5)
        senders.remove(leaving)
    assert told == [3, 0]
    assert not any(group.posted.values())
    source.receive(Wanted(4, lambda *what: told.append(what[0])), TAG)
    group.send(2, 6)
    assert told[-1] == 2


def test_whoever_waits_for_some_hears_when_they_are_lost_and_others_wait_on() -> None:
    group = MemoryGroup()
    source = AnySource(group)  # type: ignore[arg-type]
    told: list[Any] = []
    source.receive(Wanted(1, lambda *what: told.append(what), (0,)), TAG)
    source.receive(Wanted(1, lambda *what: told.append(what), (0, 2)), TAG)
    error = WorkerLost("gone", 0)
    group.posted[0][0].finish(error)
    assert told == [(-1, None, error)]
    group.send(2, 7)
    assert told[1][0] == 2
