"""How large a model is, layer by layer, and which share of computing each layer takes.

Sizes follow from the architectures' definitions; nothing here is measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import isqrt, prod

from shoal.collectives import WHOLE_SUMS, cut_into_pieces, factor_elements, layout_buckets
from shoal.errors import UsageError
from shoal.transport import layer_class

ELEMENT_BYTES = 4

FORWARD = 1 / 3
"""The forward pass's share of a step's computing: backward takes twice as long, a product for
inputs and one for weights."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: its parameters, and its share of the step's multiplications."""

    name: str
    parameters: int
    share: float
    shapes: tuple[tuple[int, ...], ...] = ()
    """The shapes of the matrices among its parameters; the rest are vectors."""

    def elements_sent(self, low_rank: int) -> int:
        """Return how many elements of its gradient are sent as factors of low rank, or beside them.

        With 0 they are all sent.
        """
        if not low_rank:
            return self.parameters
        found = ((prod(shape), factor_elements(shape, low_rank)) for shape in self.shapes)
        return self.parameters - sum(whole - sent for whole, sent in found if sent is not None)


@dataclass(frozen=True, slots=True)
class ModelBucket:
    """Layers whose gradients are summed together."""

    share: float
    """The share of the step until backward has made them, since the bucket before."""
    bytes: float
    layer_class: int
    """The urgency of its front-most layer."""
    factor_bytes: float
    """Its bytes once gradients are sent as factors of low rank, if they are."""

    def sent(self, number: int) -> float:
        """Return the bytes of it that sum `number` of a job sends, the first being 0."""
        return self.bytes if number < WHOLE_SUMS else self.factor_bytes


@dataclass(frozen=True, slots=True)
class ModelPiece:
    """Layers whose parameters are averaged by themselves."""

    bytes: float
    forward: float
    """The share of the step that going forward through them takes."""
    layer_class: int


@dataclass(frozen=True)
class ModelSize:
    """Layers from the first to the last."""

    name: str
    layers: tuple[Layer, ...]

    @cached_property
    def bytes(self) -> int:
        """The bytes of all parameters."""
        return ELEMENT_BYTES * sum(layer.parameters for layer in self.layers)

    def buckets(
        self, bucket_bytes: int | None, num_hosts: int, low_rank: int = 0
    ) -> list[ModelBucket]:
        """Return what is summed together, in the order in which backward makes it.

        Sizes are as in `collectives.layout_buckets`; `low_rank` as `strategies.AllReduce` has it.
        """
        sent = [
            each.elements_sent(low_rank) if low_rank else each.parameters for each in self.layers
        ]
        sizes = [layer.parameters for layer in self.layers]
        layout = layout_buckets(
            sizes, ELEMENT_BYTES, bucket_bytes=bucket_bytes, num_hosts=num_hosts
        )
        return [
            ModelBucket(
                (1 - FORWARD) * sum(self.layers[each].share for each in bucket.parameters),
                float(bucket.num_elements * ELEMENT_BYTES),
                layer_class(min(bucket.parameters), len(self.layers)),
                float(sum(sent[each] for each in bucket.parameters) * ELEMENT_BYTES),
            )
            for bucket in layout
        ]

    @cached_property
    def pieces(self) -> tuple[ModelPiece, ...]:
        """What is averaged by itself and waited for layer by layer, from the front to the rear."""
        sizes = [layer.parameters * ELEMENT_BYTES for layer in self.layers]
        return tuple(
            ModelPiece(
                float(sum(sizes[indices.start : indices.stop])),
                FORWARD * sum(self.layers[each].share for each in indices),
                layer_class(indices.start, len(self.layers)),
            )
            for indices in cut_into_pieces(sizes)
        )

    @cached_property
    def elements_of_pieces(self) -> tuple[slice, ...]:
        """The elements of each of `pieces` among all parameters."""
        ends = [
            int(end) for end in accumulate(piece.bytes // ELEMENT_BYTES for piece in self.pieces)
        ]
        return tuple(slice(start, end) for start, end in zip([0, *ends], ends, strict=False))


def even(name: str, parameters: int, layers: int) -> ModelSize:
    """Return a model of `layers` that are all alike, each one matrix with about equal sides.

    Raises `UsageError` if there are none.
    """
    if layers < 1 or parameters < layers:
        message = f"{parameters} parameters cannot make {layers} layers."
        raise UsageError(message)
    whole = [parameters * (each + 1) // layers for each in range(layers)]
    sizes = [b - a for a, b in zip([0, *whole], whole, strict=False)]
    return ModelSize(
        name,
        tuple(
            Layer(f"layer{k}", n, 1 / layers, ((isqrt(n), n // isqrt(n)),))
            for k, n in enumerate(sizes)
        ),
    )
