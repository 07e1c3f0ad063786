"""Means of a model among a group of workers, made and taken in piece by piece.

Means lie beside the model until they are taken in. Whether the whole model is waited for at once or
each piece in the next forward pass, the result has the same bits: a model is cut the same way
(`train.model_pieces`), or not at all where the cut makes no difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch

from shoal.trace import SpanKind
from shoal.train.model_pieces import ModelPieces

if TYPE_CHECKING:
    from torch import Tensor

    from shoal.comm import Layers, Work
    from shoal.strategies import Mean
    from shoal.train.replica import Replica


def sequence_of(mean: Mean, place: int, count: int) -> int:
    """Return the number by which all members know the part at `place` of a mean.

    No mean has more than `count` parts.
    """
    epoch, number = mean.number
    return epoch << 32 | number * count + place


class PieceMeans:
    """One mean of a replica's model at a time: `open`, then `begin` and `take_in` for each piece.

    Its members' messages meet on `channel`. `at_once` says that no piece is taken in by itself.
    """

    def __init__(self, replica: Replica, channel: int, *, at_once: bool) -> None:
        self._replica, self._channel = replica, channel
        self._cut = ModelPieces(replica.model, replica.flat)
        self.pieces = self._cut.pieces
        can_be_whole = map(replica.communicator.cuts_freely, replica.flat.buffers)
        self._is_whole = at_once and all(can_be_whole)
        self._parts: list[tuple[Tensor, Layers | None]] = []
        self._works: dict[int, Work] = {}

    def open(self, mean: Mean, state: Sequence[Tensor] = (), num_more: int = 0) -> None:
        """Let the next mean be `mean`, of every piece and of flat tensors of the `state`.

        Other means may have `num_more` parts more.
        """
        self._cut.settle_order()
        self._mean, self._works = mean, {}
        pieces = zip((piece.memory for piece in self.pieces), self._cut.layers, strict=True)
        whole = ((flat, None) for flat in self._replica.flat.buffers)
        self._parts = [*(whole if self._is_whole else pieces), *((flat, None) for flat in state)]
        self._most = len(self._parts) + num_more

    def begin(self, places: Iterable[int] | None = None) -> None:
        """Start the means of the parts at `places` (default: all), in that order."""
        mean = self._mean
        try:
            for place in range(len(self._parts)) if places is None else places:
                memory, layers = self._parts[place]
                self._works[place] = self._replica.communicator.group_average(
                    memory,
                    mean.members,
                    sequence=sequence_of(mean, place, self._most),
                    weights=mean.weights,
                    channel=self._channel,
                    layers=layers,
                )
        except BaseException:
            self._await_all()
            raise

    def _await_all(self) -> None:
        """Wait for the parts of a failed mean that have begun: others may have begun no more."""
        for work in self._works.values():
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

        After a failure nothing is under way, and the parts that were complete hold the mean.
        """
        try:
            self.take_in(self._works)
        except BaseException:
            self._await_all()
            raise
