"""Means of parameters among groups of workers: the executor of periodic averaging.

Carries out the courses by schedule and by generator (`strategies.scheduled`,
`strategies.generated`). Optimizer state stays local unless asked for otherwise. With
`overlap="next-forward"` a mean is waited for layer by layer (`train.awaited_pieces`), with "layers"
it also begins layer by layer, in the backward pass (`train.early_means`), and with "next-steps" a
thread averages a copy of the model (`train.delayed_average`).
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final

from shoal.carriers import reserve_channels
from shoal.errors import DeadlineExceeded, ViewChanging
from shoal.strategies import (
    ROUNDS_PER_BLOCK,
    Act,
    Acts,
    Anchor,
    AskGroup,
    Await,
    Begin,
    Group,
    JoinGroups,
    LeaveGroups,
    Mean,
    OuterStep,
    TakeIn,
    Tell,
    Update,
    mean_ahead,
)
from shoal.trace import SpanKind
from shoal.train.averaged_state import AveragedState
from shoal.train.awaited_pieces import AwaitedPieces
from shoal.train.delayed_average import DelayedAverage
from shoal.train.early_means import EarlyMeans
from shoal.train.executor import AbstractExecutor
from shoal.train.group_requests import GroupRequests
from shoal.train.model_use import ModelUse
from shoal.train.outer_steps import OuterSteps
from shoal.train.piece_means import PieceMeans, sequence_of
from shoal.workloads import check_scalable, steps_of_the_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from shoal.strategies import PeriodicAveraging
    from shoal.train.replica import Replica, Stopwatch

_POLL_SECONDS: Final = 0.005


@final
class MeansExecutor(AbstractExecutor):
    """Averages parameters, in the training thread or beside it."""

    def __init__(self, definition: PeriodicAveraging, replica: Replica) -> None:
        super().__init__(definition, replica)
        self._definition = definition
        self.use = ModelUse(replica.model, is_shared=True)
        self._channel = 0  # the training thread's, which makes its averages one after another
        self._state: AveragedState | None = None
        self._delayed: DelayedAverage | None = None
        self._awaited: AwaitedPieces | None = None
        self._early: EarlyMeans | None = None
        self._groups: GroupRequests | None = None
        self._has_met = replica.member.is_newcomer
        """Whether this worker need not wait, before it asks for groups, until all have joined."""
        self._awaited_batches = (0, -1)
        """The batches taken before the mean under way began, and the epoch of its view."""
        if definition.average_state:
            self._state = AveragedState(replica.optimizer)
        if definition.is_delayed and (len(self.view) > 1 or not replica.member.is_fixed):
            self._channel, *_ = reserve_channels(replica.communicator)
            self._delayed = DelayedAverage(replica)
        else:
            is_awaited = definition.overlap in ("next-forward", "layers")
            self._means = PieceMeans(replica, self._channel, at_once=not is_awaited)
            if is_awaited:
                self._awaited = AwaitedPieces(replica, self._means.pieces, self._take_in_piece)
                if definition.overlap == "layers":
                    self._early = EarlyMeans(
                        replica, self._means, self._awaited, lambda: mean_ahead(self.course)
                    )
                    replica.flat.before_access = self.settle
        in_host_memory = self._delayed is not None
        self._outer = OuterSteps(replica.flat, in_host_memory=in_host_memory)
        if definition.scale_adam:
            check_scalable(replica.optimizer)

    counts_each_step = False

    def do(self, act: Act) -> object:
        """Carry out one act in the training thread; first, newcomers get the state they lack."""
        self.hand_on()
        match act:
            case Update():
                self.update()
            case Mean():
                self._average_model(act)
            case Anchor() | OuterStep():
                self._outer.do(act, self.replica.flat.buffers)
            case AskGroup():
                return self._ask(act, self.replica.stopwatch)
            case Tell():
                self.replica.facts.publish(f"{self._fact(act.fact)}/{self.course.rank}")
            case Await():
                return self._await(act)
            case Begin():
                assert self._delayed is not None
                taken = self._num_taken()
                self._delayed.begin(partial(self._carry_out_beside, act.acts, taken))
            case TakeIn():
                if self._delayed is not None:
                    self._delayed.take_in(wait=act.wait)
            case JoinGroups():
                self._join_groups(act)
            case LeaveGroups():
                assert self._groups is not None
                self._groups.leave(self._definition.interval)
            case _:
                raise TypeError(act)
        return None

    def _join_groups(self, act: JoinGroups) -> None:
        if self._groups is None:
            self._groups = GroupRequests(self.replica, act.config)
        if self._has_met:
            return
        self._has_met = True
        reports = self.replica.member.decision.reports.values()
        if not any(self.replica.session in each.stages for each in reports):
            self._groups.meet()  # else some may have met in the view before, and will not come

    def update(self) -> None:
        """Apply the local update, after the last mean of all parameters is there."""
        self._settle_awaited()  # pieces that neither forward nor backward came to
        if self._early is not None:
            self._early.update(super().update)
        elif self._definition.scale_adam:
            with steps_of_the_mean(self.replica.optimizer, len(self.view)):
                super().update()
        else:
            super().update()

    def _average_model(self, mean: Mean) -> None:
        self._count(mean)
        taken, epoch = self._num_taken(), self.view.epoch
        if len(mean.members) < 2:
            self._count_batches(taken, epoch, mean)
            return
        if self._awaited is not None:
            self._settle_awaited()
            self._awaited_batches = taken, epoch
            if self._early is not None:
                self._early.begin(mean)
            else:
                self._means.open(mean)
                self._means.begin()
            self._awaited.begin()
            return
        state = [] if self._state is None else self._state.gather()
        outer = self._outer.averaged_in(mean)
        self._means.open(mean, [*state, *outer], self._outer.num_tensors - len(outer))
        self._means.begin()
        self._means.take_in_all()
        if self._state is not None:
            self._state.scatter()
        self._count_batches(taken, epoch, mean)

    def _num_taken(self) -> int:
        """Return how many of a sampler's batches steps have used."""
        return 0 if self.replica.samples is None else self.replica.samples.num_taken

    def _count_batches(self, taken: int, epoch: int, mean: Mean) -> None:
        """Count the batches that were used before a mean: other workers have their updates.

        They do not count if the view has ended before the mean, or for a worker alone in its group.
        """
        if self.replica.samples is not None and (len(mean.members) > 1 or len(self.view) == 1):
            self.replica.samples.count(taken, epoch)

    def _settle_awaited(self) -> None:
        """Wait for all pieces of a mean that are still awaited, and count its batches."""
        if self._awaited is None:
            return
        self._awaited.settle()
        if self.replica.samples is not None:
            self.replica.samples.count(*self._awaited_batches)

    def _take_in_piece(self, number: int) -> None:
        """Take in one piece; a piece whose mean the view's end cut off keeps its own values."""
        with suppress(ViewChanging):
            self._means.take_in([number])

    def _carry_out_beside(
        self,
        acts: Acts,
        taken: int,
        flats: Sequence[Tensor],
        stopwatch: Stopwatch,
        wire: str | None,
    ) -> None:
        """Carry out `acts` on copies of the model, in the thread that averages them."""

        def do(act: Act) -> object:
            if isinstance(act, AskGroup):
                return self._ask(act, stopwatch)
            if isinstance(act, OuterStep):
                self._outer.do(act, flats)
                return None
            assert isinstance(act, Mean)
            epoch = self.view.epoch
            self._average_copies(act, flats, stopwatch, wire)
            self._count_batches(taken, epoch, act)
            return None

        self.carry_out(acts, do)

    def _average_copies(
        self, mean: Mean, flats: Sequence[Tensor], stopwatch: Stopwatch, wire: str | None
    ) -> None:
        self._count(mean)
        if len(mean.members) < 2:
            return
        with stopwatch.span(SpanKind.EXCHANGE, mean.members, mean.reason):
            averaged = [*flats, *self._outer.averaged_in(mean)]
            for place, flat in enumerate(averaged):
                self.replica.communicator.group_average(
                    flat,
                    mean.members,
                    sequence=sequence_of(mean, place, len(flats) + self._outer.num_tensors),
                    weights=mean.weights,
                    channel=self._channel,
                    wire=wire if place < len(flats) else None,
                ).wait()

    def _count(self, mean: Mean) -> None:
        self.replica.count(f"group_size.{len(mean.members)}")

    def _ask(self, act: AskGroup, stopwatch: Stopwatch) -> Group:
        assert self._groups is not None
        return self._groups.ask(act.position, stopwatch)

    def _fact(self, fact: str) -> str:
        return f"{self.replica.session}/{fact}"

    def _await(self, act: Await) -> bool:
        """Return True once any member has told `act.somebody`, False once all `act.everyone`."""
        members = self.course.view.members
        names = [
            f"{self._fact(fact)}/{rank}"
            for fact in (act.somebody, act.everyone)
            for rank in members
        ]
        size = len(members)
        # within a block no worker need say anything, and each of its rounds may take the deadline
        patience_s = self.replica.deadline_s * ROUNDS_PER_BLOCK * self._definition.interval
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            self.replica.communicator.check()
            told = self.replica.facts.are_published(names)
            if any(told[:size]):
                return True
            if all(told[size:]):
                return False
            time.sleep(_POLL_SECONDS)
        message = (
            f"Waited {patience_s:g} s at the end of training for the other workers"
            f" to finish; they may hang, or need a longer deadline."
        )
        raise DeadlineExceeded(message)

    def settle(self) -> None:
        """Wait for the average under way, if there is one, and take it in."""
        if self._delayed is not None:
            self._delayed.take_in(wait=True)
        self._settle_awaited()
        if self._early is not None:
            self._early.check_unused()

    def end(self) -> None:
        """Finish the course, and average nothing more."""
        if self._early is not None:
            self._early.close()
        super().end()
        if self._delayed is not None:
            self._delayed.close()
        if self._awaited is not None:
            self._awaited.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the course's state, and that of outer optimizers."""
        return super().state_dict() | self._outer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`, after the average under way has been taken in."""
        self.settle()
        super().load_state_dict(state)
        self._outer.load_state_dict(state)
