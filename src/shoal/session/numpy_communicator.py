"""Shoal's collectives on NumPy arrays: `shoal.connect()`, without torch.

Owns the translation of arrays into memory and the checks of arguments; all data moves by transfers
of a `TransportGroup`. Every call blocks until this rank's part is done and works in the calling
thread's order: all members of a group make the same calls in the same order.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from shoal.arguments import one_of, seconds, share, whole_number
from shoal.control import exchange_cards
from shoal.errors import UsageError
from shoal.launch import read_launch
from shoal.transport import (
    FLOAT_TYPES,
    IN_FLOAT32,
    POLICIES,
    RAW,
    SUMMABLE,
    LastMeans,
    sum_form,
)
from shoal.watch import serve_if_asked
from shoal.wire import (
    EXACT,
    Memory,
    Shown,
    SumOptions,
    TransportGroup,
    check_alike,
    from_environment,
    new_engine,
    shown_by,
    stream_of,
)

if TYPE_CHECKING:
    from shoal.errors import ShoalError
    from shoal.wire import TransportStats, UdpEngine

Array = NDArray[Any]


def connect(*, deadline_s: float = 60.0) -> NumpyCommunicator:
    """Join the job that the environment describes and return the communicator of its ranks.

    RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT name this rank and the meeting place, as torchrun
    sets them; SHOAL_JOB_KEY keeps strangers out and is required beyond one machine. `deadline_s`
    bounds every wait for other ranks.

    Raises `UsageError`, `MismatchError` or `ResourceError` if the rank cannot join,
    `DeadlineExceeded` if other ranks do not come.
    """
    deadline_s = seconds(deadline_s, "The deadline")
    launch, settings = read_launch(), from_environment()
    engine = new_engine(launch.rank, launch.world_size, settings, deadline_s=deadline_s)
    try:
        card = msgspec.msgpack.encode(Shown.by(engine, settings.sums))
        cards = exchange_cards(launch.rank, launch.world_size, card, deadline_s=deadline_s)
        every = shown_by(cards)
        check_alike(every)
        engine.start([None if each is None else each.card for each in every])
        serve_if_asked(engine)
    except BaseException:
        engine.close()
        raise
    sums = SumOptions(algorithm=settings.sums.algorithm, per_host=settings.sums.per_host)
    return NumpyCommunicator(engine, sums)


class NumpyCommunicator:
    """Collectives among all ranks, or among the ranks in `group`, on contiguous NumPy arrays.

    `group` is any sequence of ranks, this one among them: a group costs nothing to form. Close it
    when done; it is a context manager.
    """

    def __init__(self, engine: UdpEngine, sums: SumOptions = EXACT) -> None:
        self._engine = engine
        self.sums = sums
        """The options of sums over all ranks; sums of groups use the defaults."""
        self._groups: dict[tuple[int, ...], TransportGroup] = {}
        self._means = LastMeans()
        self.user_numbers = count()
        """Numbers for users of this communicator; each rank takes them in the same order."""
        self.generator_numbers = count()
        """Numbers for users whose groups a generator forms."""

    @property
    def rank(self) -> int:
        """This process's index."""
        return self._engine.endpoint.rank

    @property
    def world_size(self) -> int:
        """Number of processes in the job."""
        return self._engine.endpoint.num_ranks

    @property
    def deadline_s(self) -> float:
        """Seconds after which any wait for other ranks ends in an error."""
        return self._engine.deadline_s

    def stats(self) -> TransportStats:
        """Return a snapshot of the counts of this rank's transport; see `TransportStats`.

        `later - earlier` of two of them counts what happened in between.
        """
        return self._engine.stats()

    def all_reduce(
        self,
        array: Array,
        *,
        group: Sequence[int] | None = None,
        average: bool = False,
        loss_bound: float = 0.0,
        holes: str = "zero",
        wire: str | None = None,
    ) -> Array:
        """Sum (or, if it is of floats, average) `array` over the group, in place, and return it.

        For a float array, `loss_bound` is the share of each rank's contribution that the network
        may lose; `holes` says how a lost part counts: "zero", "divide-by-count", which scales the
        parts that did arrive, or "error-feedback", which adds it to this rank's next contribution
        from the same memory. `wire` is the type in which floats are sent: "float32", "float16" or
        "bfloat16"; None: their own type. With `wire` they are summed in float32, and the sum is
        rounded to that type. All ranks end with the same bits.
        """
        members = self.group(group)
        values, form = self._summable(array, wire)
        if average and array.dtype.name not in FLOAT_TYPES:
            message = (
                f"A mean of {array.dtype} need not be a whole number: convert the array to float,"
                " or divide the sum as you like."
            )
            raise UsageError(message)
        options = replace(
            self.sums if members is self.group() else EXACT,
            scale=1 / members.size if average and members.size > 1 else 1.0,
            loss_bound=self._checked_bound(array, loss_bound),
            policy=POLICIES[one_of(holes, "policy for holes", POLICIES)],
            tensor=(array.ctypes.data, array.nbytes) if holes == "error-feedback" else None,
        )
        members.all_reduce(_memory(values, form), options).wait()
        if values is not array:
            array[...] = values
        return array

    def reduce_scatter(
        self,
        array: Array,
        *,
        group: Sequence[int] | None = None,
        loss_bound: float = 0.0,
        wire: str | None = None,
    ) -> Array:
        """Return this rank's part of the sum: row `position in the group` of `array`.

        `array` has one row for each member, in the order of the group; `wire` as for `all_reduce`.
        """
        members = self.group(group)
        self._check_rows(array, members)
        values, form = self._summable(array, wire)
        options = SumOptions(loss_bound=self._checked_bound(array, loss_bound))
        source = _memory(values, form)
        summed = members.shards_summed_here(source, options)
        parts = values[list(summed)]  # a copy
        members.reduce_scatter(source, _memory(parts, form), options).wait()
        return parts[summed.index(members.me)].astype(array.dtype, copy=False)

    def all_gather(self, array: Array, *, group: Sequence[int] | None = None) -> Array:
        """Return everyone's `array`, one row for each member; all have the same shape and type."""
        members = self.group(group)
        _check_array(array)
        whole = np.empty((members.size, *array.shape), array.dtype)
        whole[members.me] = array
        members.all_gather(_typed(whole), [array.nbytes] * members.size).wait()
        return whole

    def broadcast(self, array: Array, source: int, *, group: Sequence[int] | None = None) -> Array:
        """Overwrite `array` with rank `source`'s, and return it."""
        members = self.group(group)
        members.broadcast(_typed(array), self._position(members, source)).wait()
        return array

    def all_to_all(self, array: Array, *, group: Sequence[int] | None = None) -> Array:
        """Send row k of `array` to the k-th member; return the rows that the members sent here."""
        members = self.group(group)
        self._check_rows(array, members)
        arrived = np.empty_like(array)
        arrived[members.me] = array[members.me]
        counts = [array.nbytes // members.size] * members.size
        members.all_to_all(_typed(array), _typed(arrived), counts, counts).wait()
        return arrived

    def send(self, array: Array, destination: int, *, tag: int = 0) -> None:
        """Send `array` to rank `destination`, which must receive as many bytes."""
        world, number = self.group(None), _checked_tag(tag)
        world.send(_bytes(array), self._position(world, destination), tag=number).wait()

    def receive(self, array: Array, source: int, *, tag: int = 0) -> Array:
        """Fill `array` with the message of rank `source`, and return it."""
        world, number = self.group(None), _checked_tag(tag)
        world.receive(_bytes(array), self._position(world, source), tag=number).wait()
        return array

    def barrier(self, *, group: Sequence[int] | None = None) -> None:
        """Return once every member has called it."""
        members = self.group(group)
        members.barrier(_bytes(np.zeros(members.size, np.uint8))).wait()

    def group(self, ranks: Sequence[int] | None = None) -> TransportGroup:
        """Return the group of these ranks, or of all, for callers that start transfers themselves.

        Its stream follows from the ranks, so no rank needs to be asked. Raises `UsageError` unless
        this rank is among them.
        """
        members = tuple(range(self.world_size)) if ranks is None else _members(ranks)
        if members not in self._groups:
            self._groups[members] = self.new_group(members, "group")
        return self._groups[members]

    def new_group(self, ranks: Sequence[int], meaning: Hashable) -> TransportGroup:
        """Return a new group of these ranks for the conversation that `meaning` names to them.

        It is not kept, for callers that number operations themselves. Raises `UsageError` as
        `group` does.
        """
        members = _members(ranks)
        wrong = [rank for rank in members if rank >= self.world_size]
        if wrong or len(set(members)) != len(members) or self.rank not in members:
            message = (
                f"A group is distinct ranks below {self.world_size}, this one ({self.rank})"
                f" among them; not {members}."
            )
            raise UsageError(message)
        stream = stream_of(meaning, members)
        return TransportGroup(self._engine, members, stream, means=self._means)

    def abort(self, error: ShoalError) -> None:
        """Make every running and later call fail with `error`, in its own thread."""
        self._engine.abort(error)

    def close(self) -> None:
        """Leave the job. Safe to call twice."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self.close()

    def _position(self, group: TransportGroup, rank: int) -> int:
        if rank not in group.ranks:
            message = f"Rank {rank} is not among the ranks {group.ranks}."
            raise UsageError(message)
        return group.ranks.index(rank)

    def _summable(self, array: Array, wire: str | None) -> tuple[Array, int]:
        """Return the array to sum, `array` itself or a copy in float32, and its form."""
        _check_array(array)
        form = sum_form(array.dtype.name, wire)
        if form == RAW:
            message = f"Arrays of {', '.join(SUMMABLE)} can be summed, not of {array.dtype}."
            raise UsageError(message)
        is_own = form not in IN_FLOAT32 or array.dtype == np.float32
        return _contiguous(array) if is_own else _contiguous(array).astype(np.float32), form

    def _checked_bound(self, array: Array, loss_bound: float) -> float:
        loss_bound = share(loss_bound, "A loss bound")
        return loss_bound if array.dtype.name in FLOAT_TYPES else 0.0

    def _check_rows(self, array: Array, group: TransportGroup) -> None:
        _check_array(array)
        if array.ndim == 0 or array.shape[0] != group.size:
            message = (
                f"The array must have one row for each of the {group.size} members, not the shape"
                f" {array.shape}."
            )
            raise UsageError(message)


def _bytes(array: Array) -> Memory:
    return Memory(_contiguous(array).ctypes.data, array.nbytes, RAW, array)


def _typed(array: Array) -> Memory:
    """Return the bytes of an array whose type all members must agree on."""
    return replace(_bytes(array), meaning=array.dtype.str)


def _memory(array: Array, form: int) -> Memory:
    return Memory(array.ctypes.data, array.size, form, array)


def _members(ranks: object) -> tuple[int, ...]:
    """Return the ranks of a group as plain numbers. Raises `UsageError` unless they are ranks."""
    if not isinstance(ranks, Iterable):
        message = f"A group is a sequence of ranks, not {ranks!r}."
        raise UsageError(message)
    return tuple(whole_number(rank, "A rank of a group", low=0) for rank in ranks)


def _checked_tag(tag: int) -> int:
    """Return a message's tag as a plain number, from which its stream follows.

    Negative tags are refused, because elsewhere -1 stands for any tag.
    """
    return whole_number(tag, "A tag", low=0)


def _check_array(array: object) -> None:
    """Raise `UsageError` unless the bytes of `array` mean the same on all ranks."""
    if not isinstance(array, np.ndarray):
        message = (
            f"Only NumPy arrays can be exchanged, not {type(array).__name__}; np.array makes one."
        )
        raise UsageError(message)
    if array.dtype.hasobject:
        message = (
            f"An array of type {array.dtype} holds addresses of Python objects, which mean nothing"
            " to other ranks; send the objects' bytes."
        )
        raise UsageError(message)
    if not array.dtype.isnative:
        message = (
            f"The byte order of {array.dtype} is not this machine's; exchange"
            " array.astype(array.dtype.newbyteorder('='))."
        )
        raise UsageError(message)


def _contiguous(array: Array) -> Array:
    _check_array(array)
    if not array.flags.c_contiguous:
        raise UsageError("Only contiguous arrays can be exchanged; use np.ascontiguousarray.")
    if not array.flags.writeable:
        raise UsageError("The array is read-only; exchange a copy.")
    return array
