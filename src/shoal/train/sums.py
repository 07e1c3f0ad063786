"""Sums of gradients that begin in the backward pass: the executor of all-reduce.

Buckets, their hooks and their order are `train.gradient_buckets`'; with `overlap="next-forward"`
the waits and updates are put off layer by layer (`train.layerwise_updates`).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, final

import torch
from torch.optim import SparseAdam

from shoal.carriers import HOST
from shoal.errors import UsageError, ViewChanging
from shoal.strategies import Act, Adopt, SumGradients, Summed, Update
from shoal.train.agreement import Agreement
from shoal.train.executor import AbstractExecutor
from shoal.train.gradient_buckets import GradientBuckets
from shoal.train.handing_on import held
from shoal.train.layerwise_updates import LayerwiseUpdates

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from shoal.membership import Decision, View
    from shoal.strategies import AllReduce
    from shoal.train.replica import Replica


@final
class SumsExecutor(AbstractExecutor):
    """Averages gradients over all workers, with hooks on the parameters.

    Raises `UsageError` for an optimizer that takes no dense gradients.
    """

    def __init__(self, definition: AllReduce, replica: Replica) -> None:
        super().__init__(definition, replica)
        kind = type(replica.optimizer)
        if issubclass(kind, SparseAdam):
            message = (
                f"Averaged gradients are dense, and {kind.__name__} takes sparse ones only: use"
                " SGD, Adagrad or Adam, or a strategy that averages parameters."
            )
            raise UsageError(message)
        self._buckets = GradientBuckets(
            replica.model,
            replica.communicator,
            replica.member,
            replica.stopwatch,
            definition,
            replica.num_hosts,
            replica.noting,
            replica.samples,
        )
        self.use = self._buckets.use
        self._layerwise: LayerwiseUpdates | None = None
        if definition.overlap == "next-forward":
            replica.flat.check_apart("overlap='next-forward'")
            self._layerwise = LayerwiseUpdates(
                self._buckets, replica.optimizer, replica.model, replica.stepping
            )
            replica.flat.before_access = self._layerwise.settle
        self._buffers = [] if replica.member.is_fixed else held(replica.model.buffers())
        self._at_border = [buffer.detach().clone() for buffer in self._buffers]
        self._buckets.at_border = self.hand_on

    is_exact = True
    counts_each_step = False

    own_acts = (*AbstractExecutor.own_acts, SumGradients, Adopt)

    def come_in(self) -> Decision:
        """Begin in the present view, with the last sums if not all of its members have them."""
        while True:
            self._begin_in_view()
            decision = super().come_in()
            if decision.view.epoch == self._buckets.view.epoch:
                return decision

    def hand_on(self) -> None:
        """Give newcomers of the view the state they lack, with the buffers of the last border."""
        self._donor.hand_on(self, self._at_border)

    def catch_up(self, view: View) -> None:
        """Give and take the last sums, if some members of `view` lack them."""
        self._buckets.give_and_take(view)

    def _begin_in_view(self) -> None:
        while self._buckets.begin_in_view():
            pass

    def begin(self) -> None:
        """Note the statistics, which all workers have alike before the first step."""
        super().begin()
        self._buckets.statistics.note_alike()
        self._note_border()

    def _note_border(self) -> None:
        """Keep the buffers as they are between two steps: the next forward pass changes them."""
        if not self._buffers:
            return
        with torch.no_grad():
            for kept, buffer in zip(self._at_border, self._buffers, strict=True):
                kept.copy_(buffer)

    def report(self) -> int:
        """Return the number of passes for which this worker has received all sums."""
        return self._buckets.num_whole

    def install(self, view: View, rounds: Mapping[int, int]) -> None:
        """Go on in `view`, where all workers have the sums that any of them has."""
        super().install(view, rounds)
        furthest = [rank for rank in sorted(rounds) if rounds[rank] == view.from_step]
        donor = furthest[0] if len(furthest) < len(rounds) else None
        self._buckets.go_on(view.from_step, donor)

    def take_batch(self) -> None:
        """Leave taking the batch to the backward pass: gradients weigh as much as their batch."""

    def check(self) -> None:
        """Leave checking to the end of the step's backward pass, which checks more."""

    def do(self, act: Act) -> object:
        """Carry out one act; the averages of gradients have been under way since backward."""
        match act:
            case SumGradients(trains=True):
                self._end_backward()
            case SumGradients():
                return Summed(self._buckets.shadow(trains=False))
            case Update():
                self.update()
            case Adopt():
                self._adopt(act.steps)
            case _:
                raise TypeError(act)
        return None

    def _end_backward(self) -> None:
        """Make sure that there is a sum for this step's update.

        Without a backward pass here (a batch that was left out) this worker adds nothing to the
        sum, and makes the same update as the others.
        """
        if not self._buckets.end_step():
            self.settle()
            self._buckets.shadow(trains=True)

    def update(self) -> None:
        """Apply the update, now or layer by layer."""
        if self._layerwise is not None:
            self._layerwise.step(self._update)
        else:
            self._update()
        self._note_border()
        self.replica.count(f"group_size.{len(self.view)}")

    def settle(self) -> None:
        """Wait for all gradients and make the updates that are owed."""
        if self._layerwise is not None:
            self._layerwise.settle()

    def clearing(self, *, set_to_none: bool) -> AbstractContextManager[None]:
        """Return the context in which the user clears gradients: none under way is lost."""
        self._buckets.forget_failed_pass()
        if self._layerwise is None:
            return nullcontext()
        return self._layerwise.clearing(set_to_none=set_to_none)

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Let backward only add to the local gradients (all but the last micro-batch)."""
        self._buckets.enabled = False
        try:
            yield
        finally:
            self._buckets.enabled = True

    def end(self) -> None:
        """Finish the course, and take the hooks off."""
        if self._layerwise is not None:
            self._layerwise.remove()
        super().end()
        self._buckets.remove()

    def handed_on(self) -> dict[str, Any]:
        """Return what a newcomer takes over: the course's state, and the factors of `low_rank`."""
        factors = [each.handed_on() for each in self._buckets.low_rank]
        return super().handed_on() | {"low_rank": factors}

    def take_over(self, state: dict[str, Any]) -> None:
        """Go on, as a newcomer, from the state that another worker has `handed_on`."""
        for bucket, given in zip(self._buckets.low_rank, state["low_rank"], strict=True):
            bucket.take_over(given)
        super().take_over(state)

    def state_dict(self) -> dict[str, Any]:
        """Return the course's state, and the state of the low-rank gradients."""
        return super().state_dict() | {
            "low_rank": [each.state_dict() for each in self._buckets.low_rank]
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`; low-rank gradients begin anew if it holds nothing of them."""
        state = dict(state)
        for bucket, kept in zip(self._buckets.low_rank, state.pop("low_rank", ()), strict=False):
            bucket.load_state_dict(kept)
        super().load_state_dict(state)

    def _adopt(self, own_steps: int) -> None:
        """Take over the model of the worker with the most steps, if the numbers differ."""
        communicator, buffers = self.replica.communicator, self.replica.flat.buffers

        def furthest(view: View) -> list[Tensor]:
            if view.epoch != self._buckets.view.epoch and not self.replica.member.is_fixed:
                raise ViewChanging("Some may lack the last sums, and wait for them.")
            steps = torch.zeros(len(view), dtype=torch.int64, device=HOST)
            steps[view.place_of(communicator.rank)] = own_steps
            communicator.all_reduce(steps).wait()
            if int(steps.min()) == int(steps.max()):
                return buffers
            models = [flat.clone() for flat in buffers]
            for model in models:
                communicator.broadcast(model, view.members[int(steps.argmax())])
            return models

        adopted = Agreement(self.replica, "adopting").carry_out(furthest, self._begin_in_view)
        with torch.no_grad():
            for flat, model in zip(buffers, adopted, strict=True):
                flat.copy_(model)
