"""A server's part of a model that learns: its weights, and how gradients become updates of them.

As `train.servers.shard`, beside the replicas whose gradients they are (`sim.training.replicas`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast, final

import torch

from shoal.collectives import pieces_within, split_evenly
from shoal.sim.training.served_part import AbstractServedPart
from shoal.workloads import averaged_state, make_optimizer_of

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from shoal.workloads import Recipe


@dataclass(frozen=True, slots=True)
class WorkersModels:
    """The models of all workers, as servers see them."""

    models: Sequence[nn.Module]
    rows: Tensor
    """A row for each worker: its trained parameters, then its averaged buffers."""
    served: Tensor
    """What has been set aside for each worker, in rows alike."""
    trained: int
    """Columns of parameters that are trained."""
    recipe: Recipe

    def columns_of(self, part: int, of: int) -> tuple[range, range]:
        """Return the columns of parameters and of averaged buffers in one of so many parts."""
        trained = split_evenly(self.trained, of)[part]
        buffers = split_evenly(self.rows.shape[1] - self.trained, of)[part]
        return trained, range(self.trained + buffers.start, self.trained + buffers.stop)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A stretch of one parameter that lies in a part."""

    elements: slice
    """Its elements in the parameter."""
    workers: Sequence[nn.Parameter]
    """Each worker's parameter."""
    weight: Tensor
    """The weights of it that are served."""

    def mean_gradient(self, ranks: Sequence[int]) -> Tensor | None:
        """Return the mean of what workers have computed of it; None if nobody has."""
        gradients = [self.workers[rank].grad for rank in ranks]
        return mean_of(
            [None if each is None else each.flatten()[self.elements] for each in gradients]
        )


@final
class ServedWeights(AbstractServedPart):
    """One of `of` parts of the model that `workers` train, with the first one's weights.

    `note` is told of the workers whose gradients an update was made with.
    """

    def __init__(
        self, workers: WorkersModels, part: int, of: int, note: Callable[[Sequence[int]], None]
    ) -> None:
        self._workers, self._note = workers, note
        trained, buffers = workers.columns_of(part, of)
        self._trained = slice(trained.start, trained.stop)
        self._buffers = slice(buffers.start, buffers.stop)
        self.weights = workers.rows[0, self._trained].clone()
        self.statistics = workers.rows[0, self._buffers].clone()
        self._stretches = list(self._stretches_in(trained))
        views = [each.weight for each in self._stretches]
        self._optimizer: Optimizer | None = None
        if views:  # of a small model among many, some have nothing
            self._optimizer = make_optimizer_of(views, workers.recipe)

    def _stretches_in(self, part: range) -> list[_Stretch]:
        columns = list(zip(*(each.parameters() for each in self._workers.models), strict=True))
        spans, start = [], 0
        for column in columns:
            spans.append(range(start, start + column[0].numel()))
            start = spans[-1].stop
        found = []
        for each in pieces_within(spans, part):
            first = part.start + each.start - spans[each.span].start
            elements = slice(first, first + each.stop - each.start)
            weight = self.weights[each.start : each.stop]
            found.append(_Stretch(elements, columns[each.span], weight))
        return found

    @property
    def state_bytes(self) -> float:
        """The size of what the optimizer keeps from one update to the next, in bytes."""
        if self._optimizer is None:
            return 0.0
        kept = map(averaged_state, self._optimizer.state.values())
        return float(sum(each.nbytes for tensors in kept for each in tensors.values()))

    def update(self, ranks: Sequence[int], scale: float, share: float) -> None:
        """Make the optimizer's step at `scale` of its rate."""
        self._note(ranks)
        for each in self._stretches:
            each.weight.grad = each.mean_gradient(ranks)
        if self._optimizer is not None:
            for group in self._optimizer.param_groups:
                group["lr"] = self._workers.recipe.learning_rate * scale
            self._optimizer.step()
        buffers = self._workers.rows[list(ranks), self._buffers].mean(dim=0)
        self.statistics.lerp_(buffers, share)

    def set_aside(self, rank: int) -> None:
        """Copy weights and statistics to what the worker pulls."""
        self._workers.served[rank, self._trained] = self.weights
        self._workers.served[rank, self._buffers] = self.statistics

    def go_on_from_model(self, rank: int) -> None:
        """Copy the weights out of a worker's row."""
        self.weights.copy_(self._workers.rows[rank, self._trained])
        self.statistics.copy_(self._workers.rows[rank, self._buffers])

    def go_on_from(self, other: AbstractServedPart) -> None:
        """Copy the weights of another process."""
        assert isinstance(other, ServedWeights)
        self.weights.copy_(other.weights)
        self.statistics.copy_(other.statistics)

    def state(self) -> object:
        """Return a copy of what the optimizer keeps."""
        return None if self._optimizer is None else deepcopy(self._optimizer.state_dict())

    def load_state(self, state: object) -> None:
        """Let the optimizer go on with a copy of `state`."""
        if self._optimizer is not None:
            self._optimizer.load_state_dict(deepcopy(cast("dict[str, Any]", state)))


def mean_of(gradients: Sequence[Tensor | None]) -> Tensor | None:
    """Return the mean, a missing gradient counting as zero; None if all are missing."""
    there = [each for each in gradients if each is not None]
    if not there:
        return None
    return torch.stack(there).sum(dim=0) / len(gradients)
