"""Gradients of matrices as products of two thin ones, of which one is summed in each step.

A gradient of m by n elements is near the product of a left factor of m by r and the transpose of a
right one of n by r. PowerSGD (Vogels et al., NeurIPS 2019, algorithm 1) sums the left factor, and
then the right one that fits it. Here they take turns, as in ACP-SGD (Zhang et al., ICDCS 2023): a
step sums the left ones that fit the right ones of the step before, and the next step the right
ones. So a bucket has one sum a step, half as large, which waits for no other: it hides behind
computing like that of whole gradients. What the product lacks of a worker's gradient is added to
its next one (error feedback).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, Final

import torch

from shoal.carriers import HOST

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torch import Tensor

_LEFT, _RIGHT = 0, 1
_SEED: Final = 4099
"""Makes the first right factors, which all workers have alike."""


@dataclass(slots=True)
class _Matrix:
    """A parameter's gradient as a matrix, what it was short of before, and its two factors.

    Of everything there are two, in the order of turns: as it is, for a sum of left factors, and
    transposed.
    """

    gradients: tuple[Tensor, Tensor]
    errors: tuple[Tensor, Tensor]
    factors: list[Tensor]
    sent: list[Tensor] = field(default_factory=list)
    """The places of the factors in what is sent, by turns."""

    def compress(self, turn: int, *, is_new: bool) -> None:
        """Write this worker's factor, and keep what the product lacks; zeros if it has nothing."""
        sent, gradient, error = self.sent[turn], self.gradients[turn], self.errors[turn]
        fixed = self.factors[1 - turn] = _orthonormal(self.factors[1 - turn])
        if not is_new:
            sent.zero_()
            return
        error.add_(gradient)
        torch.mm(error, fixed, out=sent)
        error.addmm_(sent, fixed.T, alpha=-1)
        # A gradient with infinities is a step that a scaler skips. The next one begins anew.
        error.nan_to_num_(0.0, 0.0, 0.0)

    def expand(self, turn: int) -> None:
        """Make the sum of all workers' gradients of the sum of their factors."""
        torch.mm(self.sent[turn], self.factors[1 - turn].T, out=self.gradients[turn])
        self.factors[turn] = self.sent[turn].clone()


class LowRankBucket:
    """What travels of one bucket of gradients, whose `memory` they lie in.

    Of each parameter, `shapes` says what it is and `offsets` where it begins in `memory`. Those
    that are no matrices, or hardly larger than their factors of `rank`, travel whole, and so does
    what comes after all of them.
    """

    def __init__(
        self, memory: Tensor, shapes: Sequence[torch.Size], offsets: Sequence[int], rank: int
    ) -> None:
        self._turn = _LEFT
        self._matrices: dict[int, _Matrix] = {}
        """The matrices, by their places in the bucket."""
        ends = [offset + prod(shape) for shape, offset in zip(shapes, offsets, strict=True)]
        parts = [memory[start:end] for start, end in zip(offsets, ends, strict=True)]
        generator = torch.Generator(HOST).manual_seed(_SEED)
        for place, (shape, part) in enumerate(zip(shapes, parts, strict=True)):
            rows, columns = _sides(shape)
            if 2 * rank * (rows + columns) < rows * columns:
                gradient = part.view(rows, columns)
                error = torch.zeros_like(gradient)
                right = torch.randn(columns, rank, generator=generator, device=HOST).to(memory)
                factors = [memory.new_zeros(rows, rank), right]
                self._matrices[place] = _Matrix((gradient, gradient.T), (error, error.T), factors)
        self._sent: list[Tensor] = []
        """The memory that is summed, by turns."""
        self._starts: list[list[int]] = []
        """The place in it where each parameter begins."""
        self._whole: list[list[tuple[Tensor, Tensor]]] = []
        """Parts that travel whole: in the bucket, and in what is summed."""
        for turn in (_LEFT, _RIGHT):
            self._lay_out(turn, [*parts, memory[ends[-1] :]])

    def _lay_out(self, turn: int, parts: Sequence[Tensor]) -> None:
        factors = {place: each.factors[turn] for place, each in self._matrices.items()}
        lengths = [factors.get(place, part).numel() for place, part in enumerate(parts)]
        sent = parts[0].new_zeros(sum(lengths))
        places = sent.split(lengths)
        for number, matrix in self._matrices.items():
            matrix.sent.append(places[number].view(matrix.factors[turn].shape))
        self._sent.append(sent)
        self._starts.append([sum(lengths[:place]) for place in range(len(parts))])
        whole = [place for place in range(len(parts)) if place not in self._matrices]
        self._whole.append([(parts[place], places[place]) for place in whole])

    @property
    def sent(self) -> Tensor:
        """The memory that is summed in this step, after `compress`."""
        return self._sent[self._turn]

    @property
    def starts(self) -> list[int]:
        """The places in `sent` where parameters begin, and at last the end of them."""
        return self._starts[self._turn]

    def compress(self, new: Collection[int]) -> None:
        """Write what is to be summed; `new` are the places of parameters that have a gradient."""
        for place, matrix in self._matrices.items():
            matrix.compress(self._turn, is_new=place in new)
        for part, place_in_sent in self._whole[self._turn]:
            place_in_sent.copy_(part)

    def expand(self) -> None:
        """Write what the sum says into the bucket's memory."""
        for matrix in self._matrices.values():
            matrix.expand(self._turn)
        for part, place_in_sent in self._whole[self._turn]:
            part.copy_(place_in_sent)
        self._turn = 1 - self._turn

    def state_dict(self) -> dict[str, Any]:
        """Return what the next steps depend on: this worker's errors, and all workers' factors."""
        matrices = self._matrices.values()
        return {
            "turn": self._turn,
            "errors": [each.errors[_LEFT].clone() for each in matrices],
            "factors": [[factor.clone() for factor in each.factors] for each in matrices],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        self._turn = state["turn"]
        found = zip(self._matrices.values(), state["errors"], state["factors"], strict=True)
        for matrix, error, factors in found:
            matrix.errors[_LEFT].copy_(error)
            for own, given in zip(matrix.factors, factors, strict=True):
                own.copy_(given)


def _sides(shape: torch.Size) -> tuple[int, int]:
    """Return the rows and columns of a parameter as a matrix; those of a vector are one column."""
    return (shape[0], prod(shape[1:])) if shape else (1, 1)


def _orthonormal(factor: Tensor) -> Tensor:
    """Return columns of length 1, at right angles, that span what those of `factor` do."""
    wide = factor.to(torch.promote_types(factor.dtype, torch.float32))
    return torch.linalg.qr(wide.nan_to_num(0.0, 0.0, 0.0)).Q.to(factor.dtype)
