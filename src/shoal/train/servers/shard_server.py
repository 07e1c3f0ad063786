"""The server of one piece: takes pushes, lets the clock decide, answers with weights.

Owns the conversation of the shards of one piece with the workers (docs/papers.md, 4.2), in a thread
of its own: a piece whose pushes are there is updated, and sent, while others are on their way. A
process has one shard of it, or several if it serves for lost ones as well; they have a clock each,
and answer together. Pushes arrive in memory prepared for each worker since its last answer, so
receiving overlaps with applying, and workers that push at the same time do not queue for each
other's transfers. The worker of the same process hands its contribution over by reference.
`groups.server_clock` decides which updates to apply when and whose answer must wait; the arithmetic
is `ParameterShard`'s.
"""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

import torch

from shoal.carriers import HOST
from shoal.errors import ViewChanging
from shoal.strategies import Add, Answer, Apply, Pulled, is_copy_due
from shoal.train.background import BackgroundThread, Progress
from shoal.train.servers.copies import pack
from shoal.train.servers.hyperparameters import spread_over
from shoal.train.servers.protocol import Kind, fill_answer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from shoal.comm import Work
    from shoal.groups import UpdateRule
    from shoal.strategies import Holding, Shard
    from shoal.train.servers.hyperparameters import ParamGroups
    from shoal.train.servers.protocol import Request
    from shoal.train.servers.service import Service
    from shoal.train.servers.shard import ParameterShard


def options_for(rule: UpdateRule, groups: ParamGroups, workers: int) -> ParamGroups:
    """Return the options of an update, from the `groups` of the user's optimizer."""
    updates = rule.rate_divisor(workers)
    return groups if updates == 1 else spread_over(groups, updates)


_NOTHING: Final = torch.empty(0, dtype=torch.uint8, device=HOST)


@dataclass(frozen=True, slots=True)
class ServedShard:
    """One shard: its memory, and the decisions about its updates and answers."""

    memory: ParameterShard
    decisions: Shard


@dataclass(slots=True)
class _Seat:
    """A server's memory and messages for one worker of another process; a tensor per shard."""

    inbox: list[Tensor]
    words: Tensor
    copy: Tensor = field(default_factory=lambda: _NOTHING)
    """The copy of optimizer state on its way to the worker."""
    arriving: list[Work] = field(default_factory=list)
    sending: list[Work] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Push:
    """A request and its contribution to each shard, which waits to be added.

    The contribution of a skipped step is not added.
    """

    contribution: Sequence[Tensor]
    request: Request


@dataclass(frozen=True, slots=True)
class _Given:
    """The answer to this process's worker, the shards' weights and the pushes they hold."""

    answer: Pulled
    weights: list[Tensor]
    holdings: list[Holding]


class ShardServer:
    """Serves the shards of a piece to all workers, its own process's included, till all left."""

    def __init__(self, service: Service, shards: Sequence[ServedShard], piece: int) -> None:
        self._service, self._piece = service, piece
        self._own = service.own
        self.shards = shards
        num_words = service.num_words(piece, self._own)
        self._seats = {
            rank: _Seat(
                [torch.empty_like(shard.memory.weights) for shard in shards],
                torch.zeros(num_words, dtype=torch.int64, device=HOST),
            )
            for rank in service.others
        }
        self._copies: dict[int, list[Tensor]] = {}
        """The weights as given to each worker, where others' updates go on meanwhile."""
        self._pushes: dict[int, _Push] = {}
        self._options: list[list[float]] = [[] for _ in shards]
        self._asked_ns: dict[int, int] = {}
        self._due: dict[int, list[Answer]] = {}
        """The shards' answers to each worker that not all shards have let go on yet."""
        self._copied = shards[0].decisions.version
        """The version of the last copy of the optimizer's state; at first the initial version."""
        self._granted: _Given | None = None
        self._progress = Progress(service.deadline_s)
        self._is_frozen = False
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
        """Take no more requests; callers that wait for these shards get `error`."""
        self._waiting.put(error)

    def submit(self, request: Request, contribution: Sequence[Tensor]) -> None:
        """Queue a request of the worker of this process.

        `contribution` must stay unchanged until `collect` returns.
        """
        self._granted = None
        self._waiting.put((self._own, _Push(contribution, request)))

    def collect(self, weights: Sequence[Tensor]) -> tuple[Pulled, Sequence[Holding]]:
        """Wait until the clocks let this process's worker go on; copy the shards into `weights`.

        Return also the pushes that the shards hold. Raises the error of the server's thread,
        `WorkerLost` among others, and `DeadlineExceeded` if no worker says anything for the
        deadline.
        """
        with self._progress:
            given = self._progress.wait_for(self._poll_grant, "the other workers' gradients")
            for place, its in zip(weights, given.weights, strict=True):
                place.copy_(its)
            return given.answer, given.holdings

    def join(self) -> None:
        """Wait until all workers have left and have the last weights."""
        self._thread.join(self._service.deadline_s)
        for seat in self._seats.values():
            _wait_for(seat.sending)

    def freeze(self) -> None:
        """Let nothing change the shards any more."""
        with self._progress:
            self._is_frozen = True

    def end(self) -> None:
        """Wait for the thread to end, as it has been told to."""
        with suppress(ViewChanging):
            self._thread.join(self._service.deadline_s)

    def check(self) -> None:
        """Raise the error of the server's thread, if it failed."""
        self._thread.check()

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Keep other threads from changing the shards during the body."""
        with self._progress:
            yield

    def _serve(self) -> None:
        """Take requests until all workers have left."""
        remaining = set(self._service.view.members)
        while remaining:
            asked = self._waiting.get()
            if isinstance(asked, BaseException):
                raise asked
            rank, push = asked
            kind = push.request.kind
            if rank != self._own:
                # without the lock, which other threads need while a view changes
                _wait_for(self._seats[rank].sending)
                if kind is not Kind.SKIP:
                    _wait_for(self._seats[rank].arriving)
            with self._progress:
                if self._is_frozen:
                    raise ViewChanging
                self._handle(rank, push)
            if kind is Kind.LEAVE:
                remaining.remove(rank)

    def _handle(self, rank: int, push: _Push) -> None:
        """Act on one request and answer every worker that it lets go on. The lock is held."""
        self.num_requests += 1
        self._asked_ns[rank] = time.monotonic_ns()
        self._pushes[rank] = push
        answers: list[Answer] = []
        for place, shard in enumerate(self.shards):
            for deed in shard.decisions.take(rank, push.request.kind.word):
                match deed:
                    case Add():
                        self._add(place, self._pushes[deed.rank])
                    case Apply():
                        options = self._options[place]
                        shard.memory.apply(options, divisor=deed.divisor, share=deed.share)
                    case Answer():
                        answers.append(deed)
        for answer in answers:
            due = self._due.setdefault(answer.rank, [])
            due.append(answer)
            if len(due) == len(self.shards):
                self._answer(self._due.pop(answer.rank))
        self._progress.advance()

    def _add(self, place: int, push: _Push) -> None:
        memory = self.shards[place].memory
        if not memory.num_contributions:
            self._options[place] = push.request.hyperparameters
        memory.add(push.contribution[place], push.request.used)

    def _answer(self, deeds: Sequence[Answer]) -> None:
        """Let a worker go on, with the weights as they are now."""
        rank, is_last = deeds[0].rank, deeds[0].is_last
        was_held = any(each.was_held for each in deeds)
        held_ns = time.monotonic_ns() - self._asked_ns[rank] if was_held else 0
        answer = Pulled(held_ns, max(each.staleness for each in deeds))
        weights = self._given(rank, is_last=is_last)
        holdings = [shard.decisions.holding for shard in self.shards]
        if rank == self._own:
            self._granted = _Given(answer, weights, holdings)
            return
        seat = self._seats[rank]
        if not is_last:
            self._expect(rank)
        seat.copy = self._state_for(rank, is_last=is_last)
        fill_answer(seat.words, answer, len(seat.copy), holdings, self._service.view.members)
        seat.sending = self._service.send_answer(
            seat.words, weights, seat.copy, self._piece, rank, is_last=is_last
        )

    def _state_for(self, rank: int, *, is_last: bool) -> Tensor:
        """Return the copy of the optimizer's state for `rank` to keep, if one is due."""
        version = self.shards[0].decisions.version
        is_due = is_copy_due(version, self._copied, self._piece)
        if is_last or rank != self._service.keeper or not is_due:
            return _NOTHING
        self._copied = version
        return pack([shard.memory for shard in self.shards])

    def _given(self, rank: int, *, is_last: bool) -> list[Tensor]:
        """Return the weights for a worker: copies where others' updates go on while it takes them.

        Under BSP no copies are needed: an update needs every worker's push, which follows its pull.
        """
        weights = [shard.memory.weights for shard in self.shards]
        if is_last or self._service.rule.staleness == 0:
            return weights
        if rank not in self._copies:
            self._copies[rank] = [torch.empty_like(each) for each in weights]
        for copy, each in zip(self._copies[rank], weights, strict=True):
            copy.copy_(each)
        return self._copies[rank]

    def _expect(self, rank: int) -> None:
        """Prepare memory for the next contribution of `rank`, unless it is still prepared."""
        seat = self._seats[rank]
        if not seat.arriving:
            seat.arriving = self._service.receive_push(seat.inbox, self._piece, rank)

    def _poll_grant(self) -> _Given | None:
        self._thread.check()
        return self._granted


def _wait_for(works: list[Work]) -> None:
    for work in works:
        work.wait()
    works.clear()
