"""Means over Shoal's transport of what a model consists of, in any framework: seen as arrays.

Owns the memory that gradients or parameters are laid out in and how they become sums: in buckets,
rear layers first, as `train.gradient_buckets` does for torch. Knows no framework; what each has of
its own is in `adapters`. (Research digest, sections 1.5 and 1.6.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from sys import getrefcount
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shoal.collectives.buckets import BUCKET_BYTES, layout_buckets
from shoal.errors import MismatchError, UsageError
from shoal.runtime.transports import DEFAULT_HOLES, check_transport
from shoal.runtime.udp.group import Memory, SumOptions
from shoal.transport.forms import sum_form
from shoal.transport.tags import layer_class

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shoal.collectives.buckets import Bucket
    from shoal.runtime.numpy_communicator import NumpyCommunicator

_FLOAT: Final = np.dtype(np.float32)
_ALIGNMENT: Final = 64
"""Bytes: TensorFlow and JAX take an array that begins at a multiple of it as it is, others they
copy."""


class ArrayMeans:
    """Averages the gradients of one model, or its parameters, again and again.

    Of each rank's gradients the network may lose the share `loss_bound`; `holes` says what a lost
    part counts as and `wire` what floats are sent as, as for `shoal.DistributedOptimizer`. Raises
    `UsageError` for options that mean nothing.
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
        policy = check_transport("shoal", loss_bound, holes, wire)
        self._communicator = communicator
        self._options = SumOptions(loss_bound=loss_bound, policy=policy)
        self._form = sum_form(_FLOAT.name, wire)
        self._bucket_bytes = bucket_bytes
        self._shapes: list[tuple[int, ...]] | None = None
        self._buckets: tuple[Bucket, ...] = ()
        self._memories: list[_Memory] = []

    def average(
        self, arrays: Sequence[NDArray[Any]], *, group: Sequence[int] | None = None
    ) -> list[NDArray[np.float32]]:
        """Return the means of `arrays`, which belong to the layers from the input on.

        They are left as they are; what is returned is float32, and nobody writes to it for as long
        as anybody holds it. Collective, for all ranks at the first call and for those of `group`
        later: each has arrays of the same shapes, those of the first call. Raises `MismatchError`
        and `UsageError` if not, and for a group that may lose something: what one has lost cannot
        be made good in another.
        """
        shapes = [each.shape for each in arrays]
        if self._shapes is None:
            self._lay_out(shapes)
        if shapes != self._shapes:
            message = (
                f"These are other arrays than before: shapes {shapes}, not {self._shapes}."
                " Average each model's by an ArrayMeans of its own."
            )
            raise UsageError(message)
        if group is not None and self._options.loss_bound:
            raise UsageError("Means of a group lose nothing: leave out loss_bound, or the group.")
        members = self._communicator.group(group)
        options = replace(self._options, scale=1 / members.size)
        means: list[NDArray[np.float32]] = [_NOTHING] * len(shapes)
        transfers = []
        for number, bucket in enumerate(self._buckets):
            memory = self._memories[number].take()
            for index, offset in zip(bucket.parameters, bucket.offsets, strict=True):
                count = arrays[index].size
                means[index] = memory[offset : offset + count].reshape(shapes[index])
                np.copyto(means[index], arrays[index], casting="unsafe")
            piece = Memory(memory.ctypes.data, memory.size, self._form, memory)
            kind = replace(
                options,
                layer_class=layer_class(min(bucket.parameters), len(shapes)),
                tensor=(id(self), number) if options.loss_bound else None,
            )
            transfers.append(members.all_reduce(piece, kind))
        for transfer in transfers:
            if transfer is not None:
                transfer.wait()
        return means

    def _lay_out(self, shapes: list[tuple[int, ...]]) -> None:
        """Divide arrays of these shapes into buckets, as all other ranks do."""
        mine = blake2b(repr(shapes).encode(), digest_size=16).digest()
        theirs = self._communicator.all_gather(np.frombuffer(mine, np.uint8).copy())
        others = [rank for rank, each in enumerate(theirs) if each.tobytes() != mine]
        if others:
            message = (
                f"Rank {self._communicator.rank} has other arrays than ranks {others}: its"
                f" {len(shapes)} have the shapes {shapes}. All ranks train the same model."
            )
            raise MismatchError(message)
        unit = _ALIGNMENT // _FLOAT.itemsize
        counts = [-(-int(np.prod(shape)) // unit) * unit for shape in shapes]
        self._buckets = layout_buckets(counts, _FLOAT.itemsize, bucket_bytes=self._bucket_bytes)
        self._memories = [_Memory(each.num_elements) for each in self._buckets]
        self._shapes = shapes


_NOTHING: Final = np.empty(0, np.float32)


def _holders(arrays: list[NDArray[np.float32]], number: int) -> int:
    """Return how many hold an array of a list, the list and this function among them.

    Whoever holds a part of an array holds the array: NumPy's views, and what TensorFlow and JAX
    have taken over.
    """
    return getrefcount(arrays[number])


_NOBODY_ELSE: Final = _holders([np.empty(0, np.float32)], 0)


class _Memory:
    """Aligned memory for a bucket: the same one again once nobody holds what was in it."""

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
