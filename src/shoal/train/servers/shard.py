"""One shard: a server's part of a piece of the model, with its optimizer and the round's gradients.

Owns the arithmetic of a parameter server (docs/papers.md, 4.2) for the elements it keeps. Knows no
message, no clock and no thread: `shard_server` decides when. Everything lies on the CPU.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from shoal.carriers import HOST
from shoal.collectives import pieces_within, split_evenly
from shoal.errors import UsageError
from shoal.train.servers.hyperparameters import Hyperparameters, rebuild_optimizer
from shoal.train.servers.slices import cut

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from shoal.train.servers.slices import Slice


@dataclass(frozen=True, slots=True)
class TrainedSpan:
    """The place of one trained parameter among the model's flat tensors."""

    flat: int
    """The number of the flat tensor."""

    elements: range
    """Its elements there."""

    group: int
    """Its parameter group in the user's optimizer."""


@dataclass(frozen=True, slots=True)
class PieceSpan:
    """The place of one piece among the model's flat tensors."""

    flat: int
    elements: range
    is_statistics: bool
    """Whether it holds averaged buffers (batch-norm statistics); else it holds parameters."""


@dataclass(frozen=True)
class ModelLayout:
    """The layout that all workers know: how the model is cut into shards and what lies in them."""

    pieces: tuple[PieceSpan, ...]

    trained: tuple[TrainedSpan, ...]
    """The trained parameters, in the same order on every worker."""

    num_servers: int

    def shard(self, piece: int, server: int) -> range:
        """Return the elements of its flat tensor that `server` keeps of `piece`; maybe none.

        Every server keeps an equal part of each piece, so a piece comes from all of them at once.
        """
        return self._shards[piece][server]

    @cached_property
    def _shards(self) -> list[list[range]]:
        return [
            [
                each.elements[part.start : part.stop]
                for part in split_evenly(len(each.elements), self.num_servers)
            ]
            for each in self.pieces
        ]

    @property
    def numbers(self) -> list[int]:
        """The numbers of all shards that are not empty."""
        return [
            self.number_of(piece, server)
            for piece, parts in enumerate(self._shards)
            for server, part in enumerate(parts)
            if len(part)
        ]

    def number_of(self, piece: int, server: int) -> int:
        """Return the number of a shard among all of the model."""
        return piece * self.num_servers + server

    def trained_in(self, piece: int) -> list[int]:
        """Return the numbers of the trained parameters in `piece`; each is in one piece only."""
        span = self.pieces[piece]
        return [
            number
            for number, each in enumerate(self.trained)
            if each.flat == span.flat and each.elements.start in span.elements
        ]

    def part_of(self, flats: Sequence[Tensor], piece: int, server: int) -> Tensor:
        """Return the part of `piece` that `server` keeps, out of flat tensors like the model's."""
        elements = self.shard(piece, server)
        return flats[self.pieces[piece].flat][elements.start : elements.stop]


@dataclass(frozen=True, slots=True)
class _Member:
    """The part of one trained parameter that a shard keeps."""

    number: int
    """The parameter's number among the trained ones."""

    elements: range
    """Its elements that are here, in the order in which they lie in memory."""

    weights: Tensor
    sum: Tensor


class ParameterShard:
    """Weights of one shard, and how contributions of gradients become updates of them.

    A contribution is a one-dimensional CPU tensor shaped like `weights`: for averaged buffers their
    present values; else gradients where trained parameters lie, and the rest is ignored. A
    parameter that no contribution to an update used is skipped by the optimizer, as torch skips
    parameters whose gradient is None; if only some contributions used it, the others count as zero.
    """

    def __init__(
        self,
        flats: Sequence[Tensor],
        layout: ModelLayout,
        piece: int,
        server: int,
        optimizer: Optimizer,
    ) -> None:
        """Copy a shard out of the model's `flats` and make an optimizer like `optimizer`."""
        self._layout, self._piece, self._server = layout, piece, server
        self.is_statistics = layout.pieces[piece].is_statistics
        elements = layout.shard(piece, server)
        dtype = flats[layout.pieces[piece].flat].dtype
        self.weights = torch.empty(len(elements), dtype=dtype, device=HOST)
        self.load_weights(flats)
        self._sum = torch.zeros_like(self.weights)
        self.num_contributions = 0
        self._used: set[int] = set()
        self._members: list[_Member] = []
        by_group: list[list[Tensor]] = [[] for _ in optimizer.param_groups]
        here = [] if self.is_statistics else layout.trained_in(piece)
        spans = [layout.trained[number].elements for number in here]
        for part in pieces_within(spans, elements):
            number, first = here[part.span], elements.start - spans[part.span].start
            member = _Member(
                number,
                range(first + part.start, first + part.stop),
                self.weights[part.start : part.stop],
                self._sum[part.start : part.stop],
            )
            self._members.append(member)
            by_group[layout.trained[number].group].append(member.weights)
        self._optimizer = rebuild_optimizer(optimizer, by_group)
        self._hyperparameters = Hyperparameters(optimizer.param_groups)

    def add(self, contribution: Tensor, used: Collection[int]) -> None:
        """Add one worker's `contribution` to the next update.

        `used` are the numbers of the trained parameters that had a gradient.
        """
        if self.num_contributions:
            self._sum.add_(contribution)
            self._used.update(used)
        else:
            self._sum.copy_(contribution)
            self._used = set(used)
        self.num_contributions += 1

    def apply(self, hyperparameters: list[float], *, divisor: float, share: float) -> None:
        """Make one update with the sum of the contributions divided by `divisor`.

        `share` is the weight, up to 1, with which the mean of the contributed buffers replaces the
        buffers kept here. `hyperparameters` are those of the workers, see `Hyperparameters`.
        """
        if self.is_statistics:
            self._replace(share)
        else:
            self._update(hyperparameters, divisor)
        self.num_contributions = 0

    def _replace(self, share: float) -> None:
        mean = self._sum / self.num_contributions
        # a mask may have been filled with infinities, which cannot be interpolated
        moved = torch.lerp(self.weights, mean, share)
        self.weights.copy_(torch.where(self.weights.isinf() | mean.isinf(), mean, moved))

    def _update(self, hyperparameters: list[float], divisor: float) -> None:
        self._hyperparameters.write(self._optimizer.param_groups, hyperparameters)
        if divisor != 1:
            self._sum.div_(divisor)
        for each in self._members:
            each.weights.grad = each.sum if each.number in self._used else None
        self._optimizer.step()

    def load_weights(self, flats: Sequence[Tensor]) -> None:
        """Copy this shard's weights out of the model's `flats`."""
        self.weights.copy_(self._layout.part_of(flats, self._piece, self._server))

    def take_over(self, parameters: Sequence[Tensor], optimizer: Optimizer) -> None:
        """Go on with what `optimizer` knows of these trained parameters, of this shard's elements.

        Raises `UsageError` for state that cannot be cut.
        """
        for each in self._members:
            parameter = parameters[each.number]
            if state := optimizer.state.get(parameter):
                self._optimizer.state[each.weights] = cut(state, parameter, each.elements)

    def slices(self, numbers: Sequence[int]) -> list[Slice]:
        """Return a copy of the weights and the optimizer's state, by parameter.

        `numbers` are those by which the user's optimizer knows the trained parameters.
        """
        return [
            {
                "parameter": numbers[each.number],
                "start": each.elements.start,
                "weights": each.weights.clone(),
                "state": _cloned(dict(self._optimizer.state.get(each.weights, {}))),
            }
            for each in self._members
        ]

    def counted(self) -> list[tuple[int, str, Any]]:
        """Return what the optimizer itself has changed in its groups: group, name and value."""
        trained_here = {self._layout.trained[each.number].group for each in self._members}
        return [
            each
            for each in self._hyperparameters.changed(self._optimizer.param_groups)
            if each[0] in trained_here
        ]

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of weights, optimizer state and options; no half-collected update."""
        return {"weights": self.weights.clone(), **_cloned(self.optimizer_state())}

    @property
    def has_state(self) -> bool:
        """Whether the optimizer keeps anything from one update to the next."""
        return any(self._optimizer.state.values())

    def optimizer_state(self) -> dict[str, Any]:
        """Return the optimizer's state and the options it was last told, as they lie here."""
        return {
            "optimizer": self._optimizer.state_dict(),
            "hyperparameters": dict(self._hyperparameters.written),
        }

    def check_fits(self, state: dict[str, Any]) -> None:
        """Raise `UsageError` if `state` is another shard's."""
        if state["weights"].shape != self.weights.shape:
            raise UsageError(ANOTHER_SHARD)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`, keeping contributions that wait for their update.

        If `state` has no optimizer state, the optimizer's begins anew.
        """
        self.weights.copy_(state["weights"])
        if "optimizer" in state:
            self._optimizer.load_state_dict(_cloned(state["optimizer"]))
            # The options come with it: a worker's options that differ from them are changes.
            self._hyperparameters.written.update(state["hyperparameters"])

    def drop_contributions(self) -> None:
        """Forget the contributions that have been added to the next update."""
        self.num_contributions = 0


ANOTHER_SHARD = (
    "The checkpoint holds another shard than this server's; load every worker's own checkpoint,"
    " with the same model and number of workers."
)


def _cloned(value: Any) -> Any:
    """Return `value` with every tensor in it copied."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _cloned(item) for key, item in value.items()}
    return (
        type(value)(_cloned(item) for item in value) if isinstance(value, list | tuple) else value
    )
