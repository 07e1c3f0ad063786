"""Carries out an averaging plan on a tensor: partial all-reduce by messages among the members.

Owns the execution of `collectives.Plan`. Decides nothing about who sends what to whom.
(docs/papers.md, 3.2.)
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, TypeAlias

from shoal.carriers.gloo_messages import Kind, message_tag
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

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup, Work

    from shoal.carriers.guard import Waiting
    from shoal.carriers.mean import Mean

Transfer: TypeAlias = "tuple[Work, int]"
"""A message under way, and the rank at its other end."""


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
    """One execution of a plan: the mean of `own`, a member's flat tensor, comes to `out`.

    If `in_place` it comes to `own`, piece by piece: each is received in `out`, in a part that stays
    in the caches, and copied when it is whole, so that no element is ever a part of a number.
    `scratch` is for the plan's slots. Use it once.
    """

    def __init__(
        self,
        conversation: Conversation,
        mean: Mean,
        own: Tensor,
        out: Tensor,
        scratch: Tensor,
        *,
        in_place: bool,
    ) -> None:
        self._conversation = conversation
        self._mean = mean
        self._own, self._out, self._in_place = own, out, in_place
        self._sums = own if in_place else out
        self._scratch = scratch
        self._slot_length = 0
        self._combined: set[range] = set()
        """The pieces that this member has added up."""
        self._fetches: dict[int, Transfer] = {}
        self._fills: dict[range, Transfer] = {}
        self._arriving: dict[int, deque[tuple[range, Transfer, Tensor]]] = {}
        """The pieces on their way from each member that are to be copied, the oldest first."""
        self._num_taken = 0
        """The elements of `out` in which they are received."""
        self._sends: defaultdict[range, list[Transfer]] = defaultdict(list)

    def run(self, plan: Plan) -> None:
        """Carry out `plan` and wait for all of it."""
        self._slot_length = plan.slot_length
        self._at_once = max(1, plan.slots // max(1, len(self._mean.weights) - 1))
        for step in plan.steps:
            self._do(step)
        for arriving in self._arriving.values():
            while arriving:
                self._take_in(*arriving.popleft())
        for transfer in chain(self._fills.values(), *self._sends.values()):
            self._conversation.wait(transfer)

    @property
    def left(self) -> list[range]:
        """The pieces of which `out` has the mean and `own` has not."""
        return [] if self._in_place else [*self._fills, *self._combined]

    def _do(self, step: Step) -> None:
        talk = self._conversation
        match step:
            case Send(piece, member, phase):
                memory = self._sums if piece in self._combined else self._own
                self._sends[piece].append(talk.send(_part(memory, piece), member, phase))
            case Fetch(piece, member, slot):
                self._fetches[slot] = talk.receive(self._slot(slot, piece), member, Phase.REDUCE)
            case Fill(piece, member) if self._in_place:
                self._begin_fill(piece, member)
            case Fill(piece, member):
                self._fills[piece] = talk.receive(_part(self._out, piece), member, Phase.GATHER)
            case Combine(piece, sources, finish):
                parts = {member: self._arrived(slot, piece) for member, slot in sources}
                parts[self._mean.me] = _part(self._own, piece)
                in_order = sorted(parts.items(), key=itemgetter(0))
                self._mean.combine(_part(self._sums, piece), in_order, finish=finish)
                self._combined.add(piece)
            case AwaitSend(piece):
                for transfer in self._sends.pop(piece):
                    talk.wait(transfer)
            case AwaitFill():
                raise TypeError(step)  # a ring's, which passes on what it was sent: not averages'

    def _begin_fill(self, piece: range, member: int) -> None:
        """Start receiving a mean, where an earlier one of this member has been if many are open.

        A member's pieces do not become longer from one to the next.
        """
        arriving = self._arriving.setdefault(member, deque())
        if len(arriving) == self._at_once:
            done, transfer, memory = arriving.popleft()
            self._take_in(done, transfer, memory)
        else:
            memory = self._out[self._num_taken : self._num_taken + len(piece)]
            self._num_taken += len(piece)
        place = memory[: len(piece)]
        transfer = self._conversation.receive(place, member, Phase.GATHER)
        arriving.append((piece, transfer, place))

    def _take_in(self, piece: range, transfer: Transfer, memory: Tensor) -> None:
        self._conversation.wait(transfer)
        _part(self._own, piece).copy_(memory)

    def _arrived(self, slot: int, piece: range) -> Tensor:
        """Return what `slot` was to receive, once it is there."""
        self._conversation.wait(self._fetches.pop(slot))
        return self._slot(slot, piece)

    def _slot(self, slot: int, piece: range) -> Tensor:
        start = slot * self._slot_length
        return self._scratch[start : start + len(piece)]


def _part(flat: Tensor, piece: range) -> Tensor:
    return flat[piece.start : piece.stop]
