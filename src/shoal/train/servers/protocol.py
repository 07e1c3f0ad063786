"""Messages between workers and parameter servers: what is on the wire, and on which channels.

A request is a fixed-size vector of 64-bit words that any worker may send at any time. A push is
followed by its contribution, one message per flat tensor, into memory the server has prepared since
its last answer. An answer is a short vector of words, then the server's weights, cut like a
contribution. With a bound on pulls, a part of the weights may not come and keeps its older value
at the worker; not in the answer to LEAVE, and not of averaged buffers. A worker has one request
under way at each server.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Literal

import torch

from shoal.carriers import HOST
from shoal.errors import ProtocolError
from shoal.strategies import Pulled

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Channels:
    """The channels of one training run."""

    requests: int
    """Requests, worker to server."""

    pushes: int
    """Contributions, worker to server."""

    answers: int
    """Answers, server to worker."""

    pulls: int
    """Weights, server to worker."""


ANSWER_WORDS = 2

_BYTES_PER_WORD = 8


class Kind(IntEnum):
    """What a worker asks a server for. Every request is answered with the server's weights."""

    PUSH = 0
    """Take my contribution; answer when I may go on."""

    SKIP = 1
    """I have nothing to contribute to this step (mixed precision skips it); answer likewise."""

    LEAVE = 2
    """I make no more steps; answer when nobody does. Followed by a contribution to be ignored,
    which takes up the memory prepared for the next one."""

    @classmethod
    def of(cls, word: str) -> Kind:
        """Return the kind of an exchange (`strategies.acts.Exchange`)."""
        return cls[word.upper()]

    @property
    def word(self) -> Literal["push", "skip", "leave"]:
        """What a shard calls it."""
        return _WORDS[self]


_WORDS: Final[dict[Kind, Literal["push", "skip", "leave"]]] = {
    Kind.PUSH: "push",
    Kind.SKIP: "skip",
    Kind.LEAVE: "leave",
}


@dataclass(frozen=True, slots=True)
class Request:
    """One worker's request, as one vector of words and views of it."""

    words: Tensor
    """What is sent: int64 on the CPU."""

    _used: Tensor
    _values: Tensor

    @classmethod
    def allocate(cls, num_parameters: int, num_hyperparameters: int) -> Request:
        """Return an empty request of the size that this model and optimizer need."""
        mask_words = -(-num_parameters // _BYTES_PER_WORD)
        words = torch.zeros(1 + mask_words + num_hyperparameters, dtype=torch.int64, device=HOST)
        return cls(
            words,
            words[1 : 1 + mask_words].view(torch.uint8)[:num_parameters],
            words[1 + mask_words :].view(torch.float64),
        )

    @property
    def kind(self) -> Kind:
        """What is asked for. Raises `ProtocolError` for a word that is no kind."""
        word = int(self.words[0])
        if word not in list(Kind):
            message = f"A worker sent the parameter server a request of unknown kind {word}."
            raise ProtocolError(message)
        return Kind(word)

    @property
    def used(self) -> Tensor:
        """Whether each trained parameter of the model had a gradient: a copy, one bool each."""
        return self._used != 0

    @property
    def hyperparameters(self) -> list[float]:
        """The worker's options, see `Hyperparameters`."""
        return self._values.tolist()

    def fill(self, kind: Kind, used: list[bool], hyperparameters: list[float]) -> None:
        """Overwrite the request."""
        self.words[0] = int(kind)
        self._used.copy_(torch.tensor(used, dtype=torch.bool, device=HOST))
        self._values.copy_(torch.tensor(hyperparameters, dtype=torch.float64, device=HOST))


def fill_answer(words: Tensor, answer: Pulled) -> None:
    """Write what a server says with the weights it sends into `ANSWER_WORDS` words."""
    words[0], words[1] = answer.held_ns, answer.staleness


def read_answer(words: Tensor) -> Pulled:
    """Return what a server's words say."""
    return Pulled(int(words[0]), int(words[1]))
