"""Means over Shoal's transport of what a model consists of, in any framework: seen as arrays.

Owns the memory that gradients or parameters are laid out in and how they become sums: in buckets,
rear layers first, as `train.gradient_buckets` does for torch. Knows no framework; what each has of
its own is in `adapters`. (docs/papers.md, 1.5 and 1.6.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from hashlib import blake2b
from inspect import Parameter, signature
from sys import getrefcount
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shoal.carriers import DEFAULT_HOLES, check_transport
from shoal.collectives import BUCKET_BYTES, layout_buckets
from shoal.errors import MismatchError, UsageError
from shoal.groups import checked_weights
from shoal.session import NumpyCommunicator
from shoal.transport import classes_of, sum_form
from shoal.wire import KEPT_GROUPS, Memory, SumOptions, mean_options

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shoal.wire import TransportGroup

_FLOAT: Final = np.dtype(np.float32)
_ALIGNMENT: Final = 64
"""Bytes: TensorFlow and JAX take an array that begins at a multiple of it as it is, others they
copy."""


class ArrayMeans:
    """Averages the gradients of one model, or its parameters, again and again.

    Of each rank's contribution the network may lose the share `loss_bound`; `holes` says what a
    lost part of gradients counts as and `wire` what gradients are sent as, as for
    `shoal.DistributedOptimizer`: parameters sent as float16 would lose what a step changes in them.
    Raises `UsageError` for options that mean nothing.

    Ranks that have several make them in the same order. Arrays belong to the model's layers from
    the input on. They are left as they are; means are float32, and nobody writes to them for as
    long as anybody holds them. All calls have arrays of real numbers, of the same shapes;
    `UsageError` if not.
    """

    def __init__(
        self,
        communicator: NumpyCommunicator,
        *,
        loss_bound: float = 0.0,
        holes: str = DEFAULT_HOLES,
        wire: str | None = None,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._policy = check_transport("shoal", loss_bound, holes, wire)
        self._communicator = communicator
        self._loss_bound = float(loss_bound)
        self._holes = holes
        self._wire = wire
        self._bucket_bytes = bucket_bytes
        self.owner = type(self).__name__
        """What users know it as, for what they are told."""
        self._layout: _Layout | None = None
        make = partial(communicator.new_group, meaning=("means", next(communicator.user_numbers)))
        self._run_time_group = lru_cache(maxsize=KEPT_GROUPS)(make)

    def gradients(self, gradients: Sequence[NDArray[Any]]) -> list[NDArray[np.float32]]:
        """Return their means over all ranks, which all call this alike.

        Raises `MismatchError` if at the first call some rank has arrays of other shapes, or was
        given other options.
        """
        layout = self._laid_out(gradients, together=True)
        group = self._communicator.group()
        options = replace(
            self._communicator.sums,
            scale=1 / group.size,
            loss_bound=self._loss_bound,
            policy=self._policy,
            tensor=(id(self), "gradients") if self._loss_bound else None,
            wire=self._wire,
        )
        return self._carry_out(layout, gradients, group, options)

    def parameters(
        self,
        parameters: Sequence[NDArray[Any]],
        group: Sequence[int] | None = None,
        *,
        weights: Iterable[int] = (),
        sequence: int | None = None,
    ) -> list[NDArray[np.float32]]:
        """Return their means over the ranks of `group`, or all; a lost part counts as not there.

        The members of a group call this alike, each as often for the same group; where groups are
        formed at run time, `sequence` is the number of this one among all of them, which its
        members know. `weights` are the members' relative weights, whole numbers; nothing gets lost
        then.
        """
        layout = self._laid_out(parameters, together=False)
        members = tuple(range(self._communicator.world_size) if group is None else group)
        if sequence is None:
            found = self._communicator.group(members)
        else:
            found = self._run_time_group(members)
        checked = checked_weights(weights, found.size)
        if checked:
            factor = checked[found.me] / sum(checked)
            parameters = [np.multiply(each, factor, dtype=np.float32) for each in parameters]
        options = mean_options(
            found.size,
            is_weighted=bool(checked),
            loss_bound=self._loss_bound,
            tensor=(id(self), "parameters"),
        )
        return self._carry_out(layout, parameters, found, options, sequence=sequence)

    def _laid_out(self, arrays: Sequence[NDArray[Any]], *, together: bool) -> _Layout:
        """Return where these arrays lie; the first time, all ranks agree on it if all are there."""
        for each in arrays:
            if not np.can_cast(each.dtype, _FLOAT, "same_kind"):
                message = (
                    f"Only real numbers can be averaged, not {each.dtype}; of complex arrays,"
                    " average the real and the imaginary parts."
                )
                raise UsageError(message)
        shapes = [each.shape for each in arrays]
        if self._layout is None:
            if together:
                self._agree_on(shapes)
            self._layout = _Layout(shapes, self._bucket_bytes)
        if shapes != self._layout.shapes:
            message = (
                f"These are other arrays than before: shapes {shapes}, not {self._layout.shapes}."
                f" Each model needs its own {self.owner}."
            )
            raise UsageError(message)
        return self._layout

    def _agree_on(self, shapes: list[tuple[int, ...]]) -> None:
        options = {"loss_bound": self._loss_bound, "holes": self._holes, "wire": self._wire}
        mine = np.stack([_digest(each) for each in (shapes, *options.values())])
        differs = (self._communicator.all_gather(mine) != mine).any(axis=2).T
        rank, others = self._communicator.rank, [np.flatnonzero(each).tolist() for each in differs]
        if others[0]:
            message = (
                f"Rank {rank} has other arrays than ranks {others[0]}: its {len(shapes)} have the"
                f" shapes {shapes}. All ranks train the same model."
            )
            raise MismatchError(message)
        for (name, value), those in zip(options.items(), others[1:], strict=True):
            if those:
                message = (
                    f"The {name} of {self.owner} is {value!r} on rank {rank} and another on ranks"
                    f" {those}. All ranks give the same."
                )
                raise MismatchError(message)

    def _carry_out(
        self,
        layout: _Layout,
        arrays: Sequence[NDArray[Any]],
        group: TransportGroup,
        options: SumOptions,
        *,
        sequence: int | None = None,
    ) -> list[NDArray[np.float32]]:
        """Start a sum for each bucket, the rear layers' first; return the means once all are there.

        Each array counts as a layer, in the order in which they are given.
        """
        means: list[NDArray[np.float32]] = [_NOTHING] * len(arrays)
        transfers, form = [], sum_form(_FLOAT.name, options.wire)
        for number, (bucket, kept) in enumerate(layout.buckets):
            memory = kept.take()
            for index, offset in zip(bucket.parameters, bucket.offsets, strict=True):
                end = offset + arrays[index].size
                means[index] = memory[offset:end].reshape(layout.shapes[index])
                np.copyto(means[index], arrays[index], casting="unsafe")
            if group.size == 1:
                continue
            kind = replace(
                options,
                layers=classes_of(bucket.offsets, bucket.parameters, len(arrays)),
                tensor=None if options.tensor is None else (options.tensor, number),
            )
            piece = Memory(memory.ctypes.data, memory.size, form, memory)
            place = None if sequence is None else sequence * len(layout.buckets) + number
            transfers.append(group.all_reduce(piece, kind, iteration=place))
        for transfer in transfers:
            transfer.wait()
        return means


def means_for(owner: str, communicator: object, options: Mapping[str, Any]) -> ArrayMeans:
    """Return what `owner`, as users of an adapter know it, averages with.

    Raises `UsageError`, in terms of `owner`, for options that are none of `ArrayMeans`, and for
    anything else than a communicator.
    """
    if not isinstance(communicator, NumpyCommunicator):
        message = f"{owner} needs what shoal.connect() returns, not {type(communicator).__name__}."
        raise UsageError(message)
    for name in options:
        if name not in _OPTIONS:
            message = f"{owner} has no option {name!r}; its options: {', '.join(_OPTIONS)}."
            raise UsageError(message)
    means = ArrayMeans(communicator, **options)
    means.owner = owner
    return means


_OPTIONS: Final = [
    each.name
    for each in signature(ArrayMeans).parameters.values()
    if each.kind is Parameter.KEYWORD_ONLY
]


def _digest(value: object) -> NDArray[np.uint8]:
    return np.frombuffer(blake2b(repr(value).encode(), digest_size=16).digest(), np.uint8)


class _Layout:
    """The places of arrays of these shapes: in buckets, each with memory of its own."""

    def __init__(self, shapes: list[tuple[int, ...]], bucket_bytes: int) -> None:
        unit = _ALIGNMENT // _FLOAT.itemsize
        counts = [-(-int(np.prod(shape)) // unit) * unit for shape in shapes]
        buckets = layout_buckets(counts, _FLOAT.itemsize, bucket_bytes=bucket_bytes)
        self.shapes = shapes
        self.buckets = [(each, _Memory(each.num_elements)) for each in buckets]


_NOTHING: Final = np.empty(0, np.float32)


def _holders(arrays: list[NDArray[np.float32]], number: int) -> int:
    """Return how many hold an array of a list, the list and this function among them.

    Whoever holds a part of an array holds the array: NumPy's views, and what frameworks have taken
    over.
    """
    return getrefcount(arrays[number])


_NOBODY_ELSE: Final = _holders([np.empty(0, np.float32)], 0)


class _Memory:
    """Aligned memory for a bucket: the same memory again once nothing refers to its contents."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._made: list[NDArray[np.float32]] = []

    def take(self) -> NDArray[np.float32]:
        """Return a bucket's memory; what lies between gradients in it is zero."""
        spare = _ALIGNMENT // _FLOAT.itemsize
        for number in range(len(self._made)):
            if _holders(self._made, number) == _NOBODY_ELSE:
                break
        else:
            number = len(self._made)
            self._made.append(np.zeros(self._count + spare, np.float32))
        memory = self._made[number]
        begin = -memory.ctypes.data % _ALIGNMENT // _FLOAT.itemsize
        return memory[begin : begin + self._count]
