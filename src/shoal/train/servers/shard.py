"""One server's share of the model: weights, the optimizer over them, and the round's gradients.

Owns the arithmetic of a parameter server (docs/papers.md, 4.2) for the elements it keeps. Knows no
message, no clock and no thread: `shard_server` says when to do what. Everything lies on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from shoal.carriers import HOST
from shoal.collectives import pieces_within, split_evenly
from shoal.comm import Layers
from shoal.errors import UsageError
from shoal.train.servers.hyperparameters import Hyperparameters, rebuild_optimizer

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer


@dataclass(frozen=True, slots=True)
class TrainedSpan:
    """The place of one trained parameter among the model's flat tensors."""

    flat: int
    """The number of the flat tensor."""

    elements: range
    """Its elements there."""

    group: int
    """Its parameter group in the user's optimizer."""


class ShardMessage(NamedTuple):
    """A part of a shard on its way to or from its server."""

    part: Tensor
    lossy: bool
    """Whether some of it may get lost."""
    layers: Layers


@dataclass(frozen=True, slots=True)
class ModelLayout:
    """What all workers know of the model: how it is cut into shards and what lies in them."""

    sizes: tuple[int, ...]
    """Elements of each flat tensor."""

    trained: tuple[TrainedSpan, ...]
    """The trained parameters, in the same order on every worker."""

    averaged: tuple[range, ...]
    """The elements of each flat tensor that are averaged buffers (batch-norm statistics)."""

    num_shards: int

    def shard(self, flat: int, owner: int) -> slice:
        """Return the elements of flat tensor `flat` that server `owner` keeps."""
        part = split_evenly(self.sizes[flat], self.num_shards)[owner]
        return slice(part.start, part.stop)

    def messages(self, parts: Sequence[Tensor], owner: int) -> list[ShardMessage]:
        """Cut what is shaped like shard `owner` into messages, and say which may lose something.

        Gradients may, which are summed, and parameters, which are pulled again. Averaged buffers
        may not: half of one is none.
        """
        messages = []
        for flat, part in enumerate(parts):
            start, buffers = self.shard(flat, owner).start, self.averaged[flat]
            cuts = [min(max(0, edge - start), len(part)) for edge in (buffers.start, buffers.stop)]
            spans = ((0, cuts[0], True), (*cuts, False), (cuts[1], len(part), True))
            messages += [
                ShardMessage(
                    part[first:last], lossy, self._layers(flat, start + first, start + last)
                )
                for first, last, lossy in spans
                if first < last
            ]
        return messages

    def _layers(self, flat: int, first: int, last: int) -> Layers:
        """Return the layers of some elements of a flat tensor: each parameter counts as one."""
        spans = [(s.elements.start, k) for k, s in enumerate(self.trained) if s.flat == flat]
        starts, numbers = zip(*sorted(spans), strict=True) if spans else ((0,), (0,))
        return Layers((0, *starts[1:]), numbers, len(self.trained)).within(first, last)


class ParameterShard:
    """Weights of one shard, and how contributions of gradients become updates of them.

    A contribution is a list of one-dimensional CPU tensors shaped like `weights`: gradients where
    trained parameters lie, present values where averaged buffers lie; the rest is ignored. A
    parameter that no contribution to an update used is skipped by the optimizer, as torch skips
    parameters whose gradient is None; if only some used it, the others count as zero.
    """

    def __init__(
        self, flats: Sequence[Tensor], layout: ModelLayout, owner: int, optimizer: Optimizer
    ) -> None:
        """Copy shard `owner` out of the model's `flats` and make an optimizer like `optimizer`."""
        self._layout, self._owner = layout, owner
        self._shards = shards = [layout.shard(flat, owner) for flat in range(len(flats))]
        self.weights = [
            torch.empty(shard.stop - shard.start, dtype=flat.dtype, device=HOST)
            for flat, shard in zip(flats, shards, strict=True)
        ]
        """The shard of each flat tensor."""
        self.load_weights(flats)
        self._sums = [torch.zeros_like(weights) for weights in self.weights]
        self.num_contributions = 0
        self._used = torch.zeros(len(layout.trained), dtype=torch.bool, device=HOST)
        self._members: list[tuple[int, Tensor, Tensor]] = []
        by_group: list[list[Tensor]] = [[] for _ in optimizer.param_groups]
        for flat, shard in enumerate(shards):
            here = [number for number, span in enumerate(layout.trained) if span.flat == flat]
            spans = [layout.trained[number].elements for number in here]
            for piece in pieces_within(spans, range(shard.start, shard.stop)):
                weight = self.weights[flat][piece.start : piece.stop]
                total = self._sums[flat][piece.start : piece.stop]
                self._members.append((here[piece.span], weight, total))
                by_group[layout.trained[here[piece.span]].group].append(weight)
        self._buffers = [
            (
                self.weights[flat][piece.start : piece.stop],
                self._sums[flat][piece.start : piece.stop],
            )
            for flat, shard in enumerate(shards)
            for piece in pieces_within([layout.averaged[flat]], range(shard.start, shard.stop))
        ]
        self._optimizer = rebuild_optimizer(optimizer, by_group)
        self._hyperparameters = Hyperparameters(optimizer.param_groups)

    def add(self, contribution: Sequence[Tensor], used: Tensor) -> None:
        """Add one worker's `contribution` to the next update.

        `used` is a boolean per trained parameter of the model: whether it had a gradient.
        """
        for total, part in zip(self._sums, contribution, strict=True):
            if self.num_contributions:
                total.add_(part)
            else:
                total.copy_(part)
        self._used = self._used | used if self.num_contributions else used.clone()
        self.num_contributions += 1

    def apply(self, hyperparameters: list[float], *, divisor: float, share: float) -> None:
        """Make one update with the sum of the contributions divided by `divisor`.

        `share` is the weight, up to 1, with which the mean of the contributed buffers replaces
        those kept here. `hyperparameters` are those of the workers, see `Hyperparameters`.
        """
        self._hyperparameters.write(self._optimizer.param_groups, hyperparameters)
        for weight, total in self._buffers:
            mean = total / self.num_contributions
            # a mask may have been filled with infinities, between which there is nothing
            moved = torch.lerp(weight, mean, share)
            weight.copy_(torch.where(weight.isinf() | mean.isinf(), mean, moved))
        if divisor != 1:
            for total in self._sums:
                total.div_(divisor)
        for number, weight, total in self._members:
            weight.grad = total if self._used[number] else None
        self._optimizer.step()
        self.num_contributions = 0

    def messages(self, contribution: Sequence[Tensor]) -> list[ShardMessage]:
        """Cut a contribution into the messages it comes in; see `ModelLayout.messages`."""
        return self._layout.messages(contribution, self._owner)

    def load_weights(self, flats: Sequence[Tensor]) -> None:
        """Copy this shard's weights out of the model's `flats`."""
        for weights, flat, shard in zip(self.weights, flats, self._shards, strict=True):
            weights.copy_(flat[shard])

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of weights, optimizer state and options; no half-collected update."""
        return {
            "weights": [weights.clone() for weights in self.weights],
            "optimizer": _cloned(self._optimizer.state_dict()),
            "hyperparameters": dict(self._hyperparameters.written),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`, keeping contributions that wait for their update."""
        saved = state["weights"]
        if [tuple(w.shape) for w in saved] != [tuple(w.shape) for w in self.weights]:
            raise UsageError(
                "The checkpoint holds another shard than this server's; load every worker's own"
                " checkpoint, with the same model and number of workers."
            )
        for weights, values in zip(self.weights, saved, strict=True):
            weights.copy_(values)
        self._optimizer.load_state_dict(_cloned(state["optimizer"]))
        # With them the options were written: a worker's that differ from these are news.
        self._hyperparameters.written.update(state["hyperparameters"])


def _cloned(value: Any) -> Any:
    """Return `value` with every tensor in it copied."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _cloned(item) for key, item in value.items()}
    return (
        type(value)(_cloned(item) for item in value) if isinstance(value, list | tuple) else value
    )
