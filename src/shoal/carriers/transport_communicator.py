"""The `Communicator` over Shoal's own transport: any synchronization, with bounded loss if wanted.

The contract is that of `carriers.torch_communicator`, which goes over torch.distributed, and the
same tests run against both. Owns the translation of the contract's calls into transfers, and what a
lost peer means to the job. Tensors of a GPU are summed and averaged by copies in host memory;
messages carry host tensors only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache, partial
from queue import Empty, SimpleQueue
from threading import Event
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from shoal.carriers.any_source import AnySource, Wanted
from shoal.carriers.argument_checks import check_average, check_peer, check_rank
from shoal.carriers.helper_thread import HelperThread
from shoal.carriers.host_copy import HOST, HostCopy, needs_host_copy
from shoal.carriers.mean import NARROW_TYPES
from shoal.carriers.tensor_memory import Summand, bytes_of, form_of
from shoal.carriers.transports import LossOptions
from shoal.collectives import AUTO
from shoal.errors import DeadlineExceeded, ShoalError, UsageError, ViewChanging, WorkerLost
from shoal.membership import View
from shoal.transport import (
    INT32,
    INT64,
    MOST_URGENT,
    RAW,
    LastMeans,
    check_messages,
    classes_of,
)
from shoal.wire import (
    EXACT,
    KEPT_GROUPS,
    ErrorFeedback,
    SumOptions,
    TransportGroup,
    mean_options,
    stream_of,
)

if TYPE_CHECKING:
    from shoal.comm import Layers
    from shoal.transport import LayerClasses
    from shoal.wire import Carrier, Transfer, TransportStats

NO_LOSS: Final = LossOptions()

GRACE_S: Final = 2.0
"""How long a lost connection waits for the control plane to name the worker at fault."""

POLL_S: Final = 0.002

LOOK_S: Final = 0.5
"""The seconds between two looks of a waiting thread whether the job is over."""


class TransportWork:
    """Transfers under way.

    What they leave in a copy of a tensor is brought back by the first `wait` to see their end.
    """

    def __init__(
        self,
        communicator: TransportCommunicator,
        *transfers: Transfer,
        finish: Sequence[Callable[[], None]] = (),
    ) -> None:
        self._communicator, self._transfers = communicator, transfers
        self._view = communicator.view
        self._finish = list(finish)

    def wait(self) -> None:
        """Block until done. Raises `WorkerLost` or `DeadlineExceeded`, never hangs."""
        for transfer in self._transfers:
            self._communicator.await_transfer(transfer, self._view)
        while self._finish:
            self._finish.pop()()


class _MeanWork(TransportWork):
    """A mean under way; if it fails, so does whatever else the members are waiting for."""

    def wait(self) -> None:
        """Block until done, and write the mean. Raises `WorkerLost` or `DeadlineExceeded`."""
        try:
            super().wait()
        except ViewChanging:
            raise
        except (WorkerLost, DeadlineExceeded) as error:
            # Members that do not talk to the lost one wait for this one: let them know.
            self._communicator.abort(error)
            raise


class HostCopyWork:
    """A sum of a tensor on a GPU: under way once the copy is there, and the GPU's at the end."""

    def __init__(self, communicator: TransportCommunicator, copy: HostCopy) -> None:
        self._communicator, self._copy = communicator, copy
        self._begun = Event()
        self._sum: TransportWork | None = None
        self._failure: BaseException | None = None

    def begin(self, start: Callable[[Tensor], TransportWork]) -> None:
        """Wait for the copy and `start` its sum, in a thread that may wait."""
        try:
            self._copy.await_values()
            self._sum = start(self._copy.values)
        except BaseException as error:  # noqa: BLE001 - carried over to whoever waits
            self._failure = error
        self._begun.set()

    def wait(self) -> None:
        """Block until done. Raises `WorkerLost` or `DeadlineExceeded` as soon as the job is over.

        For its own GPU a worker waits as long as that takes, as it does while it computes.
        """
        while not self._begun.wait(LOOK_S):
            self._communicator.check()
        if self._failure is not None:
            raise self._failure
        if self._sum is not None:
            self._sum.wait()
            self._copy.bring_back()
            self._sum = None  # it may be waited for again


class TransportCommunicator:
    """What one worker does together with others, over a started `engine` or a share in one.

    `loss` says which share of each contribution to a sum or a mean may get lost, what a lost part
    of a sum counts as, and what the floats of sums, but not of means, are sent as. In a mean of a
    group a lost part is left out, the mean being that of what did come: parameters are what groups
    average, and half of one is no parameter; where weights differ nothing may get lost. Gathering
    is always exact, so all members end with the same bits.
    `algorithm` (`SumOptions.algorithm`) makes the sums over all workers. `on_peer_error`
    is told which rank's connection ended, before anything is raised. `stream` tells this one's
    conversations from those of others that use the same engine. `view` is who takes part at first,
    by default all that the engine joins.
    """

    def __init__(
        self,
        engine: Carrier,
        *,
        loss: LossOptions = NO_LOSS,
        algorithm: str = AUTO,
        on_peer_error: Callable[[int | None, str, int], None] | None = None,
        grace_s: float = GRACE_S,
        stream: int = 0,
        view: View | None = None,
    ) -> None:
        self._engine, self._stream = engine, stream
        self._on_peer_error, self._grace_s = on_peer_error, grace_s
        self._feedback, self._means = ErrorFeedback(), LastMeans()
        self.go_on_in(view or View.first(engine.endpoint.num_ranks))
        self.loss = loss
        """What may get lost from now on, and what the floats of sums are sent as."""
        self.algorithm = algorithm
        """What makes sums over all workers from now on."""
        self.workers_per_host = 0
        """The number of workers that share a host, one after another, if `algorithm` is
        "hierarchical"; 0: as many as do by their addresses."""
        self._copier: HelperThread | None = None

    @property
    def rank(self) -> int:
        """This worker's index."""
        return self._engine.endpoint.rank

    def go_on_in(self, view: View) -> None:
        """Take part in `view` from now on. Operations of the one before have ended."""
        self.view = view
        stream = stream_of("world", self._stream, view.epoch)
        self._world = TransportGroup(self._engine, view.members, stream, feedback=self._feedback)
        self._receiving = view, AnySource(self._world)
        """What receives from anyone, and in which view."""
        # what groups keep is laid out for the engine, which may be another one from here on
        self._group = lru_cache(maxsize=KEPT_GROUPS)(self._make_group)

    def stats(self) -> TransportStats:
        """Return a snapshot of what this rank's transport has done so far; see `TransportStats`.

        `later - earlier` of two of them is what happened in between.
        """
        return self._engine.stats()

    def abort(self, error: ShoalError) -> None:
        """Make every blocked and later operation raise `error`. The first error stands."""
        self._engine.abort(error)

    def check(self) -> None:
        """Raise what every operation fails with just now, if they do."""
        if self._engine.error is not None:
            raise self._engine.error

    def close(self) -> None:
        """Leave: close the transport."""
        self._engine.close()

    def all_reduce(
        self,
        buffer: Tensor,
        *,
        layers: Layers | None = None,
        exact_from: int | None = None,
    ) -> TransportWork | HostCopyWork:
        """Start summing `buffer` over all workers, in place. Same order on every worker.

        `layers` give its messages their classes: front layers overtake others.
        Nothing is lost of the elements from index `exact_from` on, and they are sent as they are.
        Types of 16 bits are summed in float32.
        """
        flat = _flat(buffer)
        parts = self._parts_of_sum(flat, layers, exact_from)
        numbers = [self._world.reserve() for _ in parts]
        if not needs_host_copy(flat):
            return self._sums(parts, numbers, flat)
        self.check()
        return self._by_host_copy(flat, partial(self._sums, parts, numbers))

    def _by_host_copy(self, flat: Tensor, start: Callable[[Tensor], TransportWork]) -> HostCopyWork:
        """Let `start` begin with a copy of `flat` in host memory once that is there."""
        work = HostCopyWork(self, HostCopy(flat))
        self._copier = self._copier or HelperThread("shoal-host-copies")
        self._copier.start(partial(work.begin, start))
        return work

    def _parts_of_sum(
        self, flat: Tensor, layers: Layers | None, exact_from: int | None
    ) -> list[tuple[slice, SumOptions]]:
        """Return the elements of `flat` that are summed in each of one or two ways."""
        options = SumOptions(
            layers=_classes(layers),
            algorithm=self.algorithm,
            per_host=self.workers_per_host,
        )
        bound, wire = self.loss.bound_of(layers), self.loss.wire
        if not flat.is_floating_point() or exact_from == 0 or not (bound or wire):
            return [(slice(None), options)]
        loose, exact, exact_options = slice(None), slice(0, 0), options
        if exact_from is not None and form_of(flat.dtype, wire) != form_of(flat.dtype):
            # for two forms there must be two
            loose, exact = slice(exact_from), slice(exact_from, None)
            exact_from = None
            if layers is not None and exact.start < len(flat):
                rear = layers.within(exact.start, len(flat))
                exact_options = replace(options, layers=_classes(rear))
        loose_options = replace(options, wire=wire)
        if bound:
            loose_options = replace(
                loose_options,
                loss_bound=bound,
                policy=self.loss.holes,
                tensor=("sum", flat.data_ptr(), flat[loose].numel()),
                importance=self.loss.importance,
                exact_from=exact_from,
            )
        return [(exact, exact_options), (loose, loose_options)]

    def group_average(
        self,
        buffer: Tensor,
        members: Sequence[int],
        *,
        sequence: int,
        weights: Sequence[int] = (),
        channel: int = 0,
        wire: str | None = None,
        layers: Layers | None = None,
    ) -> TransportWork | HostCopyWork:
        """Start taking the mean of `buffer` over `members`, which `wait` then writes to it.

        float32, float64, bfloat16 or float16; the last two are summed in float32, and sent in
        it if there are weights, so that they are rounded once. `wire` is what all are sent as if
        there are none; see `tensor_memory.round_to`. `layers` are as in `all_reduce`.
        """
        members, weights = tuple(map(int, members)), tuple(map(int, weights))
        check_average(buffer.dtype, self.rank, self.view, members, weights)
        self.check()
        if len(members) == 1 or buffer.numel() == 0:
            return TransportWork(self)
        flat = _flat(buffer)
        if weights:
            wire = "float32" if flat.dtype in NARROW_TYPES else None
        options = mean_options(
            len(members),
            is_weighted=bool(weights),
            loss_bound=self.loss.bound_of(None),
            tensor=("mean", flat.data_ptr(), flat.numel()),
            layers=_classes(layers),
        )
        share = weights[members.index(self.rank)] / sum(weights) if weights else 1.0
        group = self._group(members, weights, channel)

        def start(summand: Summand) -> TransportWork:
            if weights:
                summand.values.mul_(share)
            transfer = group.all_reduce(summand.memory, options, iteration=sequence)
            return _MeanWork(self, transfer, finish=[summand.bring_back])

        if not needs_host_copy(flat):
            return start(Summand.apart(flat, wire))
        return self._by_host_copy(flat, lambda values: start(Summand.of(values, wire)))

    def cuts_freely(self, buffer: Tensor) -> bool:
        """Return False: a cut says who adds up which elements, and so in which order."""
        del buffer
        return False

    def send(
        self,
        buffer: Tensor,
        destination: int,
        *,
        channel: int,
        lossy: bool = False,
        renew_bound: float = 0.0,
        layers: Layers | None = None,
    ) -> TransportWork:
        """Start sending `buffer`; it must stay unchanged until the work is done.

        `lossy` says that it is a contribution to a sum of the receiver's, which says so too: of
        floats the loss bound may then get lost, error feedback makes up for it, and they are sent
        as the wire's type. `renew_bound` is the share of a newer version that may get lost: the
        receiver, which says so too, has an older one. `layers` are as in `all_reduce`.
        """
        check_peer(destination, self.rank, self.view)
        options = self._message_options(buffer, lossy=lossy, renew_bound=renew_bound)
        summand = _summand(buffer, options)
        memory = summand.memory if summand else bytes_of(_flat(buffer))
        if layers is not None:
            unit = buffer.element_size() if memory.form == RAW else 1
            options = replace(options, layers=_classes(layers, unit))
        peer = self.view.place_of(destination)
        return self._work(self._world.send(memory, peer, tag=channel, options=options))

    def receive(
        self,
        buffer: Tensor,
        source: int,
        *,
        channel: int,
        lossy: bool = False,
        renew_bound: float = 0.0,
    ) -> TransportWork:
        """Start receiving into `buffer` from `source`.

        What gets lost of a contribution (`lossy`) is zero then; of a newer version, of which the
        share `renew_bound` may get lost, it keeps its old value.
        """
        check_peer(source, self.rank, self.view)
        options = self._message_options(buffer, lossy=lossy, renew_bound=renew_bound)
        summand = _summand(buffer, options)
        if summand and options.loss_bound:
            summand.values.zero_()
        memory = summand.memory if summand else bytes_of(_flat(buffer))
        peer = self.view.place_of(source)
        transfer = self._world.receive(memory, peer, tag=channel, options=options)
        return self._work(transfer, finish=[summand.bring_back] if summand else ())

    def receive_any(
        self,
        buffer: Tensor,
        *,
        channel: int,
        senders: Collection[int] | None = None,
        epoch: int | None = None,
    ) -> int:
        """Receive into `buffer` from the rank that sends first on `channel`; return that rank.

        All messages received in this way on one channel are of one size until all `senders` have
        left it. Raises `ViewChanging` in another view than that of `epoch`, if one is given.
        """
        view, from_anyone = self._receiving
        if epoch not in (None, view.epoch):
            raise ViewChanging
        flat = bytes_of(_flat(buffer))
        heard: SimpleQueue[tuple[int, Tensor | None, BaseException | None]] = SimpleQueue()
        places = None if senders is None else [view.place_of(rank) for rank in senders]
        wanted = Wanted(flat.count, lambda *told: heard.put(told), places)
        from_anyone.receive(wanted, channel)
        while True:
            self.check()
            if self.view.epoch != view.epoch:
                raise ViewChanging
            with suppress(Empty):
                source, place, error = heard.get(timeout=POLL_S)
                if place is not None:
                    _flat(buffer).view(torch.uint8).copy_(place)
                    return view.members[source]
                if error is not None and not isinstance(error, WorkerLost):
                    raise error  # of those that have left the control plane says why

    def check_contributions(self) -> None:
        """Raise `UsageError` if what may get lost of a contribution would have to be counted."""
        if self.loss.bound_of(None):
            check_messages(self.loss.holes)

    def broadcast(self, buffer: Tensor, source: int) -> None:
        """Overwrite `buffer` with that of `source` on every worker."""
        check_rank(source, self.view)
        with _in_host_memory(_flat(buffer)) as values:
            self._work(self._world.broadcast(bytes_of(values), self.view.place_of(source))).wait()

    def barrier(self) -> None:
        """Return once every worker has called it."""
        here = torch.zeros(len(self.view), dtype=torch.uint8, device=HOST)
        self._work(self._world.barrier(bytes_of(here))).wait()

    def await_transfer(self, transfer: Transfer, view: View) -> None:
        """Wait for a transfer; if a peer is lost, give the job a moment to say which, and why.

        What fails of a `view` that is over has been cut off, whatever ended it first.
        """
        try:
            transfer.wait()
        except ShoalError as error:
            if isinstance(error, WorkerLost) and self._on_peer_error is not None:
                self._await_verdict(error, view)
            if self.view.epoch != view.epoch:
                raise ViewChanging from None
            raise self._engine.error or error from None

    def _await_verdict(self, error: WorkerLost, view: View) -> None:
        """Tell the job that a connection is lost; wait until it ends or goes on in another view."""
        if self._engine.error is not None or self.view.epoch != view.epoch:
            return
        assert self._on_peer_error is not None
        self._on_peer_error(error.rank, "its connection has ended", view.epoch)
        deadline = time.monotonic() + self._grace_s
        while time.monotonic() < deadline:
            if self._engine.error is not None or self.view.epoch != view.epoch:
                return
            time.sleep(POLL_S)

    def _work(
        self, *transfers: Transfer, finish: Sequence[Callable[[], None]] = ()
    ) -> TransportWork:
        self.check()
        return TransportWork(self, *transfers, finish=finish)

    def _sums(
        self, parts: list[tuple[slice, SumOptions]], numbers: list[int], flat: Tensor
    ) -> TransportWork:
        """Start summing the parts of `flat`, of the host, over all workers."""
        summands = [Summand.of(flat[where], options.wire) for where, options in parts]
        transfers = [
            self._world.all_reduce(summand.memory, options, iteration=number)
            for summand, (_, options), number in zip(summands, parts, numbers, strict=True)
        ]
        return self._work(*transfers, finish=[each.bring_back for each in summands if each.is_copy])

    def _message_options(
        self, buffer: Tensor, *, lossy: bool, renew_bound: float = 0.0
    ) -> SumOptions:
        """Return what may happen to a message: with a wire type or a name if it is a summand."""
        if renew_bound:
            return SumOptions(loss_bound=renew_bound, renews=True)
        bound, policy, wire = self.loss.bound_of(None), self.loss.holes, self.loss.wire
        form, as_it_is = form_of(buffer.dtype, wire), form_of(buffer.dtype)
        if not lossy or form in (RAW, INT32, INT64) or (not bound and form == as_it_is):
            return EXACT
        if not bound:
            return SumOptions(wire=wire)
        self.check_contributions()
        tensor = ("message", buffer.data_ptr(), buffer.numel())
        return SumOptions(loss_bound=bound, policy=policy, tensor=tensor, wire=wire)

    def _make_group(
        self, members: tuple[int, ...], weights: tuple[int, ...], channel: int
    ) -> TransportGroup:
        stream = stream_of("mean", self._stream, members, weights, channel)
        return TransportGroup(self._engine, members, stream, means=self._means)


def _classes(layers: Layers | None, unit: int = 1) -> LayerClasses:
    """Return the classes of the messages of a buffer; each of its elements counts as `unit`."""
    if layers is None:
        return MOST_URGENT
    return classes_of([start * unit for start in layers.starts], layers.numbers, layers.depth)


@contextmanager
def _in_host_memory(tensor: Tensor) -> Iterator[Tensor]:
    """Let the body read and write a tensor of the host: `tensor`, or a copy that it then takes."""
    if not needs_host_copy(tensor):
        yield tensor
        return
    copy = HostCopy(tensor)
    copy.await_values()
    yield copy.values
    copy.bring_back()


def _summand(buffer: Tensor, options: SumOptions) -> Summand | None:
    """Return a message's buffer as what is summed; None if its bytes are sent as they are."""
    if options.wire is None and options.tensor is None:
        return None
    return Summand.of(_flat(buffer), options.wire)


def _flat(buffer: Tensor) -> Tensor:
    """Return `buffer` as one dimension, sharing memory. Raises `UsageError` if that cannot be."""
    if not buffer.is_contiguous():
        raise UsageError("Only contiguous tensors can be exchanged; call .contiguous() first.")
    return buffer.detach().view(-1)
