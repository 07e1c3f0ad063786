"""A worker's side of the parameter servers: push to all servers, pull from all, piece by piece.

Owns the order of the messages of one step (docs/papers.md, 4.2). All pulls are posted before
anything is pushed; every worker starts with the server after itself, so that servers are not all
met by the same crowd; the shards of its own process go by reference. Knows no model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from shoal.carriers import HOST
from shoal.strategies import Pulled
from shoal.train.servers.protocol import ANSWER_WORDS, Kind, Request, RequestWords, read_answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

    from shoal.comm import Work
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

        What gets lost of a pull keeps its value in `inbox`. `words` makes memory for a request;
        `count` is told of the bytes that go over the network, and where.
        """
        self._service, self._host = service, host
        self._outbox, self._inbox, self._count = outbox, inbox, count
        pieces, size = service.layout.pieces, len(service.serving)
        self._words = [words() for _ in pieces]
        """Memory for requests, by the first piece that each is for."""
        self._answers = torch.zeros((size, ANSWER_WORDS), dtype=torch.int64, device=HOST)
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
                    self._answers[service.server_of(rank)],
                    service.part_of(self._inbox, piece, rank),
                    piece,
                    rank,
                    is_last=kind is Kind.LEAVE,
                )
            ]

    def push(self, request: Request) -> None:
        """Send every server its parts of the pieces that `request` is for, and the request.

        The parts go first: the request says that they are there.
        """
        service, words = self._service, self._words[request.pieces.start]
        words.write(request)
        for rank in service.others:
            pieces = service.pieces_at(rank, request.pieces)
            for piece in pieces if request.kind is not Kind.SKIP else ():
                part = service.part_of(self._outbox, piece, rank)
                self._pushes[piece].append(service.send_push(part, piece, rank))
                self._count("pushed_bytes", _num_bytes(part))
            if pieces:
                self._pushes[request.pieces.start].append(
                    service.communicator.send(words.words, rank, channel=service.channels.requests)
                )
                self._count("pushed_bytes", _num_bytes(words.words))
        self._host.submit(request, self._outbox)

    def take(self, pieces: Iterable[int]) -> Pulled:
        """Return when the inbox holds the servers' weights of `pieces`, with the slowest answer.

        What has been pushed of them may be overwritten then. Raises `WorkerLost` or
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
            if service.pieces_at(rank, (piece,)):
                part = service.part_of(self._inbox, piece, rank)
                self._count("pulled_bytes", _num_bytes(part))
            if service.has_words(piece, rank):
                words = self._answers[service.server_of(rank)]
                self._count("pulled_bytes", _num_bytes(words))
                answers.append(read_answer(words))
        own = self._host.collect(piece, self._inbox)
        return answers if own is None else [*answers, own]


def _num_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
