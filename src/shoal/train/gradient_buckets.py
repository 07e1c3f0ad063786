"""Gradient averaging overlapped with backward: the machinery of the all-reduce strategy.

Owns the hooks on the parameters, the buckets' memory and the order in which buckets are reduced.
Every worker starts the same reductions in the same order, whatever order its gradients become ready
in: a bucket waits for the one before it, and the end of backward starts the rest. So parameters
that got no gradient on some workers (unused in this step) cannot make the workers disagree. The
transport may finish reductions in another order: each part of a bucket is as urgent as its layer.

The last bucket carries a trailer, which is needed before any other sum can be used
(`train.trailer`). It has the statistics in buffers; those of another type than its parameters go in
sums of their own.

All sums of a backward pass belong to one view. If the view ends before they are whole here, they
come from a member that has them, or are made again among the members of the next view
(`kept_sums`).
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Final

import torch

from shoal.carriers import is_in_backward, run_after_backward, unasked
from shoal.collectives import layout_buckets
from shoal.comm import Layers
from shoal.errors import UsageError, ViewChanging
from shoal.trace import SpanKind
from shoal.train.forward_order import ForwardOrder
from shoal.train.kept_sums import KeptSums
from shoal.train.known_tensors import FrozenParameters
from shoal.train.model_use import ModelUse
from shoal.train.part_of_sum import PartOfSum
from shoal.train.tensor_places import TensorPlaces
from shoal.train.trailer import Trailer
from shoal.workloads import LowRankBucket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor, nn

    from shoal.comm import Communicator, Work
    from shoal.control import Member
    from shoal.membership import View
    from shoal.strategies import AllReduce
    from shoal.train.replica import Stopwatch
    from shoal.train.sample_counts import SampleCounts

_MOST_URGENT: Final = Layers((0,), (0,), 1)
"""The layers of the bucket that every worker waits for first."""


class GradientBuckets:
    """Buckets of one replica's gradients, reduced while backward is still running.

    After `backward()` returns, every parameter's `grad` is the mean over the contributing workers.
    A parameter that no worker used keeps its local `grad`, usually None. Gradients from earlier
    backward passes of the step are averaged too, whichever parameters the last one used. With
    `on_started`, the end of backward calls that instead of waiting, and the caller then lands each
    bucket by `land`.
    """

    def __init__(
        self,
        model: nn.Module,
        communicator: Communicator,
        member: Member,
        stopwatch: Stopwatch,
        definition: AllReduce,
        num_hosts: int = 1,
        noting: Callable[[], AbstractContextManager[None]] = nullcontext,
        samples: SampleCounts | None = None,
    ) -> None:
        self._part = PartOfSum(samples)
        self.parameters: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
        """The parameters in the buckets; elsewhere, an index means a place in this list."""
        if not self.parameters:
            raise UsageError("The model has no parameters that require gradients.")
        if any(p.is_complex() for p in self.parameters):
            raise UsageError("all-reduce averages real gradients only; view_as_real gives those.")
        self._communicator, self._member = communicator, member
        self.view = member.view
        """The view in which the sums of a pass are made."""
        self.num_whole = 0
        """The number of passes for which this worker has received all sums."""
        self._wanted = 0
        self._donor: int | None = None
        self._stopwatch, self._noting = stopwatch, noting
        self._frozen = FrozenParameters(model.parameters())
        self.layout = layout_buckets(
            [p.numel() for p in self.parameters],
            [p.element_size() for p in self.parameters],
            kinds=[(p.dtype, p.device) for p in self.parameters],
            bucket_bytes=definition.bucket_bytes,
            num_hosts=num_hosts,
        )
        like = self._kind_of(self.last)
        self._trailer = Trailer(model, len(self.parameters), like, self._part)
        self.statistics = self._trailer.statistics
        """The statistics of batch norm and the like, averaged along with the gradients."""
        self._is_averaged = False
        """Whether gradients have been averaged since the last step."""
        self._is_local = False
        """Whether gradients have been accumulated here since the last step, and not averaged."""
        self.enabled = True
        """Set False while gradients only accumulate locally."""
        self.on_started: Callable[[], None] | None = None
        """Called by the end of backward instead of waiting."""
        self.at_border: Callable[[], None] = _nothing
        """Called before the first sum in a view, when all earlier sums are there."""
        self._order = ForwardOrder(model)
        self._layers = self._layers_of_buckets()
        self._allocate()
        self.low_rank: list[LowRankBucket] = []
        """The compressed form in which each bucket is sent, if gradients are of low rank."""
        if definition.low_rank:
            numbers = range(len(self.layout))
            self.low_rank = [self._factors_of(each, definition.low_rank) for each in numbers]
        self._kept = None if member.is_fixed else KeptSums(self._summed())
        self._hooks = [
            p.register_post_accumulate_grad_hook(self._make_hook(index))
            for index, p in enumerate(self.parameters)
        ]
        self.reset()
        self.use = ModelUse(model, on_end=self.remove)

    @property
    def last(self) -> int:
        """The number of the last bucket, which carries the trailer."""
        return len(self.layout) - 1

    def _kind_of(self, number: int) -> Tensor:
        """Return a parameter in bucket `number`, whose type and device all its parameters have."""
        return self.parameters[self.layout[number].parameters[0]]

    def _allocate(self) -> None:
        """Make the buckets' memory and the views of parameters, statistics and trailer in it."""
        self.views: dict[int, Tensor] = {}
        self._places = TensorPlaces()
        self.place: dict[int, int] = {}
        self._memory: list[Tensor] = []
        for number, bucket in enumerate(self.layout):
            tail = self._trailer.num_elements if number == self.last else 0
            memory = self._kind_of(number).new_zeros(bucket.num_elements + tail)
            self._memory.append(memory)
            for index, offset in zip(bucket.parameters, bucket.offsets, strict=True):
                parameter = self.parameters[index]
                self.views[index] = torch.zeros_like(parameter, requires_grad=False)
                place = memory[offset : offset + parameter.numel()]
                self._places.move_in(self.views[index], place)
                self.place[index] = number
        self._trailer.place(self._memory[-1][self.layout[-1].num_elements :])

    def _factors_of(self, number: int, rank: int) -> LowRankBucket:
        bucket = self.layout[number]
        shapes = [_shape_in_memory(self.parameters[index]) for index in bucket.parameters]
        return LowRankBucket(self._memory[number], shapes, bucket.offsets, rank)

    def reset(self) -> None:
        """Get ready for another backward pass."""
        self._missing = [len(bucket.parameters) for bucket in self.layout]
        self.ready: set[int] = set()
        """The parameters that got a gradient here in the present backward pass."""
        self._started: list[Work] = []
        self._apart_started: list[Work] = []
        self._landed: set[int] = set()
        self._factor = 1.0
        self._used_anywhere: list[float] = []
        self._is_callback_queued = self._is_passing = self._is_broken = False

    def _make_hook(self, index: int) -> _Hook:
        return _Hook(self, index)

    def on_gradient(self, index: int) -> None:
        """Take the gradient of parameter `index`, which backward has just accumulated."""
        if torch.is_grad_enabled():  # in backward(create_graph=True)
            with torch.no_grad():
                self._take(index)
        else:
            self._take(index)

    def _take(self, index: int) -> None:
        if not self.enabled:
            self._is_local = True
            return
        if not self._is_callback_queued:
            self._is_callback_queued = self._is_passing = True
            if not self._places.are_kept:  # gradients are cast and moved with their parameters
                self._places.take_back()
            if self._order.settle():
                self._layers = self._layers_of_buckets()
            self.begin_in_view()
            self._part.take()
            run_after_backward(self._finish_backward)
        if index in self.ready:
            raise UsageError(
                "A parameter got its gradient twice in one backward pass (activation"
                " checkpointing with reentrant=True does that; use use_reentrant=False), or the"
                " pass before this one failed: call the optimizer's zero_grad() then."
            )
        self._load(index)
        self.ready.add(index)
        self._missing[self.place[index]] -= 1
        self._start_ready()

    def _load(self, index: int) -> None:
        """Copy a gradient into its bucket, already divided by the number of workers."""
        parameter, view = self.parameters[index], self.views[index]
        assert parameter.grad is not None
        gradient = parameter.grad.detach()  # that of backward(create_graph=True) has a graph
        gradient = gradient.to_dense() if gradient.is_sparse else gradient
        self._part.weigh(gradient, view, len(self.view))
        parameter.grad = view

    def _start_ready(self) -> None:
        """Start the next buckets that are complete, in order; the last one waits for the end."""
        while len(self._started) < self.last:
            if self._missing[len(self._started)]:
                return
            self._start_next()

    def _start_next(self) -> None:
        """Start the sum of the next bucket, which is complete."""
        number = len(self._started)
        if self.low_rank:
            parameters = self.layout[number].parameters
            new = {place for place, index in enumerate(parameters) if index in self.ready}
            self.low_rank[number].compress(new)
        if self._kept is not None:
            self._kept.keep_own(number, self._sent(number))
        self._start()

    def _start(self) -> None:
        """Start the sum of the next bucket as it lies in its memory, unless the view is over."""
        with self._member.changed:
            self._is_broken |= not self._member.is_in(self.view)
            if self._is_broken:
                self._started.append(_OVER)
            else:
                self._start_sum(len(self._started))

    def _sent(self, number: int) -> Tensor:
        """Return the memory in which the sum of bucket `number` is made."""
        return self.low_rank[number].sent if self.low_rank else self._memory[number]

    def _summed(self) -> list[Tensor]:
        """Return all memory in which the sums of a pass are made."""
        return [*map(self._sent, range(len(self.layout))), *self.statistics.apart]

    def _start_sum(self, number: int) -> None:
        memory = self._sent(number)
        layers, end = self._layers[number], self.layout[number].num_elements
        if self.low_rank:
            *starts, end = self.low_rank[number].starts
            layers = self._layers_of(number, starts)
        # counts and running statistics with holes in them would be wrong, not just late or small
        exact_from = end if number == self.last else None
        self._started.append(
            self._communicator.all_reduce(memory, layers=layers, exact_from=exact_from)
        )
        if number == self.last:
            self._apart_started = [
                self._communicator.all_reduce(memory, layers=_MOST_URGENT, exact_from=0)
                for memory in self.statistics.apart
            ]

    def _layers_of_buckets(self) -> list[Layers]:
        """Return where each layer lies in every bucket."""
        return [
            self._layers_of(number, bucket.offsets) for number, bucket in enumerate(self.layout)
        ]

    def _layers_of(self, number: int, starts: Sequence[int]) -> Layers:
        """Return where each layer lies in a bucket whose parameters begin at `starts`."""
        if number == self.last:  # every worker waits for it first
            return _MOST_URGENT
        parameters = [self.parameters[index] for index in self.layout[number].parameters]
        return self._order.layers_of(parameters, starts)

    @torch.no_grad()  # backward(create_graph=True) runs this with autograd on
    def _finish_backward(self) -> None:
        """Reduce the rest and wait: runs when backward has gone through the whole graph."""
        self._is_passing = False
        self._contributes = self._trains = True
        self._start_rest()
        self._is_averaged, self._is_local = True, False
        if self.on_started is not None:
            self.on_started()
        else:
            self._land_all()

    def shadow(self, *, trains: bool) -> int:
        """Take part in one reduction without gradients; return how many workers still train.

        `trains` says that this worker still does: it makes a step without a backward pass. Its
        parameters then have the mean gradient of the workers that had one, as everywhere.
        """
        self.ready = set()
        self._contributes, self._trains = False, trains
        with torch.no_grad():
            self.begin_in_view()
            if trains:
                self._part.take()
            self._start_rest()
            self._land_all()
            self._part.end_step()
        return self._trailer.num_training

    def _start_rest(self) -> None:
        """Start all reductions that backward has not started."""
        for index, parameter in enumerate(self.parameters):
            if index in self.ready:
                continue
            if self._contributes and parameter.grad is not None:  # of an earlier pass of this step
                self._load(index)
                self.ready.add(index)
            else:
                self.views[index].zero_()
        self._fill_trailer()
        while len(self._started) < len(self.layout):
            self._start_next()

    def _fill_trailer(self) -> None:
        self._trailer.fill(
            self.view, self.ready, contributes=self._contributes, trains=self._trains
        )

    def _land_all(self) -> None:
        if self._kept is not None:
            with self._noting(), self._exchange():
                self._make_whole(self._kept)
        self.land(range(len(self.layout)))
        self.reset()

    def go_on(self, wanted: int, donor: int | None) -> None:
        """Take note of a new view: some member has had the sums of `wanted` passes.

        `donor` is the rank of such a member, if some members lack them.
        """
        self._wanted, self._donor = wanted, donor

    def _make_whole(self, kept: KeptSums) -> None:
        """Wait for all sums of this pass, in whichever view they are made."""
        while True:
            with suppress(ViewChanging):
                with self._member.acting_in(self.view):
                    self._await_all(kept)
                with self._member.changed:
                    if self._member.is_in(self.view):
                        self.num_whole += 1
                        self._part.count(self.view)
                        kept.keep_sum()
                        return
            if self.begin_in_view():
                kept.take_last(self._summed())
                self._take_trailer()
                self._part.count(self.view, is_late=True)
                self._started, self._apart_started = [_OVER] * len(self.layout), []
                return
            self._start_again(kept)

    def _start_again(self, kept: KeptSums) -> None:
        """Start all sums of this pass among the members of the present view."""
        self._started, self._apart_started, self._is_broken = [], [], False
        for number in range(len(self.layout)):
            kept.take_own(number, self._sent(number))
        self._fill_trailer()
        if self.low_rank:
            self.low_rank[self.last].put_tail()
        for _ in self.layout:
            self._start()

    def begin_in_view(self) -> bool:
        """Begin in the present view; return whether the sums of this pass came from a member.

        If they did, they were made in the previous view, and its members' gradients are in them.
        """
        if self._kept is None:
            return False
        while True:
            view = self._member.catch_up()
            with self._member.changed:
                if not self._member.is_in(view):
                    continue
                if self.num_whole < self._wanted:
                    self.num_whole = self._wanted
                    return True
                last, self.view = self.view, view
            self._rescale(self._part.rescaled(len(last), len(view)))
            self.at_border()
            return False

    def give_and_take(self, view: View) -> None:
        """Let all members of `view` have the last sums, if some lack them.

        Raises `ViewChanging` if the view is over.
        """
        if self._donor is None:
            return
        assert self._kept is not None
        with self._member.acting_in(view):
            self._kept.hand_out(self._communicator, self._donor)
            with self._member.changed:
                if not self._member.is_in(view):
                    raise ViewChanging
                self._donor = None

    def _rescale(self, factor: float) -> None:
        """Multiply what this worker adds to sums, now or later, by `factor`."""
        if factor != 1.0 and self._kept is not None:
            self._kept.rescale_own(factor)
            for bucket in self.low_rank:
                bucket.rescale(factor)

    def _await_all(self, kept: KeptSums) -> None:
        """Wait for all sums of this pass; keep each as it comes."""
        if self._is_broken:
            raise ViewChanging("The sums were not all begun in one view.")
        started = (*self._started, *self._apart_started)
        for number, (work, memory) in enumerate(zip(started, self._summed(), strict=True)):
            work.wait()
            kept.keep_part(number, memory)
        self._take_trailer()

    def _take_trailer(self) -> None:
        """Have the trailer's sum where it is read."""
        if self.low_rank:
            self.low_rank[self.last].take_tail()

    def _exchange(self) -> AbstractContextManager[None]:
        members = self.view.members
        return self._stopwatch.span(SpanKind.EXCHANGE, members, "every worker, every step")

    def land(self, numbers: Iterable[int], *, publish: bool = True) -> None:
        """Wait for the sums of buckets `numbers`, and for the trailer before anything.

        `publish` sets `grad` also for parameters for which only other workers had a gradient.
        """
        fresh = [n for n in numbers if n != self.last and n not in self._landed]
        if self.last not in self._landed:
            fresh.insert(0, self.last)
        if not fresh:
            return
        with self._noting(), self._exchange():
            for number in fresh:
                self._started[number].wait()
            if self.last in fresh:
                for work in self._apart_started:
                    work.wait()
        for number in fresh:
            self._landed.add(number)
            self._make_mean(number)
            for index in self.layout[number].parameters:
                if publish and index not in self.ready and self.is_used(index):
                    self.parameters[index].grad = self.views[index]

    def _make_mean(self, number: int) -> None:
        """Make the mean gradients of bucket `number` of what has arrived."""
        if self.low_rank:
            self.low_rank[number].expand()
        if number == self.last:
            self._read_trailer()
        if self._factor != 1.0:
            self._memory[number][: self.layout[number].num_elements].mul_(self._factor)

    def is_used(self, index: int) -> bool:
        """Return whether any worker had a gradient for parameter `index`; the trailer landed."""
        return index in self.ready or bool(self._used_anywhere[index])

    def _read_trailer(self) -> None:
        """Note how to correct sums for workers without gradients; take over the statistics."""
        self._factor = self._trailer.factor(len(self.view))
        if self._factor:
            self.statistics.take(self._factor)
        is_all_ready = len(self.ready) == len(self.parameters)
        self._used_anywhere = [] if is_all_ready else self._trailer.used()
        if self._kept is None:
            self._part.count(self.view)

    def forget_failed_pass(self) -> None:
        """Get ready again if the last backward pass raised: nothing tells its hooks of that.

        Raises `UsageError` if other workers have a part of its gradients already.
        """
        if not self._is_passing or is_in_backward():
            return
        if self._started and len(self.view) > 1:
            raise UsageError(
                "The last backward pass failed after part of its gradients had gone to the other"
                " workers, who wait for the rest: restart from a checkpoint."
            )
        self.reset()

    def end_step(self) -> bool:
        """Note that the gradients are used now; return whether a backward pass averaged them.

        Raises `UsageError` if some were never averaged.
        """
        self._frozen.check()
        self.use.check()
        is_averaged, is_local = self._is_averaged, self._is_local
        self._is_averaged = self._is_local = False
        self._part.end_step()
        if not is_averaged:
            with unasked():  # looking needs no values
                is_local = any(
                    parameter.grad is not None and parameter.grad is not self.views[index]
                    for index, parameter in enumerate(self.parameters)
                )
        if is_local:
            raise UsageError(
                "The gradients of this step have not all been averaged: its last backward pass must"
                " run outside no_sync(), and gradients that are set by hand are nobody else's."
            )
        return is_averaged

    def remove(self) -> None:
        """Take the hooks off the model."""
        self._order.settle()
        for hook in self._hooks:
            hook.remove()


def _shape_in_memory(parameter: Tensor) -> torch.Size:
    """Return the parameter's shape, its dimensions in the order in which they lie in memory."""
    by_stride = sorted(zip(parameter.stride(), parameter.shape, strict=True), reverse=True)
    return torch.Size([length for _, length in by_stride])


def _nothing() -> None:
    pass


class _Over:
    """A sum that is here already, or whose end nobody waits for."""

    def wait(self) -> None:
        """Return at once."""


_OVER: Final = _Over()


class _Hook:
    """Tells the buckets that one parameter's gradient is ready."""

    def __init__(self, buckets: GradientBuckets, index: int) -> None:
        self._buckets = buckets
        self._index = index

    def __call__(self, _parameter: Tensor) -> None:
        self._buckets.on_gradient(self._index)
