"""AD-PSGD's exchanges: pairs of workers average in the background, one pair at a time per worker.

Owns the conversation of an active worker with a passive one (Lian et al., ICML 2018;
docs/papers.md, 4.1) and the threads that hold it. The caller decides which workers are active and
which meet; `MasterCopy` averages. Active workers only ask and passive ones only answer, so no
circle of waits can close. A passive worker serves one request at a time, in order of arrival: that
serialization is the price Ripples measures, so it is measured here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from enum import IntEnum
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, TypeAlias

import torch

from shoal.carriers import HOST
from shoal.errors import ProtocolError, ViewChanging
from shoal.train.background import BackgroundThread, Progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from shoal.comm import Communicator, Work
    from shoal.train.pairs.master_copy import MasterCopy


Acting: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Makes the context in which a thread exchanges with members of a view: they do not change
meanwhile. Raises `ViewChanging` if they have; nothing that the thread does reaches others then."""

_LOOK_S: Final = 0.5
"""How often the end of a training looks for workers that have left."""


@dataclass(frozen=True, slots=True)
class Channels:
    """The channels of one training run."""

    requests: int
    """Requests, active to passive: one word."""

    grants: int
    """Grants, passive to active: one word, how many nanoseconds the request queued."""

    models: int
    """Models, both ways at once."""


class Request(IntEnum):
    """The kinds of message from an active worker to a passive one."""

    AVERAGE = 0
    GOODBYE = 1


@dataclass(frozen=True, slots=True)
class Exchange:
    """One finished exchange, as its active worker saw it (times on its clock)."""

    passive: int
    begin_ns: int
    granted_ns: int
    end_ns: int
    queued_ns: int
    """How long the request waited because the passive worker served another; 0 if it did not."""


class ActiveSide:
    """An active worker's end: at most one exchange under way, in a thread of its own."""

    def __init__(
        self,
        communicator: Communicator,
        channels: Channels,
        master: MasterCopy,
        deadline_s: float,
        acting: Acting = nullcontext,
    ) -> None:
        """`acting` is the context in which an exchange takes place; see `Acting`."""
        self._acting = acting
        self._communicator = communicator
        self._channels = channels
        self._master = master
        self._mine, self._theirs = master.empty_like(), master.empty_like()
        self._request, self._grant = _word(Request.AVERAGE), _word(0)
        self._orders: SimpleQueue[int | None] = SimpleQueue()
        self._is_busy = False
        self._last: Exchange | None = None
        self._progress = Progress(deadline_s)
        self._thread = BackgroundThread("ad-psgd-active", self._work, self._progress.announce)
        self._deadline_s = deadline_s
        self._has_told = False
        """Whether a caller knows that the thread has failed."""

    def start(self) -> None:
        """Begin to take orders."""
        self._thread.start()

    def begin(self, passive: int) -> None:
        """Order an exchange with `passive`; the previous one must have been waited for."""
        with self._progress:
            self._is_busy = True
        self._orders.put(passive)

    def wait(self) -> Exchange | None:
        """Wait for the exchange under way and return it, None if there was none.

        Raises `WorkerLost` or `DeadlineExceeded`, also for a failure since the last call, and once:
        after it the caller may save the model, and nothing is under way any more.
        """
        if self._has_told:
            return None
        with self._progress:
            try:
                self._progress.wait_for(self._poll_idle, "an exchange of parameters")
            except ViewChanging:
                return None  # it is dropped
            except Exception:
                self._has_told = True
                raise
            last, self._last = self._last, None
            return last

    def check(self) -> None:
        """Raise the thread's error, if it failed."""
        with suppress(ViewChanging):
            self._thread.check()

    def stop(self) -> None:
        """Take no more orders: this view is over."""
        self._orders.put(None)

    def finish(self, passives: Sequence[int]) -> None:
        """End the thread, then tell every passive worker that no request of this one follows."""
        self._orders.put(None)
        self._thread.join(self._deadline_s)
        goodbye = _word(Request.GOODBYE)
        _wait_for(
            [self._communicator.send(goodbye, p, channel=self._channels.requests) for p in passives]
        )

    def _poll_idle(self) -> bool | None:
        self._thread.check()
        return None if self._is_busy else True

    def _work(self) -> None:
        while (passive := self._orders.get()) is not None:
            with self._acting():
                done = self._exchange_with(passive)
            with self._progress:
                self._last, self._is_busy = done, False
                self._progress.advance()

    def _exchange_with(self, passive: int) -> Exchange:
        begin_ns = time.monotonic_ns()
        send, receive = self._communicator.send, self._communicator.receive
        self._master.copy_to(self._mine)
        granted = receive(self._grant, passive, channel=self._channels.grants)
        works = [receive(theirs, passive, channel=self._channels.models) for theirs in self._theirs]
        works += [send(mine, passive, channel=self._channels.models) for mine in self._mine]
        works.append(send(self._request, passive, channel=self._channels.requests))
        granted.wait()
        granted_ns = time.monotonic_ns()
        self._progress.announce()
        _wait_for(works)
        self._master.meet(self._mine, self._theirs)
        return Exchange(passive, begin_ns, granted_ns, time.monotonic_ns(), int(self._grant))


class PassiveSide:
    """A passive worker's end: answers whatever its training thread does, until all said goodbye.

    One thread takes requests and notes when they came; another serves them in that order.
    """

    def __init__(
        self,
        communicator: Communicator,
        channels: Channels,
        master: MasterCopy,
        actives: Sequence[int],
        deadline_s: float,
        acting: Acting = nullcontext,
        epoch: int | None = None,
    ) -> None:
        """`actives` are the active workers, in the view of `epoch`; see `Acting`."""
        self._acting, self._epoch = acting, epoch
        self._communicator = communicator
        self._channels = channels
        self._master = master
        self._remaining = set(actives)
        self._deadline_s = deadline_s
        self._mine, self._theirs = master.empty_like(), master.empty_like()
        self._waiting: SimpleQueue[tuple[int, int] | None] = SimpleQueue()
        self.num_requests = 0
        """Exchanges asked for so far."""
        self._has_ended = False
        self._progress = Progress(deadline_s)
        self.num_served = 0
        """Exchanges answered so far."""
        announce = self._progress.announce
        self._listener = BackgroundThread("ad-psgd-listener", self._listen, announce)
        self._server = BackgroundThread("ad-psgd-passive", self._serve, announce)

    def start(self) -> None:
        """Begin to answer."""
        self._server.start()
        self._listener.start()

    def check(self) -> None:
        """Raise the threads' error, if they failed."""
        with suppress(ViewChanging):
            self._check()

    def _check(self) -> None:
        self._listener.check()
        self._server.check()

    def stop(self) -> None:
        """Answer no more: this view is over."""
        self._waiting.put(None)

    def finish(self, check: Callable[[Sequence[int]], None]) -> None:
        """Serve until every active worker has said goodbye; `check` raises if one never will.

        Raises `DeadlineExceeded` if none of them asks for anything for the deadline.
        """

        def poll() -> bool | None:
            self._check()
            if not self._has_ended:
                check(tuple(self._remaining))
            return self._has_ended or None

        with self._progress:
            self._progress.wait_for(poll, "the active workers to finish", _LOOK_S)
        self._listener.join(self._deadline_s)
        self._server.join(self._deadline_s)

    def _listen(self) -> None:
        word = _word(0)
        while self._remaining:
            source = self._communicator.receive_any(
                word,
                channel=self._channels.requests,
                senders=tuple(self._remaining),
                epoch=self._epoch,
            )
            if int(word) == Request.GOODBYE:
                self._remaining.discard(source)
            elif int(word) == Request.AVERAGE:
                self._enqueue(source)
            else:
                message = f"Rank {source} sent an unknown request {int(word)} for an exchange."
                raise ProtocolError(message)
        self._waiting.put(None)

    def _enqueue(self, source: int) -> None:
        with self._progress:
            is_busy = self.num_requests > self.num_served
            arrived_ns = time.monotonic_ns() if is_busy else 0
            self.num_requests += 1
        self._waiting.put((source, arrived_ns))

    def _serve(self) -> None:
        while (request := self._waiting.get()) is not None:
            active, arrived_ns = request
            with self._acting():
                queued_ns = time.monotonic_ns() - arrived_ns if arrived_ns else 0
                self._exchange_with(active, queued_ns)
            with self._progress:
                self.num_served += 1
                self._progress.advance()
        with self._progress:
            self._has_ended = True
            self._progress.advance()

    def _exchange_with(self, active: int, queued_ns: int) -> None:
        send, receive = self._communicator.send, self._communicator.receive
        works = [receive(theirs, active, channel=self._channels.models) for theirs in self._theirs]
        self._master.copy_to(self._mine)
        works.append(send(_word(queued_ns), active, channel=self._channels.grants))
        works += [send(mine, active, channel=self._channels.models) for mine in self._mine]
        _wait_for(works)
        self._master.meet(self._mine, self._theirs)


def _word(value: int) -> Tensor:
    return torch.tensor([value], dtype=torch.int64, device=HOST)


def _wait_for(works: list[Work]) -> None:
    for work in works:
        work.wait()
