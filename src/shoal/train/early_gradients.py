"""Gradients that are used while the backward pass is still running.

With `overlap="layers"` a piece of the model is pushed, or updated and averaged, when backward has
the gradients of all its trained parameters; pieces that backward does not complete are left to
`step()`. That is right only where a gradient stays as backward has left it: code that touches one
between its use and `step()` (clipping, a gradient scaler, a second backward pass, `zero_grad()`)
gets an error that says so. Knows neither servers nor averages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, Never

import torch

from shoal.errors import UsageError
from shoal.train.awaited_tensors import Awaited, await_values, release

if TYPE_CHECKING:
    from torch import Tensor


class EarlyGradients:
    """Calls `use` with the number of each piece whose gradients are complete.

    `members` are, for each piece, the indices in `parameters` of the parameters that lie in it.
    Pieces come in `order`, if one is given: then each waits for the pieces before it.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        members: Sequence[Sequence[int]],
        use: Callable[[int], None],
        order: Sequence[int] | None = None,
    ) -> None:
        self._parameters, self._members, self._use = parameters, members, use
        self._order = order
        self._piece_of = {
            index: piece for piece, indices in enumerate(members) for index in indices
        }
        self._is_local = False
        """Whether backward passes only add to the gradients now."""
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._on_gradient, index))
            for index, parameter in enumerate(parameters)
        ]
        self._reset()

    def _reset(self) -> None:
        self._complete: set[int] = set()
        """The parameters that have got their gradient of this step."""
        self._missing = [len(indices) for indices in self._members]
        self._used: dict[int, Tensor] = {}
        """The gradients that have been used, by the place of their parameter."""
        self.pieces: set[int] = set()
        """The pieces that have been used in this step."""

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Let backward only add to the gradients; none of them may have been used."""
        self._is_local = True
        try:
            yield
        finally:
            self._is_local = False

    def check_unused(self) -> None:
        """Raise `UsageError` if pieces have been used in a step that `step()` has not ended."""
        if self.pieces:
            refuse()

    @torch.no_grad()  # backward(create_graph=True) runs this with autograd on
    def _on_gradient(self, index: int, _parameter: Tensor) -> None:
        if index in self._complete:
            refuse()
        if self._is_local:
            return
        self._complete.add(index)
        piece = self._piece_of[index]
        self._missing[piece] -= 1
        if not self._missing[piece]:
            for each in self._ready(piece):
                self._use_piece(each)

    def _ready(self, piece: int) -> Iterator[int]:
        """Yield the pieces to use now that `piece` is complete."""
        if self._order is None:
            yield piece
            return
        for each in self._order[len(self.pieces) :]:
            if self._missing[each]:
                return
            yield each

    def _use_piece(self, piece: int) -> None:
        self._use(piece)
        self.pieces.add(piece)
        for member in self._members[piece]:
            gradient = self._parameters[member].grad
            assert gradient is not None
            self._used[member] = gradient
            await_values(gradient, REFUSED)

    def end_step(self) -> set[int]:
        """Let gradients be touched again; return the pieces that have been used.

        Raises `UsageError` if a gradient is not the one that was used.
        """
        for index, gradient in self._used.items():
            if self._parameters[index].grad is not gradient:
                refuse()
        for gradient in self._used.values():
            release(gradient)
        pieces = self.pieces
        self._reset()
        return pieces

    def remove(self) -> None:
        """Take the hooks off the parameters."""
        for hook in self._hooks:
            hook.remove()


def refuse() -> Never:
    """Raise `UsageError`: a gradient has been used that was not the step's final one."""
    raise UsageError(
        "overlap='layers' uses gradients while backward is running, and one (or what it has"
        " changed) was touched (by clipping, a gradient scaler, zero_grad() or a look at it) or"
        " added to between its use and step(): use overlap='next-forward', or no_sync() for all"
        " but a step's last backward pass."
    )


REFUSED: Final = Awaited(refuse)
"""Marks tensors that were used while backward is running: touching one raises an error."""


def refuse_options() -> Never:
    """Raise `UsageError`: a gradient has been used with options that were not the step's."""
    raise UsageError(
        "overlap='layers' uses the learning rate and other options with the gradients while"
        " backward is running, and one has changed since: change them after step(), or use"
        " overlap='next-forward'."
    )
