"""Gradients of matrices as sums of few columns and rows: PowerSGD, in two sums of whole buckets.

After PowerSGD (Vogels et al., NeurIPS 2019, algorithm 1): the product of each matrix and a thin
right factor, its columns, is summed; and then, with the orthonormal left factor that results, the
product of its transpose and that, its rows. Left factor and rows give the gradient within the space
of the columns. The rest of the gradient stays with the worker, and is added to its next gradient
(error feedback). The sum of the rows is the right factor of the next step. The first gradients are
sent whole: they say which columns to begin with.
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
    """The gradient times `right`, m by r, where it is summed."""
    rows: Tensor
    """The gradient's transpose times `left`, n by r, where it is summed."""
    own_rows: Tensor
    """This worker's part of `rows`."""

    def compress(self, *, is_new: bool) -> None:
        """Write this worker's columns; zeros if it has no gradient."""
        if is_new:
            self.error.add_(self.gradient)
            torch.mm(self.error, self.right, out=self.columns)
        else:
            self.columns.zero_()

    def turn(self, left: Tensor, *, is_new: bool) -> None:
        """Compute this worker's rows, with the `left` factor that all have."""
        self.left = left
        if is_new:
            torch.mm(self.error.T, left, out=self.own_rows)
        else:
            self.own_rows.zero_()

    def pay(self) -> None:
        """Take what this worker has sent off what it owes."""
        self.error.addmm_(self.left, self.own_rows.T, alpha=-1)
        # A gradient with infinities is a step that a scaler skips: the next one begins anew.
        self.error.nan_to_num_(0.0, 0.0, 0.0)

    def expand(self) -> None:
        """Compute the sum of all workers' gradients from the sum of their rows."""
        torch.mm(self.left, self.rows.T, out=self.gradient)
        self.right = _orthonormal(self.rows)

    def look(self) -> None:
        """Set the right factor to one that fits the sum of all workers' whole gradients."""
        left = _orthonormal(self.gradient @ self.right)
        self.right = _orthonormal(self.gradient.T @ left)


class LowRankBucket:
    """The form in which one bucket of gradients, which lie in `memory`, is sent.

    `shapes` are the shapes of its parameters, and `offsets` the places in `memory` where they
    begin. Parameters that are no matrices, or hardly larger than their factors of `rank`, travel
    whole with the columns, and so does the tail: the memory behind the last one.
    """

    def __init__(
        self, memory: Tensor, shapes: Sequence[torch.Size], offsets: Sequence[int], rank: int
    ) -> None:
        self._memory = memory
        self._num_sums = 0
        self._new: Collection[int] = ()
        ends = [offset + prod(shape) for shape, offset in zip(shapes, offsets, strict=True)]
        self._offsets = [*offsets, ends[-1]]
        factored = [factor_elements(shape, rank) for shape in shapes]
        lengths = [
            end - start if elements is None else elements[0]
            for elements, start, end in zip(factored, offsets, ends, strict=True)
        ]
        self._starts = _running(lengths)
        row_lengths = [elements[1] for elements in factored if elements is not None]
        *self.row_starts, num_rows = _running(row_lengths)
        """The places in `rows` where the matrices begin; `row_places` are the parameters'."""
        self.row_places = [place for place, elements in enumerate(factored) if elements is not None]
        tail = memory[ends[-1] :]
        self._sent = memory.new_zeros(self._starts[-1] + len(tail))
        self._rows = memory.new_zeros(num_rows)
        self._none = memory.new_zeros(0)
        self._tail = tail, self._sent[self._starts[-1] :]
        self._whole: list[tuple[Tensor, Tensor]] = []
        """Parameters that always travel whole: their places in `memory` and in the memory sent."""
        self._matrices: dict[int, _Matrix] = {}
        """The matrices, by their places in the bucket."""
        generator = torch.Generator("cpu").manual_seed(_SEED)
        columns = self._sent[: self._starts[-1]].split(lengths)
        rows = dict(zip(self.row_places, self._rows.split(row_lengths), strict=True))
        for place, (start, end) in enumerate(zip(offsets, ends, strict=True)):
            part = memory[start:end]
            if place not in rows:
                self._whole.append((part, columns[place]))
                continue
            high, wide = matrix_sides(shapes[place])
            gradient = part.view(high, wide)
            first = torch.randn(wide, rank, generator=generator, device="cpu").to(memory)
            self._matrices[place] = _Matrix(
                gradient,
                torch.zeros_like(gradient),
                memory.new_zeros(high, rank),
                _orthonormal(first),
                columns[place].view(high, rank),
                rows[place].view(wide, rank),
                memory.new_zeros(wide, rank),
            )

    @property
    def is_whole(self) -> bool:
        """Whether the next sum is one of whole gradients."""
        return self._num_sums < WHOLE_SUMS

    @property
    def sent(self) -> Tensor:
        """The memory that is summed first, after `compress`."""
        return self._memory if self.is_whole else self._sent

    @property
    def rows(self) -> Tensor:
        """The memory that is summed after that, and after `turn`; empty if nothing is."""
        return self._none if self.is_whole else self._rows

    @property
    def starts(self) -> Sequence[int]:
        """The places in `sent` where parameters begin, and at last the end of them."""
        return self._offsets if self.is_whole else self._starts

    def compress(self, new: Collection[int]) -> None:
        """Write the memory to be summed; `new` are the places of parameters with a gradient."""
        if self.is_whole:
            return
        self._new = new
        for place, matrix in self._matrices.items():
            matrix.compress(is_new=place in new)
        for part, place_in_sent in self._whole:
            place_in_sent.copy_(part)
        self.put_tail()

    def put_tail(self) -> None:
        """Write the tail into the memory to be summed."""
        if not self.is_whole:
            self._tail[1].copy_(self._tail[0])

    def take_tail(self) -> None:
        """Write the tail of the sum into the bucket's memory."""
        if not self.is_whole:
            self._tail[0].copy_(self._tail[1])

    def turn(self, like: LowRankBucket | None = None) -> None:
        """Compute this worker's rows, once the columns are summed.

        The left factors may be those of another bucket that has turned with the same sum.
        """
        if self.is_whole:
            return
        for place, matrix in self._matrices.items():
            left = _orthonormal(matrix.columns) if like is None else like._matrices[place].left  # noqa: SLF001 - its own kind
            matrix.turn(left, is_new=place in self._new)

    def put_rows(self) -> None:
        """Write this worker's rows into the memory to be summed."""
        for matrix in self._matrices.values():
            matrix.rows.copy_(matrix.own_rows)

    def rescale(self, factor: float) -> None:
        """Multiply what this worker has not sent yet by `factor`, as the number of members asks."""
        for matrix in self._matrices.values():
            matrix.error.mul_(factor)

    def pay(self) -> None:
        """Take what this worker has sent off what it owes."""
        if not self.is_whole:
            for matrix in self._matrices.values():
                matrix.pay()

    def expand(self) -> None:
        """Write the gradients that the sums give into the bucket's memory."""
        self.pay()
        for matrix in self._matrices.values():
            if self.is_whole:
                matrix.look()
            else:
                matrix.expand()
        if not self.is_whole:
            for part, place_in_sent in self._whole:
                part.copy_(place_in_sent)
            self.take_tail()
        self._num_sums += 1

    def handed_on(self) -> dict[str, Any]:
        """Return the state that all workers have alike, for a newcomer to take over."""
        return {
            "num_sums": self._num_sums,
            "factors": [each.right for each in self._matrices.values()],
        }

    def take_over(self, state: dict[str, Any]) -> None:
        """Go on from the state that another worker has `handed_on`."""
        self._num_sums = state["num_sums"]
        for matrix, right in zip(self._matrices.values(), state["factors"], strict=True):
            matrix.right.copy_(right)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the next steps: all workers' factors, and this worker's errors."""
        matrices = self._matrices.values()
        return {
            "num_sums": self._num_sums,
            "factors": [each.right.clone() for each in matrices],
            "errors": [each.error.clone() for each in matrices],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        self.take_over(state)
        for matrix, error in zip(self._matrices.values(), state["errors"], strict=True):
            matrix.error.copy_(error)


def _running(lengths: Sequence[int]) -> list[int]:
    """Return where parts of these lengths begin, and at last the end of them."""
    return [sum(lengths[:place]) for place in range(len(lengths) + 1)]


def _orthonormal(factor: Tensor) -> Tensor:
    """Return orthonormal columns that span the same space as the columns of `factor`."""
    wide = factor.to(torch.promote_types(factor.dtype, torch.float32))
    return torch.linalg.qr(wide.nan_to_num(0.0, 0.0, 0.0)).Q.to(factor.dtype).contiguous()
