"""A worker's side of the sharded parameter server: push to all servers, pull from all, at once.

Owns the order of the messages of one step (docs/papers.md, 4.2). All pulls are posted before
anything is pushed; every worker starts with the server after itself, so that servers are not all
met by the same crowd; the shard of its own process goes by reference. Knows no model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from shoal.carriers import HOST
from shoal.strategies import Pulled
from shoal.train.servers.protocol import (
    ANSWER_WORDS,
    Channels,
    Kind,
    Request,
    read_answer,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from shoal.comm import Communicator, Work
    from shoal.train.servers.shard import ModelLayout
    from shoal.train.servers.shard_server import ShardServer


class ParameterClient:
    """Exchanges gradients for weights with every server.

    `outbox` and `inbox` are CPU tensors shaped like the model's flat tensors: the first holds what
    is pushed, the second receives what is pulled (it may be the model itself).
    """

    def __init__(
        self,
        communicator: Communicator,
        channels: Channels,
        layout: ModelLayout,
        server: ShardServer,
        request: Request,
        outbox: Sequence[Tensor],
        inbox: Sequence[Tensor],
        pull_bound: float = 0.0,
    ) -> None:
        """`server` is that of this process, `request` an empty request of the agreed size.

        Of what is pulled, the share `pull_bound` may get lost: it keeps its value in `inbox`.
        """
        self._communicator = communicator
        self._channels = channels
        self._layout = layout
        self._server, self._pull_bound = server, pull_bound
        self._request = request
        view = server.view
        own = view.place_of(communicator.rank)
        self._others = [*view.members[own + 1 :], *view.members[:own]]
        self._pushed = [_shard_of(outbox, layout, owner) for owner in view.members]
        self._pulled = [_shard_of(inbox, layout, owner) for owner in view.members]
        self._answers = torch.zeros(len(view), ANSWER_WORDS, dtype=torch.int64, device=HOST)
        remote = sum(_num_bytes(self._pushed[owner]) for owner in self._others)
        self.bytes_per_exchange = {
            "pushed_bytes": remote + len(self._others) * _num_bytes([request.words]),
            "pulled_bytes": remote + len(self._others) * ANSWER_WORDS * 8,
        }
        """What one push and one pull move over the network."""

    def exchange(self, kind: Kind, used: list[bool], hyperparameters: list[float]) -> Pulled:
        """Send every server a request of `kind`; return when `inbox` holds their answers.

        The answer returned is the slowest server's. Raises `WorkerLost` or `DeadlineExceeded`.
        """
        own = self._communicator.rank
        self._request.fill(kind, used, hyperparameters)
        pulls = [self._start_pull(owner, kind) for owner in self._others]
        pushes = [work for owner in self._others for work in self._start_push(owner, kind)]
        self._server.submit(self._request, self._pushed[own])
        for work in (*pushes, *(work for works in pulls for work in works)):
            work.wait()
        answers = [read_answer(self._answers[owner]) for owner in self._others]
        answers.append(self._server.collect(self._pulled[own]))
        return Pulled(
            max(answer.held_ns for answer in answers),
            max(answer.staleness for answer in answers),
        )

    def _start_pull(self, owner: int, kind: Kind) -> list[Work]:
        receive, bound = self._communicator.receive, 0.0 if kind is Kind.LEAVE else self._pull_bound
        return [
            receive(self._answers[owner], owner, channel=self._channels.answers),
            *(
                receive(
                    part,
                    owner,
                    channel=self._channels.pulls,
                    renew_bound=bound if lossy else 0.0,
                )
                for part, lossy, _ in self._layout.messages(self._pulled[owner], owner)
            ),
        ]

    def _start_push(self, owner: int, kind: Kind) -> list[Work]:
        """Send the contribution first: the request says that it is there."""
        send = self._communicator.send
        parts = [] if kind is Kind.SKIP else self._pushed[owner]
        return [
            *(
                send(part, owner, channel=self._channels.pushes, lossy=lossy, layers=layers)
                for part, lossy, layers in self._layout.messages(parts, owner)
            ),
            send(self._request.words, owner, channel=self._channels.requests),
        ]


def _shard_of(flats: Sequence[Tensor], layout: ModelLayout, owner: int) -> list[Tensor]:
    return [flat[layout.shard(number, owner)] for number, flat in enumerate(flats)]


def _num_bytes(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
