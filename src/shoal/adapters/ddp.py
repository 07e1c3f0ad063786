"""A communication hook for DistributedDataParallel over the backend "shoal".

Without it, the backend sees buckets of numbers. The hook knows which layers a bucket holds, so its
messages get the classes of what is in them (docs/papers.md, 1.6), its tags for importance
follow the bucket from one iteration to the next, and its bound on losses is the model's own:

    torch.distributed.init_process_group("shoal")
    model = DistributedDataParallel(model)
    shoal.adapters.ddp.register(model, loss_bound=0.1)

DDP waits for all buckets at the end of backward. So front layers overtake rear ones on the wire,
but the next forward pass starts no earlier for it: what pays is that a switch drops and queues by
class. For front layers to start early use `shoal.DistributedOptimizer(..., overlap="next-forward")`
in the place of DDP.
"""

# No `from __future__ import annotations`: DDP compares the hook's annotations with its own types.
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # exported, but not in its __all__
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from shoal.adapters.torch_process_group import ShoalProcessGroup
from shoal.carriers import check_transport
from shoal.errors import UsageError
from shoal.train import ForwardOrder
from shoal.transport import classes_of
from shoal.wire import SumOptions


class HookState:
    """What the hook knows of one DDP model from bucket to bucket; for `register_comm_hook`.

    `loss_bound` is the share of each rank's gradients that may get lost, `holes` what a lost part
    counts as and `wire` the type that they are sent as, as for `shoal.DistributedOptimizer`; by
    default all are as the process group was made, that is by SHOAL_LOSS_BOUND, SHOAL_HOLES and
    SHOAL_WIRE. Raises `UsageError` if the model is not DDP's, does not run on the backend "shoal",
    or the bound, `holes` or `wire` mean nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        loss_bound: float | None = None,
        holes: str | None = None,
        wire: str | None = None,
    ) -> None:
        if not isinstance(model, DistributedDataParallel):
            message = (
                f"Give the hook a DistributedDataParallel model, not a {type(model).__name__}."
            )
            raise UsageError(message)
        group = model.process_group
        if not isinstance(group, ShoalProcessGroup):
            message = (
                f"Shoal's DDP hook needs the backend 'shoal', and this model's is"
                f" {dist.get_backend(group)!r}; call init_process_group('shoal')."
            )
            raise UsageError(message)
        self.group = group
        self.loss_bound = group.sums.loss_bound if loss_bound is None else loss_bound
        policy = check_transport("shoal", self.loss_bound, holes or "zero", wire)
        self._policy = group.sums.policy if holes is None else policy
        self._wire = group.sums.wire if wire is None else wire
        self.iteration = 0
        """How many backward passes have been synchronized."""
        self._order = ForwardOrder(model.module)

    def options_of(self, bucket: GradBucket) -> SumOptions:
        """Return how a bucket is to be summed: its class, its bound and its name for tags."""
        self._order.settle()
        parameters = bucket.parameters()
        starts = [0, *accumulate(p.numel() for p in parameters[:-1])]
        layers = classes_of(*self._order.layers_of(parameters, starts))
        options = replace(self.group.sums, layers=layers, loss_bound=0.0, wire=self._wire)
        if not self.loss_bound:
            return options
        # DDP makes other buckets in its second iteration: what is in one is what names it.
        name = ("ddp", *map(id, parameters))
        return replace(options, loss_bound=self.loss_bound, policy=self._policy, tensor=name)


def hook(state: HookState, bucket: GradBucket) -> Future[torch.Tensor]:
    """Start averaging a bucket of gradients; the future is done when the transfer is."""
    work = state.group.average(bucket.buffer(), state.options_of(bucket))
    if bucket.is_last():
        state.iteration += 1
    return work.get_future().then(_only)


def register(
    model: DistributedDataParallel,
    *,
    loss_bound: float | None = None,
    holes: str | None = None,
    wire: str | None = None,
) -> HookState:
    """Make `model` average its gradients with the hook; see `HookState` for the arguments.

    To be called once, before the first forward pass. Returns the hook's state.
    """
    state = HookState(model, loss_bound=loss_bound, holes=holes, wire=wire)
    model.register_comm_hook(state, hook)
    return state


def _only(averaged: Future[list[torch.Tensor]]) -> Any:
    """Return the one tensor; raises what ended the transfer."""
    return averaged.value()[0]
