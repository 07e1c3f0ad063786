"""The facts that one model's servers and clients share, and how a part of a piece is sent.

Both ends of a message agree on its channel, and on how much of it may get lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from shoal.comm import Layers
from shoal.strategies import keeper_of
from shoal.train.servers.protocol import num_answer_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from shoal.comm import Communicator, Work
    from shoal.groups import UpdateRule
    from shoal.membership import View
    from shoal.train.model_pieces import ModelPieces
    from shoal.train.servers.protocol import Channels
    from shoal.train.servers.shard import ModelLayout

_IN_TURN: Final = Layers((0,), (1,), 2)
"""The layers of messages that go after the front layers', and else in the order they came."""


@dataclass(frozen=True, slots=True)
class Service:
    """One training run's parameter servers in one view, as one worker sees them."""

    communicator: Communicator
    channels: Channels
    view: View
    places: tuple[int, ...]
    """The rank of each server. A process that has taken over from a lost one has several."""
    cut: ModelPieces
    layout: ModelLayout
    rule: UpdateRule
    pull_bound: float
    """The share of the pulled weights that may get lost, in all pulls but the last."""
    deadline_s: float
    tells_holdings: bool
    """Whether answers say which pushes the weights hold: others may have to go on from them."""

    @property
    def own(self) -> int:
        """This worker's rank."""
        return self.communicator.rank

    @property
    def others(self) -> list[int]:
        """The other ranks, beginning with the next: so not all workers meet one server at once."""
        members = self.view.members
        place = members.index(self.own)
        return [*members[place + 1 :], *members[:place]]

    @property
    def keeper(self) -> int | None:
        """The rank that keeps copies of this worker's optimizer state."""
        return keeper_of(self.view, self.own) if self.tells_holdings else None

    def servers_at(self, rank: int, piece: int) -> list[int]:
        """Return the servers in the process of `rank` that keep a part of `piece`."""
        return [
            server
            for server, place in enumerate(self.places)
            if place == rank and len(self.layout.shard(piece, server))
        ]

    def pieces_at(self, rank: int, pieces: Sequence[int]) -> list[int]:
        """Return the `pieces` of which the process of `rank` keeps a part."""
        return [piece for piece in pieces if self.servers_at(rank, piece)]

    def parts_of(self, flats: Sequence[Tensor], piece: int, rank: int) -> list[Tensor]:
        """Return the parts of `piece` that `rank` keeps, out of `flats` shaped like the model's."""
        servers = self.servers_at(rank, piece)
        return [self.layout.part_of(flats, piece, server) for server in servers]

    def _layers_of(self, piece: int, server: int) -> Layers:
        """Return which layers of the model lie in the part of `piece` that `server` keeps."""
        first = self.layout.pieces[piece].elements.start
        part = self.layout.shard(piece, server)
        return self.cut.layers[piece].within(part.start - first, part.stop - first)

    # Gradients, which are summed, and parameters, which are pulled again, may get lost. Averaged
    # buffers may not: half of a statistic is of no use.

    def _is_lossy(self, piece: int) -> bool:
        return not self.layout.pieces[piece].is_statistics

    def _bound(self, piece: int, *, is_last: bool) -> float:
        return self.pull_bound if self._is_lossy(piece) and not is_last else 0.0

    def send_push(
        self, parts: Sequence[Tensor], piece: int, rank: int, *, in_turn: bool
    ) -> list[Work]:
        """Start sending a contribution to the servers of a rank.

        `in_turn` sends it after earlier pushes, instead of before them if its layers are needed
        first: the gradients that backward has first are applied and their weights on the way back
        while the rest comes. The model's first piece overtakes all the same.
        """
        front = min(p for p in range(len(self.layout.pieces)) if self._is_lossy(p))
        return [
            self.communicator.send(
                part,
                rank,
                channel=self.channels.pushes[piece],
                lossy=self._is_lossy(piece),
                layers=_IN_TURN if in_turn and piece != front else self._layers_of(piece, server),
            )
            for part, server in zip(parts, self.servers_at(rank, piece), strict=True)
        ]

    def receive_push(self, parts: Sequence[Tensor], piece: int, worker: int) -> list[Work]:
        """Start receiving a contribution of a worker."""
        receive, channel = self.communicator.receive, self.channels.pushes[piece]
        lossy = self._is_lossy(piece)
        return [receive(part, worker, channel=channel, lossy=lossy) for part in parts]

    def num_words(self, piece: int, rank: int) -> int:
        """Return how many words the answer of `rank` with the weights of `piece` has.

        Unless words say which pushes the weights hold, the words of one piece stand for all pieces
        that a process keeps: a message costs as much as moving some 100 KB.
        """
        if self.tells_holdings:
            return num_answer_words(len(self.servers_at(rank, piece)), len(self.view))
        return num_answer_words() if self.pieces_at(rank, range(piece + 1)) == [piece] else 0

    def send_answer(
        self,
        words: Tensor,
        weights: Sequence[Tensor],
        copy: Tensor,
        piece: int,
        worker: int,
        *,
        is_last: bool,
    ) -> list[Work]:
        """Start sending an answer to a worker: `words` and `copy` only if they are not empty."""
        send, channel = self.communicator.send, self.channels.pulls[piece]
        bound = self._bound(piece, is_last=is_last)
        servers = self.servers_at(self.own, piece)
        return [
            *([send(words, worker, channel=channel)] if len(words) else []),
            *(
                send(
                    part,
                    worker,
                    channel=channel,
                    renew_bound=bound,
                    layers=self._layers_of(piece, server),
                )
                for part, server in zip(weights, servers, strict=True)
            ),
            *([send(copy, worker, channel=channel)] if len(copy) else []),
        ]

    def receive_answer(
        self, words: Tensor, weights: Sequence[Tensor], piece: int, rank: int, *, is_last: bool
    ) -> list[Work]:
        """Start receiving an answer from the servers of a rank."""
        receive, channel = self.communicator.receive, self.channels.pulls[piece]
        bound = self._bound(piece, is_last=is_last)
        return [
            *([receive(words, rank, channel=channel)] if len(words) else []),
            *(receive(part, rank, channel=channel, renew_bound=bound) for part in weights),
        ]

    def receive_copy(self, copy: Tensor, piece: int, rank: int) -> Work:
        """Start receiving a copy of optimizer state, which comes after an answer of `rank`."""
        return self.communicator.receive(copy, rank, channel=self.channels.pulls[piece])
