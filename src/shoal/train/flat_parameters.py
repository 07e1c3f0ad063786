"""A model's parameters and averaged buffers as one contiguous tensor, without copying per step.

`FlatParameters` moves the storage of every trained parameter (and of every buffer that is averaged,
such as batch norm's running statistics) into one flat tensor per data type and device; the model
keeps working on views of it. Averaging a model is then one operation on few tensors
(docs/papers.md, 2.9: parameters and batch-norm statistics are averaged, optimizer state stays
local). Parameters that are not trained stay where they are: frozen ones, and quantized weights,
which have no mean. Tensors that share memory go on sharing it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from shoal.carriers import HOST
from shoal.errors import UsageError
from shoal.train.known_tensors import KnownBuffers, KnownParameters
from shoal.train.shared_memory import Stretch, stretches_of, tensors_of
from shoal.train.tensor_places import TensorPlaces
from shoal.workloads import has_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Held:
    """Elements of a flat tensor and the model's tensors in them: one, or several that overlap."""

    elements: range
    tensors: tuple[Tensor, ...]


class FlatParameters:
    """One flat tensor per (data type, device) that holds all of a model's averaged state.

    Trained parameters are laid out in `model.parameters()` order and followed by the averaged
    buffers; parameters that require no gradient now are left out.
    Dense tensors of any memory format keep their strides. Tensors that are given storage of their
    own later (`tensor.data = ...`) are taken back by `take_back`.
    """

    def __init__(self, model: nn.Module) -> None:
        self._buffers: list[Tensor] = []
        self._known = KnownParameters(model)
        self._statistics = KnownBuffers(model)
        self._places = TensorPlaces()
        self.before_access: Callable[[], None] = lambda: None
        """Called before the flat tensors are handed out: updates that were put off are made now."""
        parameters = trained_parameters(model)
        self.num_parameters = sum(p.numel() for p in parameters)
        """The number of parameters that are trained."""
        self.frozen = frozen_parameters(model)
        """The other parameters, which no flat tensor holds."""
        averaged = {id(each) for each in (*parameters, *self._statistics.tensors)}
        trained = {id(each) for each in parameters}
        # averaged ones first, so that the others of a stretch follow them
        everything = [*parameters, *self._statistics.tensors, *tensors_of(model)]
        kinds: dict[tuple[torch.dtype, torch.device], list[Stretch]] = {}
        all_stretches = stretches_of(everything)
        _check_all_lie_in(all_stretches, filter(has_mean, model.parameters()))
        for stretch in all_stretches:
            if any(id(each) in averaged for each in stretch.tensors):
                kinds.setdefault(_kind_of(stretch), []).append(stretch)
        if not kinds:
            raise UsageError("The model has no parameters to train.")
        self._is_shared = any(
            stretch.is_shared and any(id(each) in trained for each in stretch.tensors)
            for stretches in kinds.values()
            for stretch in stretches
        )
        ends = []
        self.held: list[list[Held]] = []
        """The model's tensors in each flat tensor, in order."""
        for (dtype, device), stretches in kinds.items():
            lengths = [_length_of(stretch) for stretch in stretches]
            flat = torch.empty(sum(lengths), dtype=dtype, device=device)
            held, start = [], 0
            for stretch, place in zip(stretches, flat.split(lengths), strict=True):
                held.append(Held(range(start, start + len(place)), stretch.tensors))
                start += len(place)
                if stretch.is_shared:
                    self._places.move_together(stretch, place)
                else:
                    self._places.move_in(stretch.tensors[0], place)
            self._buffers.append(flat)
            self.held.append(held)
            ends.append(
                sum(
                    length
                    for stretch, length in zip(stretches, lengths, strict=True)
                    if any(id(each) in trained for each in stretch.tensors)
                )
            )
        self.statistics: tuple[range, ...] = tuple(
            range(end, flat.numel()) for end, flat in zip(ends, self._buffers, strict=True)
        )
        """The elements of each flat tensor that are buffers (batch-norm statistics)."""

    @property
    def buffers(self) -> list[Tensor]:
        """The flat tensors, one per data type and device, in a fixed order."""
        self.before_access()
        return self._buffers

    @property
    def as_they_are(self) -> list[Tensor]:
        """The flat tensors, without the updates that are put off: to be read only."""
        return self._buffers

    def check_apart(self, what: str) -> None:
        """Raise `UsageError` if parameters share memory: `what` updates each by itself."""
        if self._is_shared:
            message = (
                f"A parameter shares its memory with another one or with a buffer, and {what}"
                " updates each by itself: tie modules by giving them the same Parameter"
                " (`head.weight = embedding.weight`), or use another strategy or overlap."
            )
            raise UsageError(message)

    def place_of(self, parameter: Tensor) -> tuple[int, range]:
        """Return the number of the flat tensor that holds `parameter` (not empty), and where.

        Raises `UsageError` if none holds it.
        """
        for number, buffer in enumerate(self.buffers):
            if (parameter.dtype, parameter.device) == (buffer.dtype, buffer.device):
                start = (parameter.data_ptr() - buffer.data_ptr()) // buffer.element_size()
                if 0 <= start <= buffer.numel() - parameter.numel():
                    return number, range(start, start + parameter.numel())
        raise UsageError(
            "A parameter does not live in the model's flat tensors; do not move or cast the model"
            " after making DistributedOptimizer, and give it an optimizer of that model's"
            " parameters."
        )

    def take_back(self) -> None:
        """Let tensors that were given storage of their own live here again, with their values.

        Raises `UsageError` for a model that has been moved or cast, or has other parameters.
        """
        self._known.check()
        self._statistics.bring_back()
        if not self._places.are_kept:
            self.before_access()
            self._places.take_back()


def _check_all_lie_in(stretches: Iterable[Stretch], parameters: Iterable[Tensor]) -> None:
    """Raise `UsageError` if one of `parameters` has no memory of its own."""
    found = {id(each) for stretch in stretches for each in stretch.tensors}
    for parameter in parameters:
        if parameter.numel() and id(parameter) not in found:
            message = (
                f"A parameter is a {type(parameter.data).__name__}, which holds its numbers in"
                " other tensors: DistributedOptimizer takes models of plain tensors."
            )
            raise UsageError(message)


def _kind_of(stretch: Stretch) -> tuple[torch.dtype, torch.device]:
    """Return the type and device of the tensors in `stretch`; raise `UsageError` for several."""
    first = stretch.tensors[0]
    if any(each.dtype != first.dtype for each in stretch.tensors):
        raise UsageError(
            "A parameter or buffer of the model shares its memory with a tensor of another type;"
            " give each its own memory (`tensor.clone()`) before making DistributedOptimizer."
        )
    return first.dtype, first.device


def _length_of(stretch: Stretch) -> int:
    """Return how many elements `stretch` needs: a tensor alone in it is laid out densely."""
    first = stretch.tensors[0]
    return stretch.num_bytes // first.element_size() if stretch.is_shared else first.numel()


def trained_parameters(model: nn.Module) -> list[Tensor]:
    """Return the averaged parameters: those that require a gradient and have a mean."""
    return [p for p in model.parameters() if p.requires_grad and has_mean(p)]


def frozen_parameters(model: nn.Module) -> list[Tensor]:
    """Return the other parameters: frozen ones, integers, truth values, floats of 8 bits."""
    trained = {id(parameter) for parameter in trained_parameters(model)}
    return [p for p in model.parameters() if id(p) not in trained]


def bytes_of(tensor: Tensor) -> Tensor:
    """Return the bytes of `tensor` in host memory: its own memory if it is contiguous there."""
    return tensor.detach().to(HOST).contiguous().view(-1).view(torch.uint8)
