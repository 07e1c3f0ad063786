"""The trailer of a step's sums of gradients: what their use depends on, summed like a gradient.

It says how many workers contributed (weighted by their samples, with a sampler), how many still
train, and for each parameter how many had a gradient for it; statistics in buffers travel with it.
It is needed before any other sum can be used, and no part of it may get lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from shoal.train.changed_statistics import ChangedStatistics

if TYPE_CHECKING:
    from collections.abc import Collection

    from torch import Tensor, nn

    from shoal.membership import View
    from shoal.train.part_of_sum import PartOfSum


@final
class Trailer:
    """One worker's part in a step's trailer, and the sum of all parts where it was.

    It lies in the memory given to `place`, of `num_elements`; statistics of other types than
    `like` lie in `statistics.apart`.
    """

    def __init__(
        self, model: nn.Module, num_parameters: int, like: Tensor, part: PartOfSum
    ) -> None:
        self._part = part
        self._num_parameters = num_parameters
        self.statistics = ChangedStatistics(model, like)
        """The statistics of batch norm and the like, averaged along with the gradients."""

    @property
    def num_elements(self) -> int:
        """The number of elements of the memory given to `place`."""
        return sum(self._lengths())

    def _lengths(self) -> list[int]:
        statistics, bits = self.statistics.num_elements, self._part.num_elements
        return [statistics, 1, 1, self._num_parameters, bits]

    def place(self, memory: Tensor) -> None:
        """Let the trailer lie in `memory`."""
        statistics, self._weight, self._training, self._used, bits = memory.split(self._lengths())
        self.statistics.place(statistics)
        self._part.place(bits)

    def fill(
        self, view: View, with_gradient: Collection[int], *, contributes: bool, trains: bool
    ) -> None:
        """Write this worker's part in a sum of the members of `view`.

        `with_gradient` are the parameters for which it has a gradient. One that does not contribute
        adds nothing to the means; `trains` says that it makes steps.
        """
        weight = self._part.weight(len(view)) if contributes else 0.0
        if weight:
            self.statistics.contribute(len(view) / weight)
        else:
            self.statistics.contribute_nothing()
        self._weight.fill_(weight)
        self._part.fill(view, is_new=trains)
        self._training.fill_(1.0 if trains else 0.0)
        are_all = len(with_gradient) == self._num_parameters
        self._used.fill_(1.0 if are_all else 0.0)
        if with_gradient and not are_all:  # looking places up takes as long as all else here
            self._used[list(with_gradient)] = 1.0

    @property
    def num_training(self) -> int:
        """How many workers still make steps; of the sum."""
        return round(self._training.item())

    def factor(self, num_members: int) -> float:
        """Return what makes means of the sums, whose parts were divided by `num_members`.

        It is 1 unless some members contributed nothing, or other numbers of samples. If nobody
        contributed, it is 0.
        """
        weight = float(self._weight.item())
        return num_members / weight if weight else 0.0

    def used(self) -> list[float]:
        """Return for each parameter how many workers had a gradient; of the sum."""
        return self._used.tolist()
