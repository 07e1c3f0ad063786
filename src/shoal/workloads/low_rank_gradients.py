"""Gradients of matrices as sums of few columns and rows, all of them in one sum.

PowerSGD (Vogels et al., NeurIPS 2019, algorithm 1) sums the product of each matrix and a thin right
factor, and then the product of its transpose and the first sum: two sums, of which the second waits
for the first. ACP-SGD (Zhang et al., ICDCS 2023) makes one of the two in each step, by turns. Here
both are made in each step, each with the other side's result of the step before, and in one sum,
which hides behind computing as a sum of whole gradients does. Together they give the gradient
within the columns that the left factor spans and within the rows that the right one spans. The
rest of the gradient stays with the worker, and is added to its next gradient (error feedback). The
first gradients are sent whole: they say which columns and rows to begin with.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Final

import torch

from shoal.collectives import WHOLE_SUMS, factor_elements, matrix_sides

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torch import Tensor

_SEED: Final = 4099
"""The seed of the first right factors, which all workers have alike."""


@dataclass(slots=True)
class _Matrix:
    """One parameter's gradient as a matrix of m by n, and its factors of rank r."""

    gradient: Tensor
    error: Tensor
    """The part of this worker's gradients that it has not sent yet, m by n."""
    left: Tensor
    """Orthonormal columns, m by r, the same on all workers; `right` is n by r."""
    right: Tensor
    columns: Tensor
    """The gradient times `right`, m by r, as it is sent."""
    rows: Tensor
    """The gradient's transpose times `left`, n by r, as it is sent."""

    def compress(self, *, is_new: bool) -> None:
        """Write this worker's columns and rows; zeros if it has no gradient."""
        if not is_new:
            self.columns.zero_()
            self.rows.zero_()
            return
        self.error.add_(self.gradient)
        torch.mm(self.error, self.right, out=self.columns)
        torch.mm(self.error.T, self.left, out=self.rows)
        one, other = self._factors()
        self.error.addmm_(one, other.T, alpha=-1)
        # A gradient with infinities is a step that a scaler skips: the next one begins anew.
        self.error.nan_to_num_(0.0, 0.0, 0.0)

    def expand(self) -> None:
        """Compute the sum of all workers' gradients from the sums of their columns and rows."""
        one, other = self._factors()
        torch.mm(one, other.T, out=self.gradient)
        self.left, self.right = _orthonormal(self.columns), _orthonormal(self.rows)

    def rescale(self, factor: float) -> None:
        """Multiply what this worker has not sent yet by `factor`."""
        self.error.mul_(factor)

    def look(self) -> None:
        """Set the factors to those that fit the sum of all workers' whole gradients."""
        self.left = _orthonormal(self.gradient @ self.right)
        self.right = _orthonormal(self.gradient.T @ self.left)

    def _factors(self) -> tuple[Tensor, Tensor]:
        """Return factors, m by 2r and n by 2r, of the matrix that `columns` and `rows` describe.

        Their overlap, which lies within the columns of `left`, counts once.
        """
        apart = torch.addmm(self.columns, self.left, self.left.T @ self.columns, alpha=-1)
        return torch.cat([apart, self.left], 1), torch.cat([self.right, self.rows], 1)


class LowRankBucket:
    """The form in which one bucket of gradients, which lie in `memory`, is sent.

    `shapes` are the shapes of its parameters, and `offsets` the places in `memory` where they
    begin. Parameters that are no matrices, or hardly larger than their factors of `rank`, travel
    whole, and so does the tail: the memory behind the last one.
    """

    def __init__(
        self, memory: Tensor, shapes: Sequence[torch.Size], offsets: Sequence[int], rank: int
    ) -> None:
        self._memory = memory
        self._num_sums = 0
        ends = [offset + prod(shape) for shape, offset in zip(shapes, offsets, strict=True)]
        self._offsets = [*offsets, ends[-1]]
        factored = [factor_elements(shape, rank) for shape in shapes]
        lengths = [
            elements or end - start
            for elements, start, end in zip(factored, offsets, ends, strict=True)
        ]
        self._starts = [sum(lengths[:place]) for place in range(len(lengths) + 1)]
        tail = memory[ends[-1] :]
        self._sent = memory.new_zeros(self._starts[-1] + len(tail))
        self._matrices: dict[int, _Matrix] = {}
        """The matrices, by their places in the bucket."""
        self._whole: list[tuple[Tensor, Tensor]] = []
        """Parameters that always travel whole: their places in `memory` and in the memory sent."""
        self._tail = tail, self._sent[self._starts[-1] :]
        generator = torch.Generator("cpu").manual_seed(_SEED)
        places = self._sent[: self._starts[-1]].split(lengths)
        for place, (start, end) in enumerate(zip(offsets, ends, strict=True)):
            part = memory[start:end]
            if factored[place] is None:
                self._whole.append((part, places[place]))
                continue
            rows, columns = matrix_sides(shapes[place])
            gradient = part.view(rows, columns)
            first = torch.randn(columns, rank, generator=generator, device="cpu").to(memory)
            of_columns, of_rows = places[place].split([rank * rows, rank * columns])
            self._matrices[place] = _Matrix(
                gradient,
                torch.zeros_like(gradient),
                memory.new_zeros(rows, rank),
                _orthonormal(first),
                of_columns.view(rows, rank),
                of_rows.view(columns, rank),
            )

    @property
    def _is_whole(self) -> bool:
        return self._num_sums < WHOLE_SUMS

    @property
    def sent(self) -> Tensor:
        """The memory that is summed next, after `compress`."""
        return self._memory if self._is_whole else self._sent

    @property
    def starts(self) -> Sequence[int]:
        """The places in `sent` where parameters begin, and at last the end of them."""
        return self._offsets if self._is_whole else self._starts

    def compress(self, new: Collection[int]) -> None:
        """Write the memory to be summed; `new` are the places of parameters with a gradient."""
        if self._is_whole:
            return
        for place, matrix in self._matrices.items():
            matrix.compress(is_new=place in new)
        for part, place_in_sent in self._whole:
            place_in_sent.copy_(part)
        self.put_tail()

    def put_tail(self) -> None:
        """Write the tail into the memory to be summed."""
        if not self._is_whole:
            self._tail[1].copy_(self._tail[0])

    def take_tail(self) -> None:
        """Write the tail of the sum into the bucket's memory."""
        if not self._is_whole:
            self._tail[0].copy_(self._tail[1])

    def rescale(self, factor: float) -> None:
        """Multiply what this worker has not sent yet by `factor`, as the number of members asks."""
        for matrix in self._matrices.values():
            matrix.rescale(factor)

    def expand(self) -> None:
        """Write the gradients that the sum gives into the bucket's memory."""
        for matrix in self._matrices.values():
            if self._is_whole:
                matrix.look()
            else:
                matrix.expand()
        if not self._is_whole:
            for part, place_in_sent in self._whole:
                part.copy_(place_in_sent)
            self.take_tail()
        self._num_sums += 1

    def handed_on(self) -> dict[str, Any]:
        """Return the state that all workers have alike, for a newcomer to take over."""
        matrices = self._matrices.values()
        return {
            "num_sums": self._num_sums,
            "factors": [(each.left, each.right) for each in matrices],
        }

    def take_over(self, state: dict[str, Any]) -> None:
        """Go on from the state that another worker has `handed_on`."""
        self._num_sums = state["num_sums"]
        for matrix, (left, right) in zip(self._matrices.values(), state["factors"], strict=True):
            matrix.left.copy_(left)
            matrix.right.copy_(right)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the next steps: all workers' factors, and this worker's errors."""
        matrices = self._matrices.values()
        return {
            "num_sums": self._num_sums,
            "factors": [(each.left.clone(), each.right.clone()) for each in matrices],
            "errors": [each.error.clone() for each in matrices],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        self.take_over(state)
        for matrix, error in zip(self._matrices.values(), state["errors"], strict=True):
            matrix.error.copy_(error)


def _orthonormal(factor: Tensor) -> Tensor:
    """Return orthonormal columns that span the same space as the columns of `factor`."""
    wide = factor.to(torch.promote_types(factor.dtype, torch.float32))
    return torch.linalg.qr(wide.nan_to_num(0.0, 0.0, 0.0)).Q.to(factor.dtype).contiguous()
