"""A worker's side of the parameter servers: push to all servers, pull from all, piece by piece.

Owns the order of the messages of one step (docs/papers.md, 4.2). All pulls are posted before
anything is pushed; every worker starts with the server after itself, so that not all workers meet
the same server at once; the shards of its own process go by reference. Knows no model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from shoal.carriers import HOST
from shoal.strategies import Pulled
from shoal.train.servers.copies import StateCopy
from shoal.train.servers.protocol import (
    Kind,
    Request,
    RequestWords,
    read_answer,
    read_copy_bytes,
    read_holdings,
)
from shoal.train.state_memory import num_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

    from shoal.comm import Work
    from shoal.strategies import Holding
    from shoal.train.servers.service import Service
    from shoal.train.servers.shard_host import ShardHost


class ParameterClient:
    """Exchanges gradients for weights with every server.

    An exchange is `begin`, then `push` until every piece is pushed, then `take` of every piece.
    """

    def __init__(
        self,
        service: Service,
        host: ShardHost,
        words: Callable[[], RequestWords],
        outbox: Sequence[Tensor],
        inbox: Sequence[Tensor],
        count: Callable[[str, float], None],
    ) -> None:
        """Take CPU tensors shaped like the model's flat tensors to push from and pull into.

        A part of a pull that gets lost keeps its value in `inbox`. `words` makes memory for a
        request; `count` is told of the bytes that go over the network, by direction.
        """
        self._service, self._host = service, host
        self._outbox, self._inbox, self._count = outbox, inbox, count
        self.holdings: dict[int, Holding] = {}
        """The pushes that the taken weights hold, by the number of the shard, where told."""
        self.copies: dict[int, StateCopy] = {}
        """Copies of optimizer state that this worker has been given to keep, by shard."""
        pieces = service.layout.pieces
        self._words = [words() for _ in pieces]
        """Memory for requests, by the first piece of each."""
        self._answers = {
            (piece, rank): torch.zeros(
                service.num_words(piece, rank), dtype=torch.int64, device=HOST
            )
            for piece in range(len(pieces))
            for rank in service.others
            if service.pieces_at(rank, (piece,))
        }
        self._pushes: list[list[Work]] = [[] for _ in pieces]
        self._pulls: list[list[Work]] = [[] for _ in pieces]

    def begin(self, kind: Kind) -> None:
        """Post the pulls of an exchange."""
        service = self._service
        for piece in range(len(self._pulls)):
            self._pulls[piece] = [
                work
                for rank in service.others
                if service.pieces_at(rank, (piece,))
                for work in service.receive_answer(
                    self._answers[piece, rank],
                    service.parts_of(self._inbox, piece, rank),
                    piece,
                    rank,
                    is_last=kind is Kind.LEAVE,
                )
            ]

    def push(self, request: Request, *, in_turn: bool = False) -> None:
        """Send every server its parts of the pieces of `request`, and the request.

        The parts go first: the request says that they are on their way. `in_turn` as in
        `Service.send_push`.
        """
        service, words = self._service, self._words[request.pieces.start]
        words.write(request)
        for rank in service.others:
            pieces = service.pieces_at(rank, request.pieces)
            for piece in pieces if request.kind is not Kind.SKIP else ():
                parts = service.parts_of(self._outbox, piece, rank)
                self._pushes[piece] += service.send_push(parts, piece, rank, in_turn=in_turn)
                self._count("pushed_bytes", sum(map(num_bytes, parts)))
            if pieces:
                self._pushes[request.pieces.start].append(
                    service.communicator.send(words.words, rank, channel=service.channels.requests)
                )
                self._count("pushed_bytes", num_bytes(words.words))
        self._host.submit(request, self._outbox)

    def take(self, pieces: Iterable[int]) -> Pulled:
        """Wait until the inbox holds the servers' weights of `pieces`; return the slowest answer.

        The pushed parts of those pieces may be overwritten then. Raises `WorkerLost` or
        `DeadlineExceeded`.
        """
        answers = [answer for piece in pieces for answer in self._take(piece)]
        return Pulled(
            max((answer.held_ns for answer in answers), default=0),
            max((answer.staleness for answer in answers), default=0),
        )

    def _take(self, piece: int) -> list[Pulled]:
        service, answers = self._service, []
        for works in (self._pushes[piece], self._pulls[piece]):
            for work in works:
                work.wait()
            works.clear()
        for rank in service.others:
            if not service.pieces_at(rank, (piece,)):
                continue
            parts = service.parts_of(self._inbox, piece, rank)
            words = self._answers[piece, rank]
            self._count("pulled_bytes", sum(map(num_bytes, (words, *parts))))
            if len(words):
                answers.append(read_answer(words))
                told = read_holdings(words, service.view.members)
                self._note(piece, rank, told)
                if size := read_copy_bytes(words):
                    self._keep_copy(piece, rank, size, told)
        own = self._host.collect(piece, self._inbox)
        if own is None:
            return answers
        answer, holdings = own
        self._note(piece, service.own, holdings)
        return [*answers, answer]

    def _keep_copy(self, piece: int, rank: int, size: int, holdings: Sequence[Holding]) -> None:
        service = self._service
        state = torch.empty(size, dtype=torch.uint8, device=HOST)
        service.receive_copy(state, piece, rank).wait()
        self._count("copied_bytes", size)
        servers = service.servers_at(rank, piece)
        for place, (server, holding) in enumerate(zip(servers, holdings, strict=True)):
            number = service.layout.number_of(piece, server)
            self.copies[number] = StateCopy(holding, state, place)

    def _note(self, piece: int, rank: int, holdings: Sequence[Holding]) -> None:
        for server, holding in zip(self._service.servers_at(rank, piece), holdings, strict=False):
            self.holdings[self._service.layout.number_of(piece, server)] = holding
