"""Real models that learn while virtual time passes: one replica per worker, on real data.

A learner (`learning`): parameters change in the order of virtual time, so a gradient is as stale as
the simulated cluster makes it. Batches, recipe and initial parameters are those that `shoal train`
gives the same ranks. Owns the replicas and the curve; knows no network and no strategy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, final

import torch

from shoal.memory import check_room
from shoal.sim.training.learning import AbstractLearner, CurvePoint
from shoal.sim.training.low_rank_means import LowRankMeans
from shoal.sim.training.model import Layer, ModelSize
from shoal.sim.training.served_weights import ServedWeights, WorkersModels, mean_of
from shoal.transport import FLOAT32, FLOAT32_AS_BFLOAT16, FLOAT32_AS_FLOAT16
from shoal.workloads import (
    OuterSGD,
    averaged_state,
    batches,
    check_scalable,
    evaluate,
    loss_of,
    make_model,
    make_optimizer,
    meets,
    model_elements,
    steps_of_the_mean,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from shoal.workloads import Dataset, Recipe

_PICOSECONDS = 1e12
_ELEMENT_BYTES = 4
_WHILE_LOOKING = 2
"""Times the models: how far each is from the mean, and the squares of that."""
_SENT_AS = {
    FLOAT32: torch.float32,
    FLOAT32_AS_BFLOAT16: torch.bfloat16,
    FLOAT32_AS_FLOAT16: torch.float16,
}


@final
class Replicas(AbstractLearner):
    """Replicas of `model` for each worker.

    The last `newcomers` of the workers come later. What is looked at are those who take part.

    The curve gets a point at the beginning and after every `look_s` seconds of virtual time, from
    the first `samples` test samples (None: all). `stop_at` is a value of the metric at which
    `met_at` notes the time; with `until_shared` only when at least half of every worker's updates
    were in an exchange that is over, since models that learn alone meet it too. Without
    `judges_rank0` the curve does not say what rank 0's model comes to by itself (NaN), and a look
    takes two thirds of the time. Gradients of low rank have `rank_share` of the rank that the
    strategy asks for, and at least 1: for a model that stands in for a larger one. Raises
    `ResourceError` if memory has no room for so many.
    """

    def __init__(
        self,
        dataset: Dataset,
        model: str,
        recipe: Recipe,
        workers: int,
        *,
        seed: int,
        look_s: float,
        samples: int | None = None,
        stop_at: float | None = None,
        until_shared: bool = False,
        judges_rank0: bool = True,
        newcomers: int = 0,
        rank_share: float = 1.0,
    ) -> None:
        check_replicas(dataset, model, recipe, workers)
        self._judges_rank0, self._until_shared = judges_rank0, until_shared
        self._dataset, self._samples, self._stop_at = dataset, samples, stop_at
        self._workers = workers
        self._models = [make_model(model, dataset, seed) for _ in range(workers)]
        self._rows = _share_memory(self._models)
        self._trained = sum(each.numel() for each in self._models[0].parameters())
        """Columns of parameters; those of batch-norm statistics follow."""
        self._copies: Tensor | None = None
        """Holds for each worker what is averaged while it learns on."""
        self._copied: Tensor
        """The copies as they were when they were taken."""
        self._outer: dict[int, OuterSGD] = {}
        """The outer optimizer of each worker, where there are any."""
        self._recipe = recipe
        self._low_rank: LowRankMeans | None = None
        self._rank_share = rank_share
        self._served: Tensor | None = None
        """Holds for each worker what it pulls."""
        self._optimizers: list[Optimizer] = [make_optimizer(m, recipe) for m in self._models]
        first = workers - newcomers
        self._members = list(range(first))
        self._data = [
            # whoever comes later draws what the first ones do not all have
            batches(dataset, rank, max(first, rank + 1), recipe.batch_size, seed=seed)
            for rank in range(workers)
        ]
        self._judge = make_model(model, dataset, seed)
        self._judge_row = _share_memory([self._judge])
        self._steps = [0] * workers
        self._updates = [0] * workers
        """Counts for each worker how many gradients of its own have changed a model or the
        server's."""
        self._shared = [0] * workers
        """Counts for each worker how many of these `_updates` its latest finished exchange held."""
        self._copied_at = [0] * workers
        """Counts for each worker how many of its `_updates` its copy of the model holds."""
        self._look_every, self._next_look = max(1, round(look_s * _PICOSECONDS)), 0
        self._curve: list[CurvePoint] = []
        self.met_at: float | None = None
        """Virtual seconds at which the mean of all models met `stop_at`."""
        self.met_alone_at: float | None = None
        """Virtual seconds at which the mean met `stop_at`, before enough was exchanged to count."""
        self.last_loss = [0.0] * workers
        """The loss of each worker's latest batch, before the step."""
        self._look(0)

    @property
    def is_satisfied(self) -> bool:
        """Whether the mean of all models has met `stop_at`, and that counts."""
        return self.met_at is not None

    @property
    def _is_shared(self) -> bool:
        """Whether all have learnt, and none of them more since its latest exchange than before."""
        pairs = zip(self._updates, self._shared, strict=True)
        return self._workers < 2 or all(0 < made <= 2 * shared for made, shared in pairs)

    @property
    def num_parameters(self) -> int:
        """Elements of the model that are averaged, batch-norm statistics included."""
        return int(self._rows.shape[1])

    @property
    def gradient_elements(self) -> int:
        """Elements of the model's gradient: those of its trained parameters."""
        return self._trained

    @property
    def curve(self) -> Sequence[CurvePoint]:
        """What was seen of learning, from the beginning to the latest look."""
        return self._curve

    @property
    def size(self) -> ModelSize:
        """How large the model is, a layer for each of its parameters; computing goes by size."""
        layers = (
            Layer(name, each.numel(), each.numel() / self._trained, (tuple(each.shape),))
            for name, each in self._models[0].named_parameters()
        )
        return ModelSize("learning", tuple(layers))

    def update(self, rank: int, scale_for: int = 1) -> None:
        """Compute a gradient and make a local step."""
        self.compute_gradient(rank)
        optimizer = self._optimizers[rank]
        if scale_for > 1:
            check_scalable(optimizer)
            with steps_of_the_mean(optimizer, scale_for):
                optimizer.step()
        else:
            optimizer.step()
        self._updates[rank] += 1

    def compute_gradient(self, rank: int) -> None:
        """Compute a gradient of the parameters as they are."""
        inputs, targets = next(self._data[rank])
        self._optimizers[rank].zero_grad()
        loss = loss_of(self._models[rank], inputs, targets, self._dataset.task)
        self.last_loss[rank] = float(loss.detach())
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own

    def average(
        self, members: Sequence[int], shares: Sequence[float], *, copies: bool = False
    ) -> None:
        """Replace the members' parameters, statistics included, by their weighted mean."""
        rows = self._rows_of(copies=copies)
        mine = rows[list(members)]
        rows[list(members)] = _weights(members, shares).to(mine.dtype) @ mine
        if len(members) > 1:
            self._note_shared(members, self._copied_at if copies else self._updates)

    def _note_shared(self, members: Sequence[int], updates: Sequence[int]) -> None:
        for rank in members:
            self._shared[rank] = updates[rank]

    @property
    def state_per_parameter(self) -> float:
        """Elements that an optimizer keeps for each trained one, after a step."""
        most = max(map(self._state_elements, range(self._workers)))
        return most / self._trained

    def _state_elements(self, rank: int) -> int:
        kept = map(averaged_state, self._optimizers[rank].state.values())
        return sum(tensor.numel() for tensors in kept for tensor in tensors.values())

    def average_state(self, members: Sequence[int], shares: Sequence[float]) -> None:
        """Replace the state of the members' optimizers by its weighted mean, name by name."""
        weights = _weights(members, shares)
        columns = zip(*(self._models[rank].parameters() for rank in members), strict=True)
        for parameters in columns:
            kept = [
                averaged_state(self._optimizers[rank].state[parameter])
                for rank, parameter in zip(members, parameters, strict=True)
            ]
            for name in kept[0]:
                values = torch.stack([each[name] for each in kept])
                mean = torch.einsum("m,m...->...", weights.to(values.dtype), values)
                for each in kept:
                    each[name].copy_(mean)

    def anchor(self, rank: int) -> None:
        """Keep a worker's trained parameters as they are."""
        self._outer[rank] = OuterSGD(self._rows[rank, : self._trained])

    def outer_step(
        self, rank: int, learning_rate: float, momentum: float, *, copies: bool = False
    ) -> None:
        """Make the outer step from the worker's parameters, or its copy's; statistics stay."""
        row = self._rows_of(copies=copies)[rank, : self._trained]
        self._outer[rank].step(row, learning_rate, momentum)

    def average_outer(self, members: Sequence[int], shares: Sequence[float]) -> None:
        """Replace the members' anchors and velocities by their weighted means."""
        weights = _weights(members, shares)
        outers = [self._outer[rank] for rank in members]
        for kept in ([each.anchor for each in outers], [each.velocity for each in outers]):
            mean = weights.to(kept[0].dtype) @ torch.stack(kept)
            for each in kept:
                each.copy_(mean)

    def copy(self, rank: int, wire: int = FLOAT32) -> None:
        """Take a copy of a worker's parameters, statistics included, rounded as `wire` says."""
        if self._copies is None:
            self._copies, self._copied = (self._rows.clone() for _ in range(2))
        self._copies[rank] = self._copied[rank] = self._rows[rank].to(_SENT_AS[wire])
        self._copied_at[rank] = self._updates[rank]

    def add_changes(self, rank: int) -> None:
        """Add to a worker's parameters what averaging has changed in its copy."""
        self._rows[rank] += self._rows_of(copies=True)[rank] - self._copied[rank]

    def _rows_of(self, *, copies: bool) -> Tensor:
        if not copies:
            return self._rows
        assert self._copies is not None  # there is one of whoever averages a copy
        return self._copies

    def gradient(self, rank: int) -> NDArray[np.float32]:
        """Return the latest gradient of a worker; what has none counts as zero."""
        parts = [
            torch.zeros_like(each) if each.grad is None else each.grad
            for each in self._models[rank].parameters()
        ]
        return torch.cat([part.detach().flatten() for part in parts]).numpy()

    def replace_gradient(self, rank: int, gradient: NDArray[np.float32]) -> None:
        """Put these values in the gradient's place."""
        parameters = list(self._models[rank].parameters())
        parts = torch.split(torch.from_numpy(gradient), [each.numel() for each in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter)

    def parameters(self, rank: int, *, copies: bool = False) -> NDArray[np.float32]:
        """Return a worker's trained parameters, or its copy's."""
        return self._rows_of(copies=copies)[rank, : self._trained].numpy().copy()

    def replace_parameters(
        self, rank: int, parameters: NDArray[np.float32], *, copies: bool = False
    ) -> None:
        """Put these values in the parameters' place."""
        self._rows_of(copies=copies)[rank, : self._trained] = torch.from_numpy(parameters)

    def low_rank_mean(self, members: Sequence[int], rank: int) -> list[NDArray[np.float32]]:
        """Return the mean of the members' gradients, summed as factors of `rank`, for each."""
        if self._low_rank is None:
            shapes = [each.shape for each in self._models[0].parameters()]
            self._low_rank = LowRankMeans(shapes, max(1, round(rank * self._rank_share)))
        found = {each: torch.from_numpy(self.gradient(each)) for each in members}
        return [self._low_rank.mean(found).numpy()] * len(members)

    def update_by_mean(
        self, members: Sequence[int], gradients: Sequence[NDArray[np.float32]] = ()
    ) -> None:
        """Let the members step by the mean of their gradients, and average their statistics."""
        for rank, gradient in zip(members, gradients, strict=False):
            self.replace_gradient(rank, gradient)
        if len(members) > 1 and not gradients:
            means = self._mean_gradients(members)
            for rank in members:
                for parameter, mean in zip(self._models[rank].parameters(), means, strict=True):
                    parameter.grad = mean
        for rank in members:
            self._optimizers[rank].step()
            self._updates[rank] += 1
        if len(members) > 1:
            self._note_shared(members, self._updates)
        statistics = self._rows[list(members), self._trained :]
        self._rows[list(members), self._trained :] = statistics.mean(dim=0)

    def served_part(self, part: int, of: int) -> ServedWeights:
        """Return memory for one of `of` parts; of the first one pushes are counted."""
        if self._served is None:
            self._served = self._rows.clone()
        about = self._models, self._rows, self._served, self._trained, self._recipe
        return ServedWeights(
            WorkersModels(*about), part, of, self._count_pushes if part == 0 else _nothing
        )

    def _count_pushes(self, ranks: Sequence[int]) -> None:
        for rank in ranks:
            self._updates[rank] += 1

    def pull(self, rank: int) -> None:
        """Copy what has been set aside."""
        self._rows[rank] = self._served_to(rank)
        self._note_shared([rank], self._updates)

    def served(self, rank: int) -> NDArray[np.float32]:
        """Return the trained parameters that have been set aside, as an array of its own."""
        return self._served_to(rank)[: self._trained].numpy().copy()

    def _served_to(self, rank: int) -> Tensor:
        assert self._served is not None  # somebody has been served
        return self._served[rank]

    def attend(self, members: Sequence[int]) -> None:
        """Look at these workers' models from now on."""
        self._members = list(members)

    def hand_on(self, rank: int, taker: int) -> None:
        """Copy parameters, statistics and the optimizer's state."""
        self._rows[taker] = self._rows[rank]
        self._optimizers[taker].load_state_dict(deepcopy(self._optimizers[rank].state_dict()))
        for counts in (self._steps, self._updates, self._shared):
            counts[taker] = counts[rank]

    def note_step(self, rank: int, now: int) -> None:
        """Count the step, and look at the models when it is time."""
        self._steps[rank] += 1
        if now >= self._next_look:
            self._look(now)

    def finish(self, now: int) -> None:
        """Look at the models as they are in the end."""
        if not self._curve or self._curve[-1].seconds < now / _PICOSECONDS:
            self._look(now)

    def _mean_gradients(self, ranks: Sequence[int]) -> list[Tensor | None]:
        columns = zip(*(self._models[rank].parameters() for rank in ranks), strict=True)
        return [mean_of([each.grad for each in column]) for column in columns]

    def look(self, now: int, samples: int | None = None) -> CurvePoint:
        """Evaluate the models as they are, on the first `samples` test samples (None: all)."""
        members = self._members
        rows = self._rows[members]
        mean = rows.mean(dim=0)
        updates = [self._updates[rank] for rank in members]
        return CurvePoint(
            seconds=now / _PICOSECONDS,
            mean_step=sum(self._steps[rank] for rank in members) / len(members),
            averaged=self._evaluate(mean, samples),
            rank0=self._evaluate(rows[0], samples) if self._judges_rank0 else math.nan,
            consensus_distance=float((rows - mean).square().sum(dim=1).mean().sqrt()),
            steps_behind=max(updates) - min(updates),
        )

    def _look(self, now: int) -> None:
        point = self.look(now, self._samples)
        self._curve.append(point)
        self._next_look = now - now % self._look_every + self._look_every
        target = self._stop_at
        if target is None or self.met_at is not None:
            return
        if not meets(self._dataset.task, point.averaged, target):
            return
        if self._is_shared or not self._until_shared:
            self.met_at = point.seconds
        elif self.met_alone_at is None:
            self.met_alone_at = point.seconds

    def _evaluate(self, row: Tensor, samples: int | None) -> float:
        self._judge_row[0] = row
        return evaluate(self._judge, self._dataset, max_samples=samples)


def check_replicas(
    dataset: Dataset, model: str, recipe: Recipe, workers: int, copies: int = 0
) -> None:
    """Raise `ResourceError` if memory has no room for replicas of `model`, `copies` more of each.

    Of a worker there are the model, its gradient and the optimizer's state, and two more while all
    are looked at. Raises `UsageError` if the model cannot read the data set.
    """
    state = 2 if recipe.optimizer == "adam" else int(recipe.momentum > 0)
    size = model_elements(model, dataset) * _ELEMENT_BYTES
    check_room(
        (workers + 1) * size * (2 + state + copies + _WHILE_LOOKING),
        f"{workers:,} replicas of {model}, of {size / 1e6:,.1f} MB each, with what they learn by,",
        "simulate fewer workers, or a smaller model",
    )


def _share_memory(models: Sequence[nn.Module]) -> Tensor:
    """Let every model's parameters and statistics lie in a row of one matrix; return it.

    Buffers that are no floating-point numbers stay where they are: nobody averages a count.
    """
    parts = [[*m.parameters(), *(b for b in m.buffers() if b.is_floating_point())] for m in models]
    rows = torch.stack([torch.cat([p.detach().flatten() for p in each]) for each in parts])
    for row, tensors in zip(rows, parts, strict=True):
        place = 0
        for tensor in tensors:
            end = place + tensor.numel()
            tensor.data = row[place:end].view_as(tensor)
            place = end
    return rows


def _weights(members: Sequence[int], shares: Sequence[float]) -> Tensor:
    """Return what each member weighs in a mean; alike where no shares are given."""
    return torch.tensor(list(shares) or [1 / len(members)] * len(members))


def _nothing(_: Sequence[int]) -> None:
    pass
