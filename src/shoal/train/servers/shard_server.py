"""The server of one shard: takes pushes, lets the clock decide, answers with weights.

Owns the conversation of one shard with the workers (docs/papers.md, 4.2), in a thread of its own:
a shard whose pushes are there is updated, and sent, while those of others are on their way. What
arrives goes into memory prepared for each worker since its last answer, so receiving overlaps with
applying, and workers that come together do not queue for each other's transfers. The worker of the
same process hands its contribution over by reference. Which updates to apply when and whose answer
must wait is decided by `groups.server_clock`, the arithmetic is `ParameterShard`'s.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import torch

from shoal.carriers import HOST
from shoal.strategies import Add, Answer, Apply, Pulled, Shard
from shoal.train.background import BackgroundThread, Progress
from shoal.train.servers.hyperparameters import spread_over
from shoal.train.servers.protocol import ANSWER_WORDS, Kind, Request, fill_answer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from shoal.comm import Work
    from shoal.groups import UpdateRule
    from shoal.train.servers.hyperparameters import ParamGroups
    from shoal.train.servers.service import Service
    from shoal.train.servers.shard import ParameterShard


def options_for(rule: UpdateRule, groups: ParamGroups, workers: int) -> ParamGroups:
    """Return the options that an update uses, from those of the user's optimizer."""
    updates = rule.rate_divisor(workers)
    return groups if updates == 1 else spread_over(groups, updates)


@dataclass(slots=True)
class _Seat:
    """What a shard keeps for one worker of another process."""

    inbox: Tensor
    words: Tensor = field(
        default_factory=lambda: torch.zeros(ANSWER_WORDS, dtype=torch.int64, device=HOST)
    )
    arriving: list[Work] = field(default_factory=list)
    sending: list[Work] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Push:
    """A request and its contribution, which waits to be added; that of a skipped step is not."""

    contribution: Tensor
    request: Request


class ShardServer:
    """Serves one shard to all workers, its own process's included, until all have left."""

    def __init__(self, service: Service, shard: ParameterShard, piece: int) -> None:
        self._service, self._shard, self._piece = service, shard, piece
        self._own = service.own
        self.decisions = Shard(service.members, service.rule)
        self._seats = {rank: _Seat(torch.empty_like(shard.weights)) for rank in service.others}
        self._copies: dict[int, Tensor] = {}
        """The weights as each worker was given them, where others' updates go on meanwhile."""
        self._pushes: dict[int, _Push] = {}
        self._options: list[float] = []
        self._asked_ns: dict[int, int] = {}
        self._granted: tuple[Pulled, Tensor] | None = None
        self._progress = Progress(service.deadline_s)
        self.num_requests = 0
        """Requests taken."""
        self._waiting: SimpleQueue[tuple[int, _Push] | BaseException] = SimpleQueue()
        self._thread = BackgroundThread("parameter-server", self._serve, self._progress.announce)

    def start(self) -> None:
        """Begin to serve; every worker has its first weights already."""
        for rank in self._seats:
            self._expect(rank)
        self._thread.start()

    def ask(self, rank: int, request: Request) -> None:
        """Let a remote worker's request be taken once its contribution is there."""
        self._waiting.put((rank, _Push(self._seats[rank].inbox, request)))

    def fail(self, error: BaseException) -> None:
        """Take no more requests; whoever waits for this shard gets `error`."""
        self._waiting.put(error)

    def submit(self, request: Request, contribution: Tensor) -> None:
        """Let a request of the worker of this process be taken.

        `contribution` must stay unchanged until `collect` returns.
        """
        self._granted = None
        self._waiting.put((self._own, _Push(contribution, request)))

    def collect(self, weights: Tensor) -> Pulled:
        """Wait until the clock lets this process's worker go on; copy the shard into `weights`.

        Raises what the server's thread failed with, `WorkerLost` among others, and
        `DeadlineExceeded` if no worker says anything for the deadline.
        """
        with self._progress:
            answer, given = self._progress.wait_for(
                self._poll_grant, "the other workers' gradients"
            )
            weights.copy_(given)
            return answer

    def join(self) -> None:
        """Wait until all workers have left and have the last weights."""
        self._thread.join(self._service.deadline_s)
        for seat in self._seats.values():
            _wait_for(seat.sending)

    def check(self) -> None:
        """Raise what the server's thread failed with, if it did."""
        self._thread.check()

    def load_weights(self, flats: Sequence[Tensor]) -> None:
        """Take the weights from the model's `flats` anew; keep the optimizer's state."""
        with self._progress:
            self._shard.load_weights(flats)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the shard's state and the number of updates made."""
        with self._progress:
            return {**self._shard.state_dict(), "version": self.decisions.version}

    def check_fits(self, state: dict[str, Any]) -> None:
        """Raise `UsageError` if `state` is another shard's."""
        self._shard.check_fits(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`. No worker may push meanwhile except under BSP."""
        with self._progress:
            self._shard.load_state_dict(state)
            self.decisions.restart_at(int(state["version"]))

    def _serve(self) -> None:
        """Take requests until all workers have left."""
        remaining = set(self._service.members)
        while remaining:
            asked = self._waiting.get()
            if isinstance(asked, BaseException):
                raise asked
            rank, push = asked
            kind = push.request.kind
            if rank != self._own and kind is not Kind.SKIP:
                _wait_for(self._seats[rank].arriving)
            with self._progress:
                self._handle(rank, push)
            if kind is Kind.LEAVE:
                remaining.remove(rank)

    def _handle(self, rank: int, push: _Push) -> None:
        """Act on one request and answer everyone whom that lets go on. The lock is held."""
        self.num_requests += 1
        now_ns = self._asked_ns[rank] = time.monotonic_ns()
        self._pushes[rank] = push
        for deed in self.decisions.take(rank, push.request.kind.word):
            match deed:
                case Add():
                    self._add(self._pushes[deed.rank])
                case Apply():
                    self._shard.apply(self._options, divisor=deed.divisor, share=deed.share)
                case Answer():
                    held_ns = now_ns - self._asked_ns[deed.rank] if deed.was_held else 0
                    self._answer(deed, Pulled(held_ns, deed.staleness))
        self._progress.advance()

    def _add(self, push: _Push) -> None:
        if not self._shard.num_contributions:
            self._options = push.request.hyperparameters
        self._shard.add(push.contribution, push.request.used)

    def _answer(self, deed: Answer, answer: Pulled) -> None:
        """Let a worker go on, with the weights as they are now."""
        rank, is_last = deed.rank, deed.is_last
        if rank == self._own:
            self._granted = answer, self._given(rank, is_last=is_last)
            return
        seat = self._seats[rank]
        _wait_for(seat.sending)
        if not is_last:
            self._expect(rank)
        fill_answer(seat.words, answer)
        given = self._given(rank, is_last=is_last)
        seat.sending = self._service.send_answer(
            seat.words, given, self._piece, rank, is_last=is_last
        )

    def _given(self, rank: int, *, is_last: bool) -> Tensor:
        """Return the weights for a worker: a copy where others' updates go on while it takes them.

        Under BSP there are none: an update needs every worker's push, and so its receipt.
        """
        weights = self._shard.weights
        if is_last or self._service.rule.staleness == 0:
            return weights
        if rank not in self._copies:
            self._copies[rank] = torch.empty_like(weights)
        return self._copies[rank].copy_(weights)

    def _expect(self, rank: int) -> None:
        """Prepare memory for the next contribution of `rank`, unless it is prepared still."""
        seat = self._seats[rank]
        if not seat.arriving:
            seat.arriving = [self._service.receive_push(seat.inbox, self._piece, rank)]

    def _poll_grant(self) -> tuple[Pulled, Tensor] | None:
        self._thread.check()
        return self._granted


def _wait_for(works: list[Work]) -> None:
    for work in works:
        work.wait()
    works.clear()
