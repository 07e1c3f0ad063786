"""Pieces of a model whose newer values are under way, each taken in when something needs it.

With `overlap="next-forward"` `step()` returns with an average or a pull under way. Every module
whose tensors are in a piece waits, before its next forward pass, for that piece; so do other code
that touches one of its tensors (`train.awaited_tensors`), its next gradient, and the next step. The
result is bit for bit that of waiting in `step()`: nothing is added to a parameter meanwhile. The
newer values lie beside the model until they are taken in. So nothing is put off while something
else holds the memory of a tensor (`train.other_holders`), and would read the old values. Knows
neither what is under way nor how to wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from threading import RLock
from typing import TYPE_CHECKING

import torch

from shoal.carriers import unasked
from shoal.train.awaited_tensors import Awaited, await_values, check_can_await, release
from shoal.train.layer_hooks import LayerHooks
from shoal.train.other_holders import OtherHolders

if TYPE_CHECKING:
    from shoal.train.model_pieces import Piece
    from shoal.train.replica import Replica


class AwaitedPieces:
    """Puts off `take_in`, which waits for the piece of a number, until something needs that piece.

    Raises `UsageError` for a model with tensors of classes of their own.
    """

    def __init__(
        self, replica: Replica, pieces: Sequence[Piece], take_in: Callable[[int], object]
    ) -> None:
        named = [*replica.model.named_parameters(), *replica.model.named_buffers()]
        for name, tensor in named:
            check_can_await(tensor, name)
        self._replica, self._pieces, self._take_in = replica, pieces, take_in
        self._open: set[int] = set()
        """The pieces whose newer values are not the model's yet."""
        self._settling = RLock()
        """Held while pieces are taken in: each once, though other threads may use the model."""
        pieces_of: dict[int, list[int]] = {}
        for number, piece in enumerate(pieces):
            for tensor in piece.tensors:
                pieces_of.setdefault(id(tensor), []).append(number)
        parameters = [p for p in replica.model.parameters() if p.requires_grad]
        self._hooks = LayerHooks(
            replica.model,
            [p for p in parameters if id(p) in pieces_of],
            pieces_of,
            self.settle,
            self._settle_rest,
        )
        self._awaited = [Awaited(self._hooks.wait_for([n])) for n in range(len(pieces))]
        names = {id(tensor): name for name, tensor in named}
        self.others = OtherHolders(
            (names.get(id(tensor), "a tensor of the model"), tensor)
            for piece in pieces
            for tensor in piece.tensors
        )
        replica.flat.before_access = self.settle

    def begin(self) -> None:
        """Let every piece be awaited: all are under way, and the previous ones are settled.

        Where something could read a tensor without waiting, all pieces are waited for here.
        """
        self._open = set(range(len(self._pieces)))
        if self.others.have_come():
            self.settle()
            return
        for piece, awaited in zip(self._pieces, self._awaited, strict=True):
            for tensor in piece.tensors:
                await_values(tensor, awaited)

    def settle(self, numbers: Iterable[int] | None = None) -> None:
        """Take in pieces (default: all) that are under way."""
        if not self._open:
            return
        # Awaited tensors are written to.
        with self._settling, torch.inference_mode(False), unasked():
            wanted = self._open if numbers is None else self._open.intersection(numbers)
            for number in sorted(wanted):
                if number in self._open:
                    self._settle_one(number)

    def _settle_one(self, number: int) -> None:
        try:
            with self._replica.noting():
                self._take_in(number)
        except BaseException:
            self._abandon()
            raise
        self._open.discard(number)
        self._release(number)

    def _settle_rest(self) -> set[int]:
        stale = set(self._open)
        self.settle()
        return stale

    def _abandon(self) -> None:
        """Give up the pieces under way, so that the model can be read as it is."""
        self._open.clear()
        for number in range(len(self._pieces)):
            self._release(number)

    def _release(self, number: int) -> None:
        for tensor in self._pieces[number].tensors:
            release(tensor)

    def close(self) -> None:
        """Take in the pieces that are left, and take the hooks off the model."""
        self.settle()
        self._hooks.remove()
