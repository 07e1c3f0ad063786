"""The `Communicator` over torch.distributed: gloo for host tensors, subgroups for CUDA tensors.

Owns the checks of what it is asked and the choice of the way to do it. The deadline belongs to each
blocking wait, so a worker may take as long as it likes between two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from shoal.carriers.argument_checks import check_average, check_peer, check_rank
from shoal.carriers.exchange import Conversation, Exchange
from shoal.carriers.gloo_messages import (
    GlooConnections,
    GuardedWork,
    Kind,
    Messages,
    message_tag,
)
from shoal.carriers.guard import GRACE_S, Guard, Waiting
from shoal.carriers.host_copy import HOST
from shoal.carriers.mean import Mean, load_means
from shoal.carriers.scratch import Scratch
from shoal.carriers.started_mean import NoMean, RotatingHelpers, StartedMean
from shoal.carriers.subgroup_cache import Subgroups
from shoal.collectives import plan_average
from shoal.errors import DeadlineExceeded, ShoalError, UsageError, WorkerLost
from shoal.membership import View

if TYPE_CHECKING:
    from shoal.comm import Layers


class TorchCommunicator:
    """What one worker does together with others, over an initialized torch.distributed.

    `deadline_s` bounds every wait. `process_group` (default: the world) says who the workers are;
    ranks are positions in it. It must have a gloo part, through which all host tensors go.
    `on_peer_error` is told, from the thread concerned, which rank's connection broke (None if
    unknown) and torch's words for it, before anything is raised. `always_subgroups` averages host
    tensors the way CUDA tensors are, over cached subgroups instead of messages.

    Raises `WorkerLost` when another worker's connection breaks, unless `abort` gives a better
    reason within `grace_s`, and `DeadlineExceeded` when a wait reaches the deadline; after that,
    and after a group or all workers failed to average or sum, the communicator is aborted.
    """

    def __init__(
        self,
        *,
        deadline_s: float,
        process_group: dist.ProcessGroup | None = None,
        on_peer_error: Callable[[int | None, str], None] | None = None,
        always_subgroups: bool = False,
        grace_s: float = GRACE_S,
    ) -> None:
        self._group = process_group or _default_group()
        if "cpu:gloo" not in dist.get_backend_config(self._group):
            raise UsageError(
                "Shoal sends host tensors over gloo or its own transport; initialize"
                " torch.distributed with the backend 'gloo', 'cpu:gloo,cuda:nccl' or 'shoal'."
            )
        load_means()
        self._rank, self.view = self._group.rank(), View.first(self._group.size())
        connections = GlooConnections(self._group)
        self._guard = Guard(deadline_s, connections, on_peer_error, grace_s)
        self._messages = Messages(self._group, self._guard)
        self._subgroups = Subgroups(self._group, self._guard)
        self._always_subgroups = always_subgroups
        self._scratch = Scratch()
        self._on_abort: list[Callable[[ShoalError], None]] = []
        self._helpers: dict[int, RotatingHelpers] = {}
        """What carries out the means of each channel."""

    @property
    def rank(self) -> int:
        """This worker's index."""
        return self._rank

    def stats(self) -> None:
        """Return nothing: gloo and NCCL do not tell what they do."""

    def abort(self, error: ShoalError) -> None:
        """Make every blocked and later operation raise `error`, in its own thread.

        Callable from any thread. The first error stands. Connections close, so that other workers
        notice too.
        """
        self._guard.abort(error)
        self._subgroups.close()
        for tell in self._on_abort:
            tell(error)

    def on_abort(self, tell: Callable[[ShoalError], None]) -> None:
        """Have `tell` called with the error when this communicator is aborted, or now if it was."""
        self._on_abort.append(tell)
        try:
            self.check()
        except ShoalError as error:
            tell(error)

    def check(self) -> None:
        """Raise the error that this communicator was aborted with, if it was."""
        self._guard.check()

    def all_reduce(
        self,
        buffer: Tensor,
        *,
        layers: Layers | None = None,
        exact_from: int | None = None,
    ) -> GuardedWork:
        """Start summing `buffer` over all workers, in place. Same order on every worker.

        `layers` have no effect: gloo serves sums in the order in which they were started. Nor has
        `exact_from`: it loses nothing.
        """
        what = f"summing {_describe(buffer)} over all workers"
        return self._collective(dist.all_reduce, buffer, what)

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
    ) -> StartedMean | NoMean:
        """Start taking the mean of `buffer` over `members`, which `wait` then writes to it.

        float32, float64, bfloat16 or float16; the last two are summed in float32. Members that
        disagree on the sequence, the members, the weights or the buffer's length and type get
        `DeadlineExceeded`. `wire` and `layers` have no effect: gloo sends what there is. Tensors
        of a GPU are averaged by the time this returns.
        """
        del wire, layers
        members = tuple(members)
        mean = self._checked_mean(buffer, members, tuple(weights))
        self._guard.check()
        flat = _flat(buffer)
        if len(members) == 1 or flat.numel() == 0:
            return NoMean()
        meaning = (sequence, mean.weights, flat.numel(), flat.dtype)
        what = f"averaging {_describe(flat)} over ranks {members} (number {sequence})"
        talk = Conversation(
            self._group, members, channel, meaning, Waiting(self._guard.deadline, what)
        )
        if not self.cuts_freely(flat):  # for one thread a channel: this one
            in_subgroup = partial(self._average_in_subgroup, mean, talk, members, channel)
            work = StartedMean(flat, torch.empty_like(flat), in_subgroup)
            work.run()
            return work
        values = self._scratch.take(flat.numel(), flat.dtype)
        by_messages = partial(self._average_by_messages, mean, talk)
        work = StartedMean(flat, values, by_messages, self._scratch.give_back)
        if channel not in self._helpers:
            self._helpers[channel] = RotatingHelpers("shoal-means")
        self._helpers[channel].start(work.run)
        return work

    def cuts_freely(self, buffer: Tensor) -> bool:
        """Return whether messages average it: subgroups add in an order of their own."""
        return not (self._always_subgroups or buffer.is_cuda)

    @contextmanager
    def _letting_know(self) -> Iterator[None]:
        """Let members that do not talk to a lost one hear of it."""
        try:
            yield
        except (WorkerLost, DeadlineExceeded) as error:
            self.abort(error)
            raise

    def send(
        self,
        buffer: Tensor,
        destination: int,
        *,
        channel: int,
        lossy: bool = False,
        renew_bound: float = 0.0,
        layers: Layers | None = None,
    ) -> GuardedWork:
        """Start sending `buffer`; it must stay unchanged until the work is done.

        The receiver's buffer must have the same number of bytes. Nothing gets lost over gloo,
        whatever `lossy` and `renew_bound` allow, and `layers` have no effect.
        """
        del lossy, renew_bound, layers
        flat, tag = self._single(buffer, destination, channel)
        what = f"sending it {_describe(buffer)} on channel {channel}"
        return self._messages.send(flat, destination, tag, what)

    def receive(
        self,
        buffer: Tensor,
        source: int,
        *,
        channel: int,
        lossy: bool = False,
        renew_bound: float = 0.0,
    ) -> GuardedWork:
        """Start receiving into `buffer` from `source`."""
        del lossy, renew_bound
        flat, tag = self._single(buffer, source, channel)
        what = f"receiving {_describe(buffer)} on channel {channel}"
        return self._messages.receive(flat, source, tag, what)

    def receive_any(
        self,
        buffer: Tensor,
        *,
        channel: int,
        senders: Collection[int] | None = None,
        epoch: int | None = None,
    ) -> int:
        """Receive into `buffer` from the rank that sends first on `channel`; return that rank.

        `senders` have no effect: gloo opens nothing for anyone in particular. Nor has `epoch`, for
        there is one view.
        """
        del senders, epoch
        flat, tag = self._single(buffer, None, channel)
        what = f"receiving {_describe(buffer)} from anyone on channel {channel}"
        return self._messages.receive_any(flat, tag, what)

    def check_contributions(self) -> None:
        """Find nothing wrong: nothing of a contribution gets lost over gloo."""

    def broadcast(self, buffer: Tensor, source: int) -> None:
        """Overwrite `buffer` with that of `source` on every worker."""
        check_rank(source, self.view)
        what = f"broadcasting {_describe(buffer)} from rank {source}"
        self._collective(dist.broadcast, buffer, what, group_src=source).wait()

    def barrier(self) -> None:
        """Return once every worker has called it."""
        self._collective(
            dist.all_reduce, torch.zeros(1, device=HOST), "meeting all workers at a barrier"
        ).wait()

    def _collective(
        self, operation: Callable[..., dist.Work], buffer: Tensor, what: str, **options: int
    ) -> GuardedWork:
        start = partial(operation, _flat(buffer), group=self._group, async_op=True, **options)
        return GuardedWork(self._guard, self._guard.start(start, peer=None, what=what), None, what)

    def _average_by_messages(
        self, mean: Mean, talk: Conversation, own: Tensor, out: Tensor, in_place: bool
    ) -> Sequence[range]:
        plan = plan_average(len(mean.weights), mean.me, own.numel(), own.element_size())
        room = plan.slots * plan.slot_length
        with self._letting_know(), self._scratch.borrow(room, own.dtype) as scratch:
            exchange = Exchange(talk, mean, own, out, scratch, in_place=in_place)
            self._guard.run(lambda: exchange.run(plan), talk.waiting)
        return exchange.left

    def _average_in_subgroup(
        self,
        mean: Mean,
        talk: Conversation,
        members: tuple[int, ...],
        channel: int,
        own: Tensor,
        out: Tensor,
        _in_place: bool,
    ) -> Sequence[range]:
        with self._letting_know():
            self._subgroups.average(out.copy_(own), mean, talk, members=members, channel=channel)
        return [range(own.numel())]

    def _checked_mean(
        self, buffer: Tensor, members: tuple[int, ...], weights: tuple[int, ...]
    ) -> Mean:
        check_average(buffer.dtype, self._rank, self.view, members, weights)
        return Mean(weights or (1,) * len(members), members.index(self._rank))

    def _single(self, buffer: Tensor, peer: int | None, channel: int) -> tuple[Tensor, int]:
        """Check a message's buffer and peer; return the buffer's view and the message's tag."""
        if buffer.is_cuda:
            raise UsageError("Messages carry host tensors; copy a CUDA tensor to the host first.")
        if peer is not None:
            check_peer(peer, self._rank, self.view)
        flat = _flat(buffer)
        return flat, message_tag(Kind.SINGLE, channel, flat.numel() * flat.element_size())


def _default_group() -> dist.ProcessGroup:
    if not dist.is_initialized() or dist.group.WORLD is None:
        raise UsageError("Initialize torch.distributed first, or call shoal.init().")
    return dist.group.WORLD


def _flat(buffer: Tensor) -> Tensor:
    """Return `buffer` as one dimension, sharing memory. Raises `UsageError` if that cannot be."""
    if not buffer.is_contiguous():
        raise UsageError("Only contiguous tensors can be exchanged; call .contiguous() first.")
    return buffer.detach().view(-1)


def _describe(buffer: Tensor) -> str:
    return f"{buffer.numel() * buffer.element_size()} bytes"
