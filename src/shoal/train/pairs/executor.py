"""Means of two workers' parameters beside computing: the executor of AD-PSGD's course.

Local updates go to the parameters as averaging has left them (`train.pairs.master_copy`); the
threads that hold conversations are `train.pairs.pair_exchange`'s. Owns the accounting of exchanges:
spans, counters and batches.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, final

import torch

from shoal.carriers import reserve_channels
from shoal.strategies import (
    Act,
    AnswerPairs,
    AwaitGoodbyes,
    Begin,
    Goodbye,
    Pair,
    Pairs,
    TakeIn,
    Update,
    pairing,
)
from shoal.trace import SpanKind
from shoal.train.executor import AbstractExecutor
from shoal.train.model_hooks import ModelHook
from shoal.train.model_use import ModelUse
from shoal.train.pairs.master_copy import MasterCopy
from shoal.train.pairs.pair_exchange import ActiveSide, Channels, PassiveSide

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from shoal.membership import View
    from shoal.strategies import ADPSGD
    from shoal.train.pairs.pair_exchange import Exchange
    from shoal.train.replica import Replica


@final
class PairsExecutor(AbstractExecutor):
    """Has a thread that begins exchanges, or threads that answer them."""

    def __init__(self, definition: ADPSGD, replica: Replica) -> None:
        super().__init__(definition, replica)
        communicator = replica.communicator
        self._master = MasterCopy(replica.flat.buffers, replica.flat.statistics)
        self._on_load = replica.model.register_load_state_dict_post_hook(
            ModelHook(lambda *_: self._master.reload())
        )
        self.use = ModelUse(replica.model)
        self._channels = Channels(*reserve_channels(communicator)[:3])
        self._active: ActiveSide | None = None
        self._passive: PassiveSide | None = None
        self._view = self.view
        """The view in which the sides exchange."""
        self._taken_before = self._served_before = 0

    own_acts = (TakeIn, Update)

    counts_each_step = False

    def install(self, view: View, rounds: Mapping[int, int]) -> None:
        """Pair in `view` the workers that had not come to their end when all reported."""
        del rounds
        course = self.course
        assert isinstance(course, Pairs)
        course.pair(view, pairing(self.replica.member.decision, self.replica.session))

    def catch_up(self, view: View) -> None:
        """Answer active workers in `view`: they may wait for this one before it comes to a step."""
        with self.replica.member.acting_in(view):
            for act in self.course.begin():
                self.do(act)

    def begin(self) -> None:
        """Answer requests from now on, if there are any, with the parameters as they are now."""
        self._master.reload()
        super().begin()

    def check(self) -> None:
        """Raise the threads' error, if they failed."""
        super().check()
        for side in (self._active, self._passive):
            if side is not None:
                side.check()

    def do(self, act: Act) -> object:
        """Carry out one act in the training thread; first, newcomers get the state they lack."""
        self.hand_on()
        match act:
            case Update():
                self._note_answered()
                with torch.no_grad():
                    self._master.update(self._update)
            case TakeIn():
                self.settle()
            case Begin():
                for pair in act.acts:
                    assert isinstance(pair, Pair)
                    self._active_side().begin(pair.peer)
                    if self.replica.samples is not None:
                        self._taken_before = self.replica.samples.num_taken
            case AnswerPairs():
                self._answer(act.active)
            case Goodbye():
                self._active_side().finish(act.passive)
            case AwaitGoodbyes():
                assert self._passive is not None
                self._passive.finish(self.replica.groups.check_present)
            case _:
                raise TypeError(act)
        return None

    def _end_sides(self) -> None:
        """Give up the sides that served in a view that is over."""
        for side in (self._active, self._passive):
            if side is not None:
                side.stop()
        self._count_served()
        self._active = self._passive = None
        self._view = self.view

    def _count_served(self) -> None:
        if self._passive is not None:
            self.replica.count("group_size.2", self._passive.num_served)

    def _acting(self) -> Callable[[], AbstractContextManager[None]]:
        return partial(self.replica.member.acting_in, self._view)

    def _active_side(self) -> ActiveSide:
        """Return the thread that exchanges, which starts when it is first needed."""
        self._come_into_view()
        if self._active is None:
            replica = self.replica
            self._active = ActiveSide(
                replica.communicator,
                self._channels,
                self._master,
                replica.deadline_s,
                self._acting(),
            )
            self._active.start()
        return self._active

    def _come_into_view(self) -> None:
        if self._view.epoch != self.view.epoch:
            self._end_sides()

    def _answer(self, active: tuple[int, ...]) -> None:
        self._come_into_view()
        if self._passive is not None:
            return  # since it caught up with the view
        replica = self.replica
        self._passive = PassiveSide(
            replica.communicator,
            self._channels,
            self._master,
            active,
            replica.deadline_s,
            self._acting(),
            self._view.epoch,
        )
        self._passive.start()

    def settle(self) -> None:
        """Wait for the exchange that runs beside computing, if one still does."""
        if self._active is None:
            return
        begin_ns = time.monotonic_ns()
        with self.replica.stopwatch.entered(SpanKind.EXCHANGE):
            exchange = self._active.wait()
        if exchange is not None:
            self._account(exchange, begin_ns, time.monotonic_ns())
            self._count_batches()

    def _count_batches(self) -> None:
        """Count the batches that were used before an exchange: another worker has their effect."""
        if self.replica.samples is not None:
            self.replica.samples.count(self._taken_before, self._view.epoch)

    def _note_answered(self) -> None:
        """Count batches whose updates an active worker has received, or all of a lone worker."""
        samples = self.replica.samples
        if samples is None:
            return
        served = 0 if self._passive is None else self._passive.num_served
        if len(self.view) == 1:
            samples.count(samples.num_taken)
        elif served != self._served_before:
            self._count_batches()
        if self._passive is not None:
            self._served_before, self._taken_before = served, samples.num_taken - 1

    def _account(self, exchange: Exchange, begin_ns: int, end_ns: int) -> None:
        """Count the exchange, and record how long the training thread had to wait for it."""
        replica = self.replica
        members = tuple(sorted((self.course.rank, exchange.passive)))
        add = replica.stopwatch.add
        if exchange.granted_ns > begin_ns:
            granted_ns = min(exchange.granted_ns, end_ns)
            reason = f"rank {exchange.passive} has not answered yet"
            add(SpanKind.WAIT, begin_ns, granted_ns, members, reason)
        if exchange.end_ns > begin_ns:
            moving_ns = max(exchange.granted_ns, begin_ns)
            add(SpanKind.EXCHANGE, moving_ns, end_ns, members, "the exchange outlasts computing")
        replica.count("group_size.2")
        replica.count("exchanges")
        replica.count("exchange_seconds", (exchange.end_ns - exchange.begin_ns) / 1e9)
        replica.count("exposed_exchange_seconds", (end_ns - begin_ns) / 1e9)
        if exchange.queued_ns:
            queued_s = exchange.queued_ns / 1e9
            longest = max(replica.counters.get("max.queue_seconds", 0.0), queued_s)
            replica.counters["max.queue_seconds"] = longest
            replica.count("busy_requests")
            replica.count("queue_seconds", queued_s)

    def end(self) -> None:
        """Finish the course, and leave the model with the final averages."""
        super().end()
        self._count_served()
        with torch.no_grad():
            self._master.update(lambda: None)
        self._on_load.remove()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue choosing peers as the saved run would have."""
        self.settle()
        super().load_state_dict(state)
