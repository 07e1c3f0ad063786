"""Means of a model that are taken in piece by piece, at once or in the next forward pass.

With `overlap="next-forward"` `step()` returns with the means under way. Every module whose tensors
are in a piece waits, before its next forward pass, for that piece's mean; so does whatever else
touches one of its tensors (`train.awaited_tensors`), its next gradient, and the next update. The
result is bit for bit that of waiting in `step()`: nothing is added to a parameter meanwhile, and a
model is cut alike whether it waits or not (`train.model_pieces`). Means lie beside the model until
they are taken in, so what torch cannot observe reads parameters as they were before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import torch

from shoal.carriers import unasked
from shoal.errors import ViewChanging
from shoal.trace import SpanKind
from shoal.train.awaited_tensors import await_values, check_can_await, release
from shoal.train.layer_hooks import LayerHooks
from shoal.train.model_pieces import ModelPieces

if TYPE_CHECKING:
    from torch import Tensor

    from shoal.comm import Layers, Work
    from shoal.strategies import Mean
    from shoal.train.replica import Replica


class PieceMeans:
    """One mean of a replica's model at a time: `begin`, and `take_in` for each piece.

    What its members average meets on `channel`.
    """

    def __init__(self, replica: Replica, channel: int) -> None:
        self._replica, self._channel = replica, channel
        self._cut = ModelPieces(replica.model, replica.flat)
        self.pieces = self._cut.pieces
        self._layers: list[Layers] | None = None
        self._works: list[Work] = []

    def begin(self, mean: Mean, state: Sequence[Tensor] = ()) -> None:
        """Start the mean of every piece, and of flat tensors of the optimizer's `state`."""
        if self._layers is None:
            self._layers = self._cut.layers()
        epoch, number = mean.number
        self._mean, self._works = mean, []
        parts = [
            *zip((piece.memory for piece in self.pieces), self._layers, strict=True),
            *((flat, None) for flat in state),
        ]
        try:
            for place, (memory, layers) in enumerate(parts):
                work = self._replica.communicator.group_average(
                    memory,
                    mean.members,
                    sequence=epoch << 32 | number * len(parts) + place,
                    weights=mean.weights,
                    channel=self._channel,
                    layers=layers,
                )
                self._works.append(work)
        except BaseException:
            self._await_all()
            raise

    def _await_all(self) -> None:
        """Wait for what has begun of a mean that failed: others may have no more of it."""
        for work in self._works:
            try:
                work.wait()
            except Exception:  # noqa: BLE001 - the first failure is raised
                continue

    def take_in(self, numbers: Iterable[int]) -> None:
        """Wait for the means of the pieces `numbers`, and let them be the model's."""
        mean, stopwatch = self._mean, self._replica.stopwatch
        with stopwatch.span(SpanKind.EXCHANGE, mean.members, mean.reason), torch.no_grad():
            for number in numbers:
                self._works[number].wait()

    def take_in_all(self) -> None:
        """Wait for all of the mean, that of state included, and let it be the model's.

        After a failure nothing is under way, and what was there already is the mean.
        """
        try:
            self.take_in(range(len(self._works)))
        except BaseException:
            self._await_all()
            raise


class LayerwiseMeans:
    """Puts off taking in each piece of a mean until something needs it.

    Raises `UsageError` for a model with tensors of classes of their own.
    """

    def __init__(self, replica: Replica, channel: int) -> None:
        for name, tensor in (
            *replica.model.named_parameters(),
            *replica.model.named_buffers(),
        ):
            check_can_await(tensor, name)
        self._replica = replica
        self._means = PieceMeans(replica, channel)
        self._open: set[int] = set()
        """The pieces of which the mean is not the model's yet."""
        pieces_of: dict[int, list[int]] = {}
        for number, piece in enumerate(self._means.pieces):
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
        replica.flat.before_access = self.settle

    def begin(self, mean: Mean) -> None:
        """Start `mean`; the one before has been settled."""
        self._means.begin(mean)
        self._open = set(range(len(self._means.pieces)))
        for number, piece in enumerate(self._means.pieces):
            arrive = self._hooks.wait_for([number])
            for tensor in piece.tensors:
                await_values(tensor, arrive)

    def settle(self, numbers: Iterable[int] | None = None) -> None:
        """Take in pieces (default: all) of which the mean is under way.

        What the view's end has cut off is left out: those parameters stay this worker's own.
        """
        if not self._open:
            return
        wanted = sorted(self._open if numbers is None else self._open.intersection(numbers))
        with torch.inference_mode(False), unasked():  # what is awaited is written to
            for number in wanted:
                if number in self._open:
                    self._settle_one(number)

    def _settle_one(self, number: int) -> None:
        try:
            with self._replica.noting(), suppress(ViewChanging):
                self._means.take_in([number])
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
        """Give up what is under way, so that the model can be read as it is."""
        self._open.clear()
        for number in range(len(self._means.pieces)):
            self._release(number)

    def _release(self, number: int) -> None:
        for tensor in self._means.pieces[number].tensors:
            release(tensor)

    def close(self) -> None:
        """Take in what is left, and take the hooks off the model."""
        self.settle()
        self._hooks.remove()
