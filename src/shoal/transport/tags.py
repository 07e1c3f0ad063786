"""Which packets matter: tags computed from the values that they carry.

A packet is important if the magnitude of its block of the gradient reaches a threshold; the
network is to drop the others first. The threshold of a tensor is a quantile of its blocks'
magnitudes in the previous iteration, so tagging takes one pass over a sample of the values and no
sorting of the present ones. Of parameters that are averaged, what counts is by how much they have
changed since their last mean (`last_means`). To measure what the order of loss is worth (section
1.2), small values can be tagged instead, or none. Layers map to classes, front layers to the most
urgent, because the next forward pass needs them first (docs/papers.md, 1.6; the papers leave the
choice of the threshold open).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from shoal.compiled import F4, F8, compiled, entry, rows_at
from shoal.transport.bitmap import clear_bits, fill_bits, set_bit
from shoal.transport.forms import FLOAT64, IN_FLOAT32, widening
from shoal.transport.last_means import change_of
from shoal.transport.tables import CLASSES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shoal.transport.messages import MessageTables

SAMPLE: Final = 10
"""Values of a block that are looked at, as in the prototype."""

_UNKNOWN: Final = -1.0
"""A threshold before the first iteration."""

LARGE, SMALL, NONE = "large", "small", "none"
IMPORTANCE: Final = (LARGE, SMALL, NONE)
"""The kinds of packets that may be tagged important: those of large values, those of small ones, or
none at all, so that what is lost does not depend on values."""

LARGE_CHANGE: Final = "changed"
"""The kind of packets that are important in a mean of parameters: those of large changes."""

_NOTHING_KEPT: Final = np.zeros(0)
"""The elements kept of a tensor whose tags go by the values themselves."""

UNIMPORTANT_SHARE: Final = 0.5
"""The share of the blocks that are left to the network to drop: far more than any bound forgives,
so that it always finds one."""

KEPT_THRESHOLDS: Final = 4096
"""The number of tensors, the latest ones, whose thresholds are remembered."""


LayerClasses: TypeAlias = tuple[tuple[int, int], ...]
"""Element by element, which class messages have: each pair says from which element on, and which
class, 0 for the most urgent. The first begins with element 0."""

MOST_URGENT: Final[LayerClasses] = ((0, 0),)


def layer_class(layer: int, layers: int) -> int:
    """Return the class, 0 for the most urgent, of `layer` of so many, counted from the input."""
    return min(CLASSES - 1, layer * CLASSES // max(1, layers))


def classes_of(starts: Sequence[int], layers: Sequence[int], depth: int) -> LayerClasses:
    """Return the classes in a buffer that holds layer `layers[k]` from element `starts[k]` on.

    The model has `depth` layers.
    """
    classes: list[tuple[int, int]] = []
    for start, layer in zip(starts, layers, strict=True):
        found = layer_class(layer, depth)
        if not classes or classes[-1][1] != found:
            classes.append((start, found))
    return tuple(classes)


def class_of(classes: LayerClasses, first: int, last: int) -> int:
    """Return the class of a message with the elements from `first` on and before `last`.

    That is the most urgent one of any element in it.
    """
    begin = max(0, bisect_right(classes, first, key=_start) - 1)
    end = max(begin + 1, bisect_left(classes, last, key=_start))
    return min(found for _, found in classes[begin:end])


def _start(part: tuple[int, int]) -> int:
    return part[0]


class ImportanceTagger:
    """Tags messages, and remembers for every tensor what counted as large in the last iteration.

    `unimportant` is the share of blocks tagged unimportant if magnitudes stay as they were.
    """

    def __init__(self, unimportant: float = UNIMPORTANT_SHARE) -> None:
        self._unimportant = unimportant
        self._thresholds: dict[Hashable, float] = {}

    def tag(
        self,
        tables: MessageTables,
        tensor: Hashable,
        importance: str = LARGE,
        *,
        address: int = 0,
        sample: NDArray[np.float64] = _NOTHING_KEPT,
    ) -> None:
        """Tag the packets of all messages that have room for tags; `tensor` names what they carry.

        `importance` is one of `IMPORTANCE`, or `LARGE_CHANGE`: the tensor begins at `address` then,
        and `sample` is what `LastMeans` has of it. In a tensor's first iteration everything is
        important, unless nothing ever is.
        """
        segments = int(tables.outgoing["segments"][tables.outgoing["important"] != 0].sum())
        if segments == 0:
            return
        if importance == NONE:
            clear_tags(tables.outgoing)
            return
        by_change = importance == LARGE_CHANGE
        is_unknown = by_change and sample.size == 0
        found = np.zeros(segments)
        tag_messages(
            tables.outgoing,
            tables.segment_bytes,
            _UNKNOWN if is_unknown else self._thresholds.get(tensor, _UNKNOWN),
            found,
            importance == SMALL,
            address,
            sample if by_change else _NOTHING_KEPT,
        )
        if is_unknown:
            return
        self._thresholds.pop(tensor, None)
        self._thresholds[tensor] = self._threshold_after(found)
        if len(self._thresholds) > KEPT_THRESHOLDS:
            self._thresholds.pop(next(iter(self._thresholds)))

    def _threshold_after(self, magnitudes: NDArray[np.float64]) -> float:
        """Return the smallest magnitude that would have been important by its rank."""
        finite = magnitudes[np.isfinite(magnitudes)]
        if len(finite) == 0:
            return _UNKNOWN
        rank = min(int(self._unimportant * len(finite)), len(finite) - 1)
        return float(np.partition(finite, rank)[rank])


@entry
def tag_messages(
    outgoing: NDArray[np.void],
    segment_bytes: int,
    threshold: float,
    magnitudes: NDArray[np.float64],
    small: bool,
    tensor: int,
    sample: NDArray[np.float64],
) -> None:
    """Set the importance bit of every block that reaches `threshold`; note all magnitudes.

    With `small`, of every block that does not reach it. Where `sample` holds elements, magnitudes
    are of what has changed since in the tensor that begins at address `tensor`.
    """
    at = 0
    for index in range(outgoing.size):
        row = outgoing[index]
        if row.important == 0:
            continue
        if threshold < 0:
            fill_bits(row.important, row.segments)
        else:
            clear_bits(row.important, row.segments)
        for segment in range(row.segments):
            offset = segment * segment_bytes
            length = min(segment_bytes, row.size - offset)
            if sample.size == 0:
                found = block_magnitude(row.form, row.address, offset, length)
            else:
                found = block_change(row.form, row.address, offset, length, tensor, sample)
            magnitudes[at] = found
            at += 1
            if threshold >= 0 and ((found >= threshold) != small or np.isnan(found)):
                set_bit(row.important, segment)


@entry
def clear_tags(outgoing: NDArray[np.void]) -> None:
    """Tag no packet as important."""
    for index in range(outgoing.size):
        row = outgoing[index]
        if row.important != 0:
            clear_bits(row.important, row.segments)


@entry
def tag_these(outgoing: NDArray[np.void], flags: NDArray[np.bool_]) -> None:
    """Tag those packets as important whose `flags` say so: one for each that has room for a tag."""
    at = 0
    for index in range(outgoing.size):
        row = outgoing[index]
        if row.important == 0:
            continue
        clear_bits(row.important, row.segments)
        for segment in range(row.segments):
            if flags[at + segment]:
                set_bit(row.important, segment)
        at += row.segments


@compiled
def block_change(
    form: int,
    message: int,
    offset: int,
    length: int,
    tensor: int,
    sample: NDArray[np.float64],
) -> float:
    """Return by how much the block's elements have changed since their tensor's last mean."""
    width = 8 if form == FLOAT64 else 4 // widening(form)
    return change_of(form, tensor, message + offset * widening(form), length // width, sample)


@compiled
def block_magnitude(form: int, message: int, offset: int, length: int) -> float:
    """Return the mean absolute value of a sample of the block's elements; NaN if one is."""
    width = 8 if form == FLOAT64 else 4 // widening(form)
    count = length // width
    step = max(1, count // SAMPLE)
    address = message + offset * widening(form)
    total, taken = 0.0, 0
    if form == FLOAT64:
        wide = rows_at(address, count, F8)
        for index in range(0, count, step):
            total += abs(wide[index])
            taken += 1
    elif form in IN_FLOAT32:
        values = rows_at(address, count, F4)
        for index in range(0, count, step):
            total += abs(float(values[index]))
            taken += 1
    return total / max(1, taken)
