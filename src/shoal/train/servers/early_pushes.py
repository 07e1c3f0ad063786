"""Gradients that go to their servers while the backward pass is still running.

With `overlap="layers"` a piece of the model is pushed when backward has the gradients of all its
trained parameters; what is not complete by then is pushed by `step()`. That is right only where a
gradient stays as backward has left it: whatever touches one between its push and `step()`
(clipping, a gradient scaler, a second backward pass, `zero_grad()`) is refused in a sentence. Knows
neither servers nor messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Never

import torch

from shoal.errors import UsageError
from shoal.train.awaited_tensors import await_values, release

if TYPE_CHECKING:
    from torch import Tensor


class EarlyPushes:
    """Calls `push` with the number of each piece whose gradients are complete.

    `members` are the places among `parameters` of those that lie in each piece.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        members: Sequence[Sequence[int]],
        push: Callable[[int], None],
    ) -> None:
        self._parameters, self._members, self._push = parameters, members, push
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
        self._pushed: dict[int, Tensor] = {}
        """The gradients that have been pushed, by the place of their parameter."""
        self._pieces: set[int] = set()

    @property
    def pieces(self) -> set[int]:
        """The pieces that have been pushed in this step."""
        return self._pieces

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Let backward only add to the gradients, of which none may have been pushed."""
        self._is_local = True
        try:
            yield
        finally:
            self._is_local = False

    @torch.no_grad()  # backward(create_graph=True) runs this with autograd on
    def _on_gradient(self, index: int, _parameter: Tensor) -> None:
        if index in self._complete:
            refuse()
        if self._is_local:
            return
        self._complete.add(index)
        piece = self._piece_of[index]
        self._missing[piece] -= 1
        if self._missing[piece]:
            return
        self._push(piece)
        self._pieces.add(piece)
        for member in self._members[piece]:
            gradient = self._parameters[member].grad
            assert gradient is not None
            self._pushed[member] = gradient
            await_values(gradient, refuse)

    def end_step(self) -> set[int]:
        """Let gradients be touched again; return the pieces that have been pushed.

        Raises `UsageError` if a gradient is not the one that was pushed.
        """
        for index, gradient in self._pushed.items():
            if self._parameters[index].grad is not gradient:
                refuse()
        for gradient in self._pushed.values():
            release(gradient)
        pieces = self._pieces
        self._reset()
        return pieces

    def remove(self) -> None:
        """Take the hooks off the parameters."""
        for hook in self._hooks:
            hook.remove()


def refuse() -> Never:
    """Raise `UsageError`: a gradient has been pushed that was not the step's last."""
    raise UsageError(
        "overlap='layers' pushes gradients while backward is running, and one was touched (by"
        " clipping, a gradient scaler, zero_grad() or a look at it) or added to between its push"
        " and step(): use overlap='next-forward', or no_sync() for all but a step's last backward"
        " pass."
    )
