"""Messages between workers and parameter servers: what is on the wire, and on which channels.

A model is cut into pieces (`train.model_pieces`), and every server keeps a part of each: a shard. A
push of a shard is one message, into memory that the server has prepared since its last answer. A
request, a fixed-size vector of 64-bit words that any worker may send at any time, says that the
pushes of some pieces are on their way. The answer is the weights of every shard. A short vector of
words precedes the first shard's weights, or, in a job that goes on without lost workers, every
shard's, for then the words say which pushes the weights hold. Now and then, one worker gets a copy
of the optimizer's state with them. With a bound on pulls, a part of the weights may get lost and
keeps its older value at the worker; not in the answer to LEAVE, and not of averaged buffers. A
worker has one push under way at each shard.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Literal

import torch

from shoal.carriers import HOST
from shoal.errors import ProtocolError, UsageError
from shoal.strategies import Holding, Pulled

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Channels:
    """The channels of one training run. Messages of one piece do not wait for another's."""

    requests: int
    """Requests, worker to server."""

    pushes: range
    """Contributions, worker to server, by piece."""

    pulls: range
    """Answers and weights, server to worker, by piece."""

    @classmethod
    def among(cls, reserved: range, num_pieces: int) -> Channels:
        """Return the channels for a model of `num_pieces`, out of `reserved` ones."""
        requests, *_ = reserved
        pushes = range(requests + 1, requests + 1 + num_pieces)
        pulls = range(pushes.stop, pushes.stop + num_pieces)
        if pulls.stop > reserved.stop:
            raise UsageError(
                "The model's parameters are of more types, and on more devices, than parameter"
                " servers can keep apart: use another strategy."
            )
        return cls(requests, pushes, pulls)


_ANSWER_WORDS = 2
_HEAD_WORDS = 3
_BYTES_PER_WORD = 8


class Kind(IntEnum):
    """The kinds of request to a server. Every request is answered with the shards' weights."""

    PUSH = 0
    """Take my contributions; answer when I may go on."""

    SKIP = 1
    """I have nothing to contribute to this step (mixed precision skips it); answer likewise."""

    LEAVE = 2
    """I make no more steps; answer when nobody does. Followed by contributions to be ignored,
    which take up the memory prepared for the next ones."""

    @classmethod
    def of(cls, word: str) -> Kind:
        """Return the kind of an exchange (`strategies.acts.Exchange`)."""
        return cls[word.upper()]

    @property
    def word(self) -> Literal["push", "skip", "leave"]:
        """The shard's word for this kind."""
        return _WORDS[self]


_WORDS: Final[dict[Kind, Literal["push", "skip", "leave"]]] = {
    Kind.PUSH: "push",
    Kind.SKIP: "skip",
    Kind.LEAVE: "leave",
}


@dataclass(frozen=True, slots=True)
class Request:
    """One worker's request to the shards of some pieces."""

    kind: Kind
    pieces: range
    used: Collection[int]
    """The trained parameters, by their numbers, that had a gradient: at least those in `pieces`."""
    hyperparameters: list[float]
    """The worker's options, see `Hyperparameters`."""


@dataclass(frozen=True, slots=True)
class RequestWords:
    """The memory of a request on its way: one vector of words and views of it."""

    words: Tensor
    """The words that are sent: int64 on the CPU."""

    _used: Tensor
    _values: Tensor

    @classmethod
    def allocate(cls, num_parameters: int, num_hyperparameters: int) -> RequestWords:
        """Return memory of the size that this model and optimizer need."""
        values = _HEAD_WORDS + -(-num_parameters // _BYTES_PER_WORD)
        words = torch.zeros(values + num_hyperparameters, dtype=torch.int64, device=HOST)
        return cls(
            words,
            words[_HEAD_WORDS:values].view(torch.uint8)[:num_parameters],
            words[values:].view(torch.float64),
        )

    def write(self, request: Request) -> None:
        """Overwrite the memory with `request`."""
        pieces = request.pieces
        head = [int(request.kind), pieces.start, pieces.stop]
        self.words[:_HEAD_WORDS].copy_(torch.tensor(head, dtype=torch.int64, device=HOST))
        self._used.zero_()
        self._used[list(request.used)] = 1
        values = request.hyperparameters
        self._values.copy_(torch.tensor(values, dtype=torch.float64, device=HOST))

    def read(self) -> Request:
        """Return the request in the memory. Raises `ProtocolError` for a word that is no kind."""
        kind, start, stop = self.words[:_HEAD_WORDS].tolist()
        if kind not in list(Kind):
            message = f"A worker sent the parameter server a request of unknown kind {kind}."
            raise ProtocolError(message)
        used = self._used.nonzero().flatten().tolist()
        return Request(Kind(kind), range(start, stop), used, self._values.tolist())


def num_answer_words(shards: int = 0, members: int = 0) -> int:
    """Return the number of words of an answer about so many shards' pushes of so many members."""
    return _ANSWER_WORDS + (1 + shards * (1 + members) if shards else 0)


def fill_answer(
    words: Tensor,
    answer: Pulled,
    copy_bytes: int,
    holdings: Sequence[Holding],
    members: Sequence[int],
) -> None:
    """Write the words that a server sends with the weights, as far as there are `words` for them.

    A copy of its optimizer's state comes after the weights if `copy_bytes` is not 0.
    """
    said = [answer.held_ns, answer.staleness, copy_bytes]
    for each in holdings:
        said += [each.version, *(each.pushes.get(rank, 0) for rank in members)]
    words.copy_(torch.tensor(said[: len(words)], dtype=torch.int64, device=HOST))


def read_answer(words: Tensor) -> Pulled:
    """Return the answer in a server's words."""
    return Pulled(int(words[0]), int(words[1]))


def read_copy_bytes(words: Tensor) -> int:
    """Return the size of the copy of optimizer state that comes after the weights; 0: none."""
    return int(words[_ANSWER_WORDS]) if len(words) > _ANSWER_WORDS else 0


def read_holdings(words: Tensor, members: Sequence[int]) -> list[Holding]:
    """Return which pushes the weights of an answer hold, by shard, as far as the words say it."""
    said, size = words[_ANSWER_WORDS + 1 :].tolist(), 1 + len(members)
    return [
        Holding(said[start], dict(zip(members, said[start + 1 : start + size], strict=True)))
        for start in range(0, len(said), size)
    ]
