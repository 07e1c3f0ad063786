"""What workers exchange tensors over: contributions arrive one by one, late, or never.

A stand-in for an engine, a share in it and the communicator over that. What a member has is whole
when all members' parts have arrived at it, so at any moment some have a sum and others do not.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from shoal.errors import DeadlineExceeded, ShoalError, UsageError, ViewChanging, WorkerLost
from simulated.stand_ins import Time, _end
from simulated.world import Process, world

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from torch import Tensor

    from shoal.membership import View

POLL_S = 0.002


@dataclass(eq=False)
class Engine:
    """The end of one rank; `way` tells those of one opening from others."""

    rank: int
    way: bytes
    process: Process = field(default_factory=lambda: world().process)
    inbox: dict[Any, list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    ended: dict[int, str] = field(default_factory=dict)
    """Ranks whose connection has ended, and why."""

    def close(self) -> None:
        """Let others notice that this end is gone."""
        engines = _plane()[self.way]
        if engines.pop(self.rank, None) is not None:
            for other in engines.values():
                other.notice(self)

    def notice(self, gone: Engine) -> None:
        here = world()

        def arrive() -> None:
            if here.can_reach(gone.process.host, self.process.host):
                self.ended[gone.rank] = "its connection has ended"
            else:
                here.unblocked.append(arrive)

        here.after(here.latency_ns() + 1_000_000, arrive)

    def send(self, rank: int, key: Any, value: Tensor) -> None:
        """Let `value` arrive at another rank, or here."""
        here, there = world(), _plane()[self.way].get(rank)
        if there is None:
            return
        copied = value.detach().clone()

        def arrive() -> None:
            if here.can_reach(self.process.host, there.process.host):
                there.inbox[key].append(copied)
            else:
                here.unblocked.append(arrive)

        here.after(0 if rank == self.rank else here.latency_ns(), arrive)


def _plane() -> dict[bytes, dict[int, Engine]]:
    here = world()
    if not hasattr(here, "plane"):
        here.plane = defaultdict(dict)  # type: ignore[attr-defined]
    return here.plane  # type: ignore[attr-defined,no-any-return]


def open_engine(
    rank: int, size: int, exchange: Callable[[bytes], list[bytes]], **_options: object
) -> Engine:
    """Open an end, once all have shown their cards."""
    cards = exchange(f"card of {rank}, {world().random.random()}".encode())
    assert len(cards) == size
    engine = Engine(rank, b"".join(cards))
    plane = _plane()[engine.way]
    assert rank not in plane, "an engine was opened twice"
    plane[rank] = engine
    engine.process.at_death.append(engine.close)
    return engine


class Share:
    """`session.EngineShare`, of a single user."""

    def __init__(self, engine: Engine, deadline_s: float) -> None:
        self.engine, self.deadline_s = engine, deadline_s
        self.num_streams = 0
        self._ended: ShoalError | None = None
        self._interrupted: ShoalError | None = None

    @property
    def error(self) -> ShoalError | None:
        return self._ended or self._interrupted

    def interrupt(self, error: ShoalError) -> None:
        self._interrupted = error

    def resume(self) -> None:
        self._interrupted = None

    def abort(self, error: ShoalError) -> None:
        self._ended = self._ended or error

    def move_to(self, engine: Engine) -> Engine:
        before, self.engine = self.engine, engine
        return before

    def close(self) -> None:
        self.engine.close()
        self.abort(ShoalError("The transport has been closed."))


def share_engine(
    rank: int,
    _members: tuple[int, ...],
    world_size: int,
    exchange: Callable[[bytes], list[bytes]],
    *,
    deadline_s: float,
) -> Share:
    return Share(open_engine(rank, world_size, exchange), deadline_s)


def open_apart(rank: int, size: int, deadline_s: float) -> Share:
    def exchange(card: bytes) -> list[bytes]:
        return [card if each == rank else b"" for each in range(size)]

    return Share(open_engine(rank, size, exchange), deadline_s)


def close_aside(engine: Engine, then: Callable[[], None] | None = None) -> None:
    del then
    engine.close()


class Work:
    """What has begun in a view: whole once a part of every member is here."""

    def __init__(
        self,
        communicator: Communicator,
        keys: Sequence[Any],
        finish: Callable[[list[Tensor]], None],
    ) -> None:
        self._communicator, self._keys, self._finish = communicator, keys, finish
        self._view, self._is_done = communicator.view, False
        self._engine = communicator.share.engine

    def wait(self) -> None:
        if self._is_done:
            return
        communicator, inbox = self._communicator, self._engine.inbox
        end = _end(communicator.share.deadline_s)
        world().block(
            lambda: (
                communicator.share.error
                or communicator.view.epoch != self._view.epoch
                or all(inbox.get(key) for key in self._keys)
                or any(key[-2] in self._engine.ended for key in self._keys if not inbox.get(key))
            ),
            end,
        )
        if communicator.view.epoch != self._view.epoch:
            raise ViewChanging("The workers that take part have changed.")
        if all(inbox.get(key) for key in self._keys) and communicator.share.error is None:
            self._is_done = True
            self._finish([inbox[key].pop(0) for key in self._keys])
            return
        if communicator.share.error is None:
            lost = [key[-2] for key in self._keys if key[-2] in self._engine.ended]
            if not lost:
                raise DeadlineExceeded(f"Rank {communicator.rank} waited for {self._keys}.")
            communicator.await_verdict(lost[0], self._view)
        if communicator.view.epoch != self._view.epoch:
            raise ViewChanging("The workers that take part have changed.")
        raise communicator.share.error or WorkerLost("A connection has ended.", lost[0])


class Communicator:
    """`carriers.TransportCommunicator`, as executors use it."""

    grace_s = 2.0

    def __init__(
        self,
        share: Share,
        _loss: object,
        on_peer_error: Callable[[int | None, str, int], None],
        view: View,
    ) -> None:
        self.share, self._on_peer_error = share, on_peer_error
        self._stream = share.num_streams
        share.num_streams += 1
        self.workers_per_host = 0
        self.go_on_in(view)

    @property
    def rank(self) -> int:
        return self.share.engine.rank

    def go_on_in(self, view: View) -> None:
        self.view = view
        self._num_sums = 0
        self._used: set[tuple[Any, ...]] = set()
        self._numbers: dict[Any, int] = defaultdict(int)

    def stats(self) -> None:
        return None

    def check(self) -> None:
        if self.share.error is not None:
            raise self.share.error

    def check_contributions(self) -> None: ...

    def abort(self, error: ShoalError) -> None:
        self.share.abort(error)

    def await_verdict(self, rank: int, view: View) -> None:
        """Tell the job that a connection is lost; wait until it ends or goes on in another view."""
        self._on_peer_error(rank, "its connection has ended", view.epoch)
        end = Time.monotonic() + self.grace_s
        while Time.monotonic() < end:
            if self.share.error is not None or self.view.epoch != view.epoch:
                return
            Time.sleep(POLL_S)

    def _gather(
        self,
        name: tuple[Any, ...],
        members: Sequence[int],
        value: Tensor,
        finish: Callable[[list[Tensor]], None],
    ) -> Work:
        self.check()
        base = (self.view.epoch, self._stream, *name)
        for member in members:
            self.share.engine.send(member, (*base, self.rank, member), value)
        return Work(self, [(*base, member, self.rank) for member in members], finish)

    def all_reduce(self, buffer: Tensor, **_hints: object) -> Work:
        self._num_sums += 1

        def finish(parts: list[Tensor]) -> None:
            buffer.copy_(torch.stack(parts).sum(0))

        with torch.no_grad():
            return self._gather(("sum", self._num_sums), self.view.members, buffer, finish)

    def cuts_freely(self, _buffer: object) -> bool:
        return False

    def group_average(
        self,
        buffer: Tensor,
        members: Sequence[int],
        *,
        sequence: int,
        weights: Sequence[int] = (),
        channel: int = 0,
        **_hints: object,
    ) -> Work:
        shares = list(weights) or [1] * len(members)

        def finish(parts: list[Tensor]) -> None:
            total = sum(part * share for part, share in zip(parts, shares, strict=True))
            buffer.copy_(total / sum(shares))

        name = ("mean", tuple(members), channel, sequence)
        if (used := (self.view.epoch, *name)) in self._used:
            raise UsageError(f"Number {sequence} of this conversation has been used.")
        self._used.add(used)
        return self._gather(name, members, buffer, finish)

    def broadcast(self, buffer: Tensor, source: int) -> None:
        self._num_sums += 1
        members = self.view.members

        def finish(parts: list[Tensor]) -> None:
            buffer.copy_(parts[members.index(source)])

        self._gather(("broadcast", self._num_sums), members, buffer, finish).wait()

    def barrier(self) -> None:
        self.broadcast(torch.zeros(1), self.view.members[0])

    def send(self, buffer: Tensor, destination: int, *, channel: int, **_hints: object) -> Work:
        self.check()
        number = self._numbers["to", destination, channel]
        self._numbers["to", destination, channel] += 1
        key = (self.view.epoch, self._stream, "message", channel, number, self.rank, destination)
        self.share.engine.send(destination, key, buffer)
        return Work(self, [], lambda _: None)

    def receive(self, buffer: Tensor, source: int, *, channel: int, **_hints: object) -> Work:
        self.check()
        number = self._numbers["from", source, channel]
        self._numbers["from", source, channel] += 1
        key = (self.view.epoch, self._stream, "message", channel, number, source, self.rank)
        return Work(self, [key], lambda parts: buffer.copy_(parts[0]))

    def receive_any(
        self,
        buffer: Tensor,
        *,
        channel: int,
        senders: Collection[int] | None = None,
        epoch: int | None = None,
    ) -> int:
        """Return whose message on `channel` is here first; of each sender they are in order."""
        view, numbers, engine = self.view, self._numbers, self.share.engine
        if epoch not in (None, view.epoch):
            raise ViewChanging("The workers that take part have changed.")

        def first() -> int | None:
            for source in senders or view.members:
                number = numbers["from", source, channel]
                key = (view.epoch, self._stream, "message", channel, number, source, self.rank)
                if engine.inbox.get(key):
                    return source
            return None

        while (source := first()) is None:
            world().block(
                lambda: self.share.error or self.view.epoch != view.epoch or first() is not None,
                None,
            )
            self.check()
            if self.view.epoch != view.epoch:
                raise ViewChanging("The workers that take part have changed.")
        number = numbers["from", source, channel]
        key = (view.epoch, self._stream, "message", channel, number, source, self.rank)
        numbers["from", source, channel] += 1
        buffer.copy_(engine.inbox[key].pop(0))
        return source
