"""Cross-iteration overlap: a layer's gradients are waited for when the next forward reaches it.

`step()` returns with the exchanges under way. Every module whose parameters are in a bucket waits,
before its next forward pass, for that bucket's mean gradient, and the wrapped optimizer then steps
with those parameters alone, under the options (learning rate and others) that it had at `step()`.
So the exchange of the rear layers hides behind the forward pass of the front layers, and it pays
that the transport carries front layers first (docs/papers.md, 1.6).

The result is bit for bit that of waiting at the end of backward. Other code that touches a
parameter, a gradient or a statistic that is under way waits for its bucket
(`train.awaited_tensors`); code that needs all gradients (clipping by their norm, a gradient
scaler's check) so waits for all, and that step is an ordinary one. A compiled model waits for all
when it begins. Reading parameters without torch's Python interface is refused.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import RLock
from typing import TYPE_CHECKING, Any

import torch

from shoal.carriers import unasked
from shoal.train.awaited_tensors import Awaited, await_values, check_can_await, release
from shoal.train.layer_hooks import LayerHooks
from shoal.train.other_holders import OtherHolders
from shoal.train.partial_steps import Options, PartialSteps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch import Tensor, nn

    from shoal.train.gradient_buckets import GradientBuckets


class LayerwiseUpdates:
    """Puts off the waits and the updates of one replica's steps until they are needed.

    Makes `buckets` leave the waiting to it. An optimizer must treat every parameter by itself; one
    that keeps state in its parameter groups is refused at its first step, since that state would
    advance once per bucket.
    """

    def __init__(
        self,
        buckets: GradientBuckets,
        optimizer: torch.optim.Optimizer,
        model: nn.Module,
        stepping: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._buckets, self._optimizer = buckets, optimizer
        self._steps = PartialSteps(optimizer, stepping)
        named = [*model.named_parameters(), *model.named_buffers()]
        for name, tensor in named:
            check_can_await(tensor, name)
        self._others = OtherHolders(named)
        self._open: set[int] = set()
        """Buckets whose exchange is under way."""
        self._settling = RLock()
        """Held while buckets are settled: each once, though other threads may use the model."""
        self._is_owed = False
        """Whether `step` has been called for the open buckets, so they must be updated too."""
        self._is_cleared = False
        """Whether the user has cleared the gradients since they were averaged."""
        self._options: Options = []
        self._members: dict[int, dict[int, list[Tensor]]] = {}
        """The parameters to update, by bucket and parameter group."""
        statistics = {id(tensor) for tensor in buckets.statistics.tensors}
        self._number_of = {id(p): buckets.place[i] for i, p in enumerate(buckets.parameters)}
        buckets.on_started = self._begin
        self._layers = LayerHooks(
            model,
            buckets.parameters,
            {
                **{tensor: (number,) for tensor, number in self._number_of.items()},
                **dict.fromkeys(statistics, (buckets.last,)),
            },
            self.settle,
            self._settle_rest,
        )
        arrivals = [self._layers.wait_for([number]) for number in range(len(buckets.layout))]
        self._awaited = [Awaited(arrive) for arrive in arrivals]
        """Awaits each bucket on gradients, and on parameters that have one here."""
        self._guarding = [Awaited(arrive, guards_gradient=True) for arrive in arrivals]
        """Awaits each bucket on parameters for which only other workers may have a gradient."""
        self._hooks: list[Any] = [
            optimizer.register_state_dict_pre_hook(lambda _: self.settle()),
            optimizer.register_load_state_dict_pre_hook(lambda *_: self.settle()),
        ]

    # ---- one round: begin at the end of backward, step, settle bucket by bucket ------------------

    def _begin(self) -> None:
        """Mark the tensors that are under way, so that backward can return."""
        buckets = self._buckets
        self._open = set(range(len(buckets.layout)))
        self._is_owed = self._is_cleared = False
        for index, parameter in enumerate(buckets.parameters):
            number = buckets.place[index]
            if index in buckets.ready:
                await_values(buckets.views[index], self._awaited[number])
            else:  # whether it has a gradient depends on the others
                await_values(parameter, self._guarding[number])
        for tensor in buckets.statistics.tensors:
            await_values(tensor, self._awaited[buckets.last])

    def step(self, update: Callable[[], None]) -> None:
        """Put off `update`, or call it if something needed all gradients already."""
        is_whole = len(self._open) == len(self._buckets.layout)
        if self._is_owed or not is_whole or not self._can_wait():
            self.settle()
            update()
            return
        self._options = self._steps.options()
        self._is_owed = True
        buckets = self._buckets
        for index, parameter in enumerate(buckets.parameters):
            kind = self._awaited if index in buckets.ready else self._guarding
            await_values(parameter, kind[buckets.place[index]])

    def _can_wait(self) -> bool:
        """Return whether this step can be put off; note the parameters that it updates."""
        buckets, optimizer = self._buckets, self._optimizer
        if self._steps.are_told:
            return False  # the user's hooks run once per step
        if self._others.have_come():
            return False  # they read parameters without waiting
        with unasked():  # looking needs no values
            for index, parameter in enumerate(buckets.parameters):
                expected = buckets.views[index] if index in buckets.ready else None
                if parameter.grad is not expected:
                    return False  # the user's own gradient, or none
            self._members = {number: {} for number in self._open}
            for position, group in enumerate(optimizer.param_groups):
                for parameter in group["params"]:
                    number = self._number_of.get(id(parameter))
                    if number is not None:
                        self._members[number].setdefault(position, []).append(parameter)
                    elif parameter.grad is not None:
                        return False
        return True

    def settle(self, numbers: Iterable[int] | None = None) -> None:
        """Wait for buckets (default: all), and update their parameters if that is owed."""
        if not self._open:
            return
        # Updates are no part of the code that made them necessary: a forward pass, an evaluation.
        with self._settling, torch.inference_mode(False), torch.no_grad():
            wanted = self._open if numbers is None else self._open.intersection(numbers)
            for number in sorted(wanted):
                if number in self._open:
                    self._settle_one(number)

    def _settle_one(self, number: int) -> None:
        buckets = self._buckets
        try:
            with unasked():  # awaited tensors are written to
                buckets.land([number], publish=not self._is_cleared)
        except BaseException:
            self._abandon()
            raise
        self._open.discard(number)
        for index in buckets.layout[number].parameters:
            release(buckets.views[index])
            release(buckets.parameters[index])
        if number == buckets.last:
            for tensor in buckets.statistics.tensors:
                release(tensor)
        is_owed = self._is_owed
        if not self._open:
            self._is_owed = False
        if is_owed:
            self._update(number)
        if not self._open:
            buckets.reset()

    def _update(self, number: int) -> None:
        """Make the wrapped optimizer's step with the parameters of one bucket alone."""
        buckets, members = self._buckets, self._members[number]
        if not members:
            return
        shown: list[tuple[Tensor, Tensor | None]] = []
        for index in buckets.layout[number].parameters:
            parameter = buckets.parameters[index]
            shown.append((parameter, parameter.grad))
            parameter.grad = buckets.views[index] if buckets.is_used(index) else None
        try:
            self._steps.step(dict(sorted(members.items())), self._options)
        except BaseException:
            self._abandon()
            raise
        finally:
            for parameter, gradient in shown:
                parameter.grad = gradient

    # ---- everything that does not ask ------------------------------------------------------------

    def _settle_rest(self) -> set[int]:
        """Settle buckets that this forward pass did not use; return those that were owed an update.

        Also guards the buckets' memory, which the next exchange is about to use.
        """
        owed = set(self._open) if self._is_owed else set()
        self.settle()
        return owed

    @contextmanager
    def clearing(self, *, set_to_none: bool) -> Iterator[None]:
        """Return the context in which gradients are cleared; owed updates keep theirs."""
        if not (self._is_owed and set_to_none):
            self.settle()
        self._is_cleared = bool(self._open)
        with unasked() if self._open else nullcontext():  # clearing needs no values
            yield

    def _abandon(self) -> None:
        """Give up the buckets under way, so that the model can be read as it is."""
        self._open, self._is_owed = set(), False
        self._buckets.reset()
        for tensor in (
            *self._buckets.views.values(),
            *self._buckets.parameters,
            *self._buckets.statistics.tensors,
        ):
            release(tensor)

    def remove(self) -> None:
        """Settle the buckets that are left; take the hooks off the model and the optimizer."""
        self.settle()
        self._buckets.on_started = None
        self._layers.remove()
        for hook in self._hooks:
            hook.remove()
