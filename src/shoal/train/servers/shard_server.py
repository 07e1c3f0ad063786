"""The server of one shard: takes pushes, lets the clock decide, answers with weights.

Owns the conversation with the workers (docs/papers.md, 4.2): one thread per server receives their
requests. What arrives goes into memory prepared for each worker since its last answer, so receiving
overlaps with applying, and workers that come together do not queue for each other's transfers. The
worker of the same process hands its contribution over by reference. Which updates to apply when and
whose answer must wait is decided by `groups.server_clock`, the arithmetic is `ParameterShard`'s.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from shoal.carriers import HOST
from shoal.strategies import Add, Answer, Apply, Pulled, Shard
from shoal.train.background import BackgroundThread, Progress
from shoal.train.servers.hyperparameters import spread_over
from shoal.train.servers.protocol import (
    ANSWER_WORDS,
    Channels,
    Kind,
    Request,
    fill_answer,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

    from shoal.comm import Communicator, Work
    from shoal.groups import UpdateRule
    from shoal.membership import View
    from shoal.train.servers.hyperparameters import ParamGroups
    from shoal.train.servers.shard import ParameterShard


def options_for(rule: UpdateRule, groups: ParamGroups, workers: int) -> ParamGroups:
    """Return the options that an update uses, from those of the user's optimizer."""
    updates = rule.rate_divisor(workers)
    return groups if updates == 1 else spread_over(groups, updates)


@dataclass(slots=True)
class _Seat:
    """What the server keeps for one worker of another process."""

    inbox: list[Tensor]
    copies: list[Tensor]
    answer: Tensor = field(
        default_factory=lambda: torch.zeros(ANSWER_WORDS, dtype=torch.int64, device=HOST)
    )
    arriving: list[Work] = field(default_factory=list)
    sending: list[Work] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Push:
    """A contribution that waits to be added; that of a skipped step is not."""

    contribution: list[Tensor]
    used: Tensor
    hyperparameters: list[float]


class ShardServer:
    """Serves one shard to all workers, its own process's included, until all have left."""

    def __init__(
        self,
        communicator: Communicator,
        view: View,
        channels: Channels,
        shard: ParameterShard,
        rule: UpdateRule,
        request: Request,
        deadline_s: float,
        pull_bound: float = 0.0,
    ) -> None:
        """`request` is an empty request of the size that workers send.

        Of the weights that a worker pulls, the share `pull_bound` may get lost, but for the last.
        """
        self._communicator = communicator
        self._channels = channels
        self._own = communicator.rank
        self._shard = shard
        self._request = request
        self._deadline_s, self._pull_bound = deadline_s, pull_bound
        self.view = view
        self._decisions = Shard(view.members, rule)
        self._seats = {
            rank: _Seat(_empty_like(shard.weights), _empty_like(shard.weights))
            for rank in view.members
            if rank != self._own
        }
        self._pushes: dict[int, _Push] = {}
        self._options: list[float] = []
        self._asked_ns: dict[int, int] = {}
        self._granted: Pulled | None = None
        self._progress = Progress(deadline_s)
        self.num_requests = 0
        """Requests taken."""
        self._thread = BackgroundThread("parameter-server", self._serve, self._progress.announce)

    def start(self) -> None:
        """Begin to serve; every worker has its first weights already."""
        for rank in self._seats:
            self._expect(rank)
        if self._seats:
            self._thread.start()

    def submit(self, request: Request, contribution: list[Tensor]) -> None:
        """Do what a remote worker's request does, for the worker of this process.

        `contribution` must stay unchanged until `collect` returns.
        """
        with self._progress:
            self._granted = None
            self._handle(self._own, request, contribution)

    def collect(self, weights: Sequence[Tensor]) -> Pulled:
        """Wait until the clock lets this process's worker go on; copy the shard into `weights`.

        Raises what the server's thread failed with, `WorkerLost` among others, and
        `DeadlineExceeded` if no worker says anything for the deadline.
        """
        with self._progress:
            answer = self._progress.wait_for(self._poll_grant, "the other workers' gradients")
            for target, source in zip(weights, self._shard.weights, strict=True):
                target.copy_(source)
            return answer

    def join(self) -> None:
        """Wait until the server has ended: all workers have left and have the last weights."""
        if self._seats:
            self._thread.join(self._deadline_s)
        for seat in self._seats.values():
            _wait_for(seat.sending)

    def counters(self) -> dict[str, float]:
        """Return what the server has counted: see docs/parameter-server.md."""
        with self._progress:
            decisions = self._decisions
            reads = decisions.clock.staleness_counts
            return {
                "shard_reads": sum(reads.values()),
                "shard_updates": decisions.version,
                "shard_skips": decisions.skipped,
                "staleness": sum(behind * count for behind, count in reads.items()),
                "max.staleness": max(reads),
                "update_delay": decisions.delays,
                "max.update_delay": decisions.longest_delay,
            }

    @property
    def version(self) -> int:
        """The number of updates made."""
        return self._decisions.version

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
            return {"shard": self._shard.state_dict(), "version": self.version}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`. No worker may push meanwhile except under BSP."""
        with self._progress:
            self._shard.load_state_dict(state["shard"])
            self._decisions.restart_at(int(state["version"]))

    def _serve(self) -> None:
        """Take requests of other processes until all of them have left."""
        remaining = set(self._seats)
        while remaining:
            source = self._communicator.receive_any(
                self._request.words, channel=self._channels.requests, senders=tuple(remaining)
            )
            seat = self._seats[source]
            kind = self._request.kind
            if kind is not Kind.SKIP:
                _wait_for(seat.arriving)
            with self._progress:
                self._handle(source, self._request, seat.inbox)
            if kind is Kind.LEAVE:
                remaining.remove(source)

    def _handle(self, rank: int, request: Request, contribution: list[Tensor]) -> None:
        """Act on one request and answer everyone whom that lets go on. The lock is held."""
        self.num_requests += 1
        now_ns = self._asked_ns[rank] = time.monotonic_ns()
        kind = request.kind
        if kind is not Kind.LEAVE:
            self._pushes[rank] = _Push(contribution, request.used, request.hyperparameters)
        for deed in self._decisions.take(rank, kind.word):
            match deed:
                case Add():
                    self._add(self._pushes[deed.rank])
                case Apply():
                    self._shard.apply(self._options, divisor=deed.divisor, share=deed.share)
                case Answer():
                    held_ns = now_ns - self._asked_ns[deed.rank] if deed.was_held else 0
                    self._answer(deed, held_ns)
        self._progress.advance()

    def _add(self, push: _Push) -> None:
        if not self._shard.num_contributions:
            self._options = push.hyperparameters
        self._shard.add(push.contribution, push.used)

    def _answer(self, deed: Answer, held_ns: int) -> None:
        """Let a worker go on, with the weights as they are now."""
        rank, is_last = deed.rank, deed.is_last
        answer = Pulled(held_ns, deed.staleness)
        if rank == self._own:
            self._granted = answer
            return
        seat = self._seats[rank]
        _wait_for(seat.sending)
        if not is_last:
            self._expect(rank)
        fill_answer(seat.answer, answer)
        is_bsp = self._decisions.rule.staleness == 0
        weights = self._shard.weights if is_last or is_bsp else self._copy(seat)
        bound = 0.0 if is_last else self._pull_bound
        seat.sending = [
            self._communicator.send(seat.answer, rank, channel=self._channels.answers),
            *(
                self._communicator.send(
                    part,
                    rank,
                    channel=self._channels.pulls,
                    renew_bound=bound if lossy else 0.0,
                    layers=layers,
                )
                for part, lossy, layers in self._shard.messages(weights)
            ),
        ]

    def _copy(self, seat: _Seat) -> list[Tensor]:
        """Return a copy of the weights: others' updates go on while it is being sent.

        Under BSP there are none: an update needs every worker's push, and so its receipt.
        """
        for target, source in zip(seat.copies, self._shard.weights, strict=True):
            target.copy_(source)
        return seat.copies

    def _expect(self, rank: int) -> None:
        """Prepare memory for the next contribution of `rank`, unless it is prepared still."""
        seat = self._seats[rank]
        if not seat.arriving:
            seat.arriving = [
                self._communicator.receive(part, rank, channel=self._channels.pushes, lossy=lossy)
                for part, lossy, _ in self._shard.messages(seat.inbox)
            ]

    def _poll_grant(self) -> Pulled | None:
        self._thread.check()
        return self._granted


def _empty_like(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [torch.empty_like(tensor) for tensor in tensors]


def _wait_for(works: list[Work]) -> None:
    for work in works:
        work.wait()
    works.clear()
