"""What one model's servers and their clients know alike, and how a part of a piece travels.

Both ends of a message say the same of it: its channel, and what of it may get lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from shoal.comm import Communicator, Layers, Work
    from shoal.groups import UpdateRule
    from shoal.train.model_pieces import ModelPieces
    from shoal.train.servers.protocol import Channels
    from shoal.train.servers.shard import ModelLayout


@dataclass(frozen=True, slots=True)
class Service:
    """One training run's parameter servers, as one worker sees them."""

    communicator: Communicator
    channels: Channels
    members: tuple[int, ...]
    """The ranks of the workers."""
    serving: tuple[int, ...]
    """The ranks whose processes are servers, too."""
    cut: ModelPieces
    layout: ModelLayout
    rule: UpdateRule
    pull_bound: float
    """The share of the weights that a worker pulls, the last time apart, that may get lost."""
    deadline_s: float

    @property
    def own(self) -> int:
        """This worker's rank."""
        return self.communicator.rank

    @property
    def others(self) -> list[int]:
        """The other ranks, beginning with the next: so servers are not all met by one crowd."""
        place = self.members.index(self.own)
        return [*self.members[place + 1 :], *self.members[:place]]

    def server_of(self, rank: int) -> int:
        """Return the number of the server in the process of `rank`."""
        return self.serving.index(rank)

    def pieces_at(self, rank: int, pieces: Sequence[int]) -> list[int]:
        """Return those of `pieces` of which the process of `rank` keeps a part."""
        if rank not in self.serving:
            return []
        server = self.server_of(rank)
        return [piece for piece in pieces if len(self.layout.shard(piece, server))]

    def part_of(self, flats: Sequence[Tensor], piece: int, rank: int) -> Tensor:
        """Return, of what is shaped like the flat tensors, what `rank` keeps of `piece`."""
        return self.layout.part_of(flats, piece, self.server_of(rank))

    def layers_of(self, piece: int, rank: int) -> Layers:
        """Return which layers of the model lie in what `rank` keeps of `piece`."""
        first = self.layout.pieces[piece].elements.start
        part = self.layout.shard(piece, self.server_of(rank))
        return self.cut.layers[piece].within(part.start - first, part.stop - first)

    # Gradients may get lost, which are summed, and parameters, which are pulled again. Averaged
    # buffers may not: half of one is none.

    def _is_lossy(self, piece: int) -> bool:
        return not self.layout.pieces[piece].is_statistics

    def _bound(self, piece: int, *, is_last: bool) -> float:
        return self.pull_bound if self._is_lossy(piece) and not is_last else 0.0

    def send_push(self, part: Tensor, piece: int, server: int) -> Work:
        """Start sending a contribution to the server of a rank."""
        return self.communicator.send(
            part,
            server,
            channel=self.channels.pushes[piece],
            lossy=self._is_lossy(piece),
            layers=self.layers_of(piece, server),
        )

    def receive_push(self, part: Tensor, piece: int, worker: int) -> Work:
        """Start receiving a contribution of a worker."""
        return self.communicator.receive(
            part, worker, channel=self.channels.pushes[piece], lossy=self._is_lossy(piece)
        )

    def has_words(self, piece: int, rank: int) -> bool:
        """Return whether the answer with the weights of `piece` has words.

        Those of one piece stand for all that the server of `rank` keeps: a message costs as much
        as moving some 100 KB.
        """
        return self.pieces_at(rank, range(piece + 1)) == [piece]

    def send_answer(
        self, words: Tensor, weights: Tensor, piece: int, worker: int, *, is_last: bool
    ) -> list[Work]:
        """Start sending an answer to a worker, its words only if it has some."""
        send, channel = self.communicator.send, self.channels.pulls[piece]
        bound, layers = self._bound(piece, is_last=is_last), self.layers_of(piece, self.own)
        works = [send(words, worker, channel=channel)] if self.has_words(piece, self.own) else []
        return [*works, send(weights, worker, channel=channel, renew_bound=bound, layers=layers)]

    def receive_answer(
        self, words: Tensor, weights: Tensor, piece: int, server: int, *, is_last: bool
    ) -> list[Work]:
        """Start receiving an answer from the server of a rank."""
        receive, channel = self.communicator.receive, self.channels.pulls[piece]
        bound = self._bound(piece, is_last=is_last)
        works = [receive(words, server, channel=channel)] if self.has_words(piece, server) else []
        return [*works, receive(weights, server, channel=channel, renew_bound=bound)]
