"""Parameter averaging by a schedule: what DS-Sync, Ripples' static schedule and local SGD share.

One iteration is: local optimizer step with the local gradient, then the group of this round
replaces its members' parameters and batch-norm statistics by their mean (docs/papers.md, 2.3 and
3.3). There is no coordinator and no barrier: a worker waits only for its own group. Optimizer state
stays local. With `overlap="next-steps"` it computes on meanwhile (`train.delayed_average`).

Owns how a schedule is carried out; which groups meet is decided in `groups`.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any

from shoal.errors import DeadlineExceeded
from shoal.trace import SpanKind
from shoal.train.periodic_averaging import AbstractPeriodicAveraging

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from shoal.groups.group import Group
    from shoal.groups.schedule import AbstractGroupSchedule
    from shoal.train.replica import Replica, Stopwatch

ROUNDS_PER_BLOCK = 8
"""Rounds for which one published fact says that some worker still trains."""

_POLL_SECONDS = 0.005


class AbstractScheduledAveraging(AbstractPeriodicAveraging):
    """Averages parameters within the groups of a schedule, every `interval` local steps.

    A worker whose data ends early keeps averaging, without updates of its own, until no worker
    trains any more: the others' schedule stays whole, and the mean of all models is not biased.
    """

    is_lock_step = True

    @abstractmethod
    def make_schedule(self, replica: Replica) -> AbstractGroupSchedule:
        """Return the schedule for the replica's world."""

    def _attach(self, replica: Replica) -> None:
        """Make the schedule."""
        super()._attach(replica)
        self._schedule = self.make_schedule(replica)
        self._num_loads = 0
        self._published = ""

    def _synchronize(self, round_index: int) -> None:
        """Average within this round's group."""
        self._publish(self._block(round_index))
        self._make_round(round_index)

    def _make_round(self, round_index: int) -> None:
        group = self._schedule.group_of(self._replica.communicator.rank, round_index)
        self._replica.count(f"group_size.{len(group)}")
        if len(group) > 1:
            self._carry_out(partial(self._average, group, round_index))

    def _average(
        self,
        group: Group,
        round_index: int,
        flats: Sequence[Tensor],
        stopwatch: Stopwatch,
        wire: str | None,
    ) -> None:
        reason = f"round {round_index} of {self._schedule.name}"
        with stopwatch.span(SpanKind.EXCHANGE, group.members, reason):
            for number, flat in enumerate(flats):
                self._replica.communicator.group_average(
                    flat,
                    group.members,
                    sequence=self._num_loads << 32 | round_index * len(flats) + number,
                    weights=group.weights,
                    channel=self._channel,
                    wire=wire,
                )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the saved position, with averages that no earlier ones are mistaken for."""
        super().load_state_dict(state)
        self._num_loads += 1

    def _end(self) -> None:
        """Keep averaging without updates until every worker has finished.

        Rounds come in blocks. A block is worked off by everyone if anyone trained in it; whether
        anyone trains in the next one is known once its fact is published or all have finished.
        """
        world_size = self._replica.communicator.world_size
        if world_size == 1:
            return
        self._end_overlap()
        self._replica.facts.increment(self._finished)
        round_index = self._position // self._points.interval
        while True:
            if round_index % ROUNDS_PER_BLOCK == 0 and not self._is_anyone_training(round_index):
                return
            self._make_round(round_index)
            round_index += 1

    def _is_anyone_training(self, round_index: int) -> bool:
        """Wait until it is known whether some worker makes a round of this block by itself."""
        replica = self._replica
        patience_s = replica.deadline_s * ROUNDS_PER_BLOCK * self._points.interval
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            everyone_finished = (
                replica.facts.value_of(self._finished) == replica.communicator.world_size
            )
            if replica.facts.is_published(self._block(round_index)):
                return True
            if everyone_finished:
                return False
            time.sleep(_POLL_SECONDS)
        message = (
            f"Waited {patience_s:g} s at the end of training for the other workers"
            f" to finish; they may hang, or need a longer deadline."
        )
        raise DeadlineExceeded(message)

    def _publish(self, block: str) -> None:
        """Say once per block that this worker trains in it."""
        if block != self._published:
            self._replica.facts.publish(block)
            self._published = block

    def _block(self, round_index: int) -> str:
        return f"{self._replica.session}/block/{round_index // ROUNDS_PER_BLOCK}"

    @property
    def _finished(self) -> str:
        return f"{self._replica.session}/finished"
