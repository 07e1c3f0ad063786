"""Carries out an averaging plan on a tensor: partial all-reduce by messages among the members.

Owns the execution of `collectives.Plan` and the arithmetic of the mean. Decides nothing about who
sends what to whom. (Research digest, section 3.2.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from shoal.collectives import (
    AwaitFill,
    AwaitSend,
    Combine,
    Fetch,
    Fill,
    Phase,
    Plan,
    Send,
    Step,
)
from shoal.runtime.gloo_messages import Kind, message_tag

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Work

    from shoal.runtime.guard import Waiting

Transfer: TypeAlias = "tuple[Work, int]"
"""A message under way, and the rank at its other end."""

BLOCK = 1 << 16
"""Elements that are added and divided in one go: they stay in a processor's own cache."""

WIDE_TYPES = (torch.float32, torch.float64)
"""Types in which sums are kept as they are."""

NARROW_TYPES = (torch.bfloat16, torch.float16)
"""Types summed in float32 and rounded once, so that a sum neither overflows nor loses digits."""


@dataclass(frozen=True, slots=True)
class Mean:
    """The arithmetic of a mean, with one positive whole weight per member."""

    weights: tuple[int, ...]
    me: int

    @property
    def weighted(self) -> bool:
        """Whether the weights differ."""
        return len(set(self.weights)) > 1

    @property
    def share(self) -> float:
        """The factor with which this member enters."""
        return self.weights[self.me] / sum(self.weights)

    def combine(
        self,
        target: Tensor,
        contributions: Iterable[tuple[int, Tensor]],
        count: int,
        *,
        finish: bool,
    ) -> None:
        """Add `count` contributions (member, tensor; overwritten) to `target`; divide if `finish`.

        Only products and sums of two, never fused, so that two members that exchange everything
        get the same bits on any processor.
        """
        weighted = self.weighted
        total = target if target.dtype in WIDE_TYPES else target.float()
        if weighted:
            total.mul_(self.weights[self.me])
        for number, (member, contribution) in enumerate(contributions, start=1):
            part = contribution if contribution.dtype in WIDE_TYPES else contribution.float()
            if weighted:
                part.mul_(self.weights[member])
            if finish and number == count:
                self._add_and_divide(total, part)
            else:
                total.add_(part)
        if total is not target:
            target.copy_(total)

    def _add_and_divide(self, total: Tensor, part: Tensor) -> None:
        """Add the last contribution and divide, block by block while a block is in the cache."""
        divisor = sum(self.weights) if self.weighted else len(self.weights)
        for start in range(0, total.numel(), BLOCK):
            block = total[start : start + BLOCK]
            block.add_(part[start : start + BLOCK])
            if divisor & (divisor - 1):
                block.div_(divisor)
            else:  # a power of two, where multiplying gives the same, only faster
                block.mul_(1 / divisor)


class Conversation:
    """The messages of one average: among its members, kept apart from all others by `meaning`.

    For use in `Guard.run`: it raises torch's own errors, and waits through `waiting`.
    """

    def __init__(
        self,
        group: ProcessGroup,
        members: Sequence[int],
        channel: int,
        meaning: tuple[object, ...],
        waiting: Waiting,
    ) -> None:
        self._group = group
        self._members = members
        self.waiting = waiting
        self._tags = {
            Phase.REDUCE: message_tag(Kind.REDUCE, channel, members, meaning),
            Phase.GATHER: message_tag(Kind.GATHER, channel, members, meaning),
        }

    def send(self, tensor: Tensor, member: int, phase: Phase) -> Transfer:
        """Start sending `tensor` to the group's `member`."""
        rank = self.waiting.peer = self._members[member]
        return self._group.send([tensor], rank, self._tags[phase]), rank

    def receive(self, tensor: Tensor, member: int, phase: Phase) -> Transfer:
        """Start receiving into `tensor` from the group's `member`."""
        rank = self.waiting.peer = self._members[member]
        return self._group.recv([tensor], rank, self._tags[phase]), rank

    def wait(self, transfer: Transfer) -> None:
        """Block until `transfer` is done."""
        self.waiting.wait(*transfer)


class Exchange:
    """One execution of a plan on `buffer`, with `scratch` for its slots. Use it once."""

    def __init__(
        self, conversation: Conversation, mean: Mean, buffer: Tensor, scratch: Tensor
    ) -> None:
        self._conversation = conversation
        self._mean = mean
        self._buffer = buffer
        self._scratch = scratch
        self._slot_length = 0
        self._fetches: dict[int, Transfer] = {}
        self._fills: dict[range, Transfer] = {}
        self._sends: defaultdict[range, list[Transfer]] = defaultdict(list)

    def run(self, plan: Plan) -> None:
        """Carry out `plan` and wait for all of it."""
        self._slot_length = plan.slot_length
        for step in plan.steps:
            self._do(step)
        for transfer in chain(self._fills.values(), *self._sends.values()):
            self._conversation.wait(transfer)

    def _do(self, step: Step) -> None:
        talk = self._conversation
        match step:
            case Send(piece, member, phase):
                self._sends[piece].append(talk.send(self._part(piece), member, phase))
            case Fetch(piece, member, slot):
                self._fetches[slot] = talk.receive(self._slot(slot, piece), member, Phase.REDUCE)
            case Fill(piece, member):
                self._fills[piece] = talk.receive(self._part(piece), member, Phase.GATHER)
            case Combine(piece, sources, finish):
                arriving = self._arriving(piece, sources)
                self._mean.combine(self._part(piece), arriving, len(sources), finish=finish)
            case AwaitSend(piece):
                for transfer in self._sends.pop(piece):
                    talk.wait(transfer)
            case AwaitFill(piece):
                talk.wait(self._fills.pop(piece))

    def _arriving(
        self, piece: range, sources: tuple[tuple[int, int], ...]
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield each contribution to `piece` once it has arrived, while the next ones arrive."""
        for member, slot in sources:
            self._conversation.wait(self._fetches.pop(slot))
            yield member, self._slot(slot, piece)

    def _part(self, piece: range) -> Tensor:
        return self._buffer[piece.start : piece.stop]

    def _slot(self, slot: int, piece: range) -> Tensor:
        start = slot * self._slot_length
        return self._scratch[start : start + len(piece)]
