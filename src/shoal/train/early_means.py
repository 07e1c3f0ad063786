"""Means of a model's pieces that begin while the backward pass is still running.

With `overlap="layers"` a piece is updated when backward has all of its gradients, and its mean
begins, rear pieces first; `step()` updates and begins the rest. The mean lies beside the model
until the next forward pass: nothing but the piece's own update is written while backward runs, and
autograd notices if it still needs a value that the update has changed. Pieces begin in one order on
all workers, for gloo serves a few at a time.

Until `step()`, code that touches a used gradient, or a parameter of such a piece, gets an error. A
piece whose memory something else holds (an alias, a graph that backward has not come through) is
left to `step()`, and with it the pieces that would follow. So are all pieces where the optimizer
has step hooks, which count steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.train.awaited_tensors import await_values, release
from shoal.train.early_gradients import REFUSED, EarlyGradients, refuse_options
from shoal.train.partial_steps import Options, PartialSteps

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    import torch
    from torch import Tensor

    from shoal.strategies import Mean
    from shoal.train.awaited_pieces import AwaitedPieces
    from shoal.train.piece_means import PieceMeans
    from shoal.train.replica import Replica


class EarlyMeans:
    """Updates pieces and begins their means in backward passes; `update` and `begin` do the rest.

    `mean_ahead` says which mean the coming step makes. Raises `UsageError` for parameters that
    share memory.
    """

    def __init__(
        self,
        replica: Replica,
        means: PieceMeans,
        awaited: AwaitedPieces,
        mean_ahead: Callable[[], Mean | None],
    ) -> None:
        replica.flat.check_apart("overlap='layers'")
        self._replica, self._means, self._awaited = replica, means, awaited
        self._mean_ahead = mean_ahead
        self._steps = PartialSteps(replica.optimizer, replica.stepping)
        self._group_of = _groups_of(replica.optimizer)
        self._members = [
            [each for each in piece.tensors if id(each) in self._group_of] for piece in means.pieces
        ]
        """The parameters to update in each piece."""
        parameters = [parameter for each in self._members for parameter in each]
        places = {id(parameter): place for place, parameter in enumerate(parameters)}
        whole = range(len(self._members))
        trained = [number for number in reversed(whole) if self._members[number]]
        self._order = [*trained, *(number for number in whole if not self._members[number])]
        """Pieces in the order in which their means begin, on all workers."""
        self._gradients = EarlyGradients(
            parameters,
            [[places[id(p)] for p in each] for each in self._members],
            self._use,
            trained,
        )
        self._hooks = [
            replica.optimizer.register_state_dict_pre_hook(lambda _: self.check_unused()),
            replica.optimizer.register_load_state_dict_pre_hook(lambda *_: self.check_unused()),
        ]
        self._reset()

    def _reset(self) -> None:
        self._mean: Mean | None = None
        """The mean that has been opened for the coming step."""
        self._options: Options = []
        self._num_begun = 0
        """How many pieces of the order have been updated, with their means begun."""
        self._is_stopped = False
        """Whether the rest is left to `step()`."""

    # ---- in the backward pass --------------------------------------------------------------------

    def _use(self, number: int) -> None:
        """Update a piece whose gradients are complete, and begin its mean, unless stopped."""
        if not self._gradients.pieces:
            self._look_ahead()
        if not self._is_stopped:
            self._begin_early(number)

    def _look_ahead(self) -> None:
        """Open the mean of the coming step, if it makes one that can begin early."""
        mean = None if self._steps.are_told else self._mean_ahead()
        if mean is None or len(mean.members) < 2:
            self._is_stopped = True
            return
        self._awaited.settle()
        self._means.open(mean)
        self._mean, self._options = mean, self._steps.options()

    def _begin_early(self, number: int) -> None:
        tensors = tuple(self._means.pieces[number].tensors)
        if any(self._awaited.others.hold(tensor) for tensor in tensors):
            self._is_stopped = True
            return
        self._steps.step(self._by_group(self._members[number]), self._options)
        with self._replica.noting():
            self._means.begin([number])
        self._num_begun += 1
        for tensor in tensors:  # values written to them now would be lost
            await_values(tensor, REFUSED)

    def _by_group(self, parameters: list[Tensor]) -> dict[int, list[Tensor]]:
        """Return `parameters` by their groups' numbers, in order."""
        groups: dict[int, list[Tensor]] = {}
        for parameter in parameters:
            groups.setdefault(self._group_of[id(parameter)], []).append(parameter)
        return dict(sorted(groups.items()))

    def accumulating(self) -> AbstractContextManager[None]:
        """Return the context in which backward only adds to the local gradients."""
        return self._gradients.accumulating()

    def check_unused(self) -> None:
        """Raise `UsageError` if pieces have been used in a step that `step()` has not ended."""
        self._gradients.check_unused()

    # ---- in the step -----------------------------------------------------------------------------

    def update(self, update: Callable[[], None]) -> None:
        """Update the parameters that are left, or all by `update` if none has been updated."""
        self._gradients.end_step()
        begun = self._order[: self._num_begun]
        updated = {id(p) for number in begun for p in self._members[number]}
        for number in begun:
            for tensor in self._means.pieces[number].tensors:
                release(tensor)
        if not updated:
            self._reset()
            update()
            return
        if self._steps.have_changed(self._options):
            refuse_options()
        groups = enumerate(self._replica.optimizer.param_groups)
        rest = {
            position: [p for p in group["params"] if id(p) not in updated]
            for position, group in groups
        }
        left = {position: parameters for position, parameters in rest.items() if parameters}
        if left:
            self._steps.step(left, self._options)

    def begin(self, mean: Mean) -> None:
        """Begin the means of the pieces that are left."""
        if self._mean is None:
            self._means.open(mean)
        else:
            assert mean == self._mean, (mean, self._mean)
        self._means.begin(self._order[self._num_begun :])
        self._reset()

    def close(self) -> None:
        """Take the hooks off. Raises `UsageError` if a step is partly made."""
        self.check_unused()
        self._gradients.remove()
        for hook in self._hooks:
            hook.remove()


def _groups_of(optimizer: torch.optim.Optimizer) -> dict[int, int]:
    """Return the number of each trained parameter's group, by its id."""
    return {
        id(parameter): position
        for position, group in enumerate(optimizer.param_groups)
        for parameter in group["params"]
        if parameter.requires_grad
    }
