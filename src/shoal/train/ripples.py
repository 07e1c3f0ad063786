"""Ripples/Prague: partial all-reduce in groups that a generator forms at run time.

Luo et al., ASPLOS 2020; docs/papers.md, 3.2 and 3.4. One iteration is: local optimizer step,
ask the generator for a group, average parameters within it. The generator answers when all members
of the group have arrived, so the exchange itself never waits for a worker that still computes.
Optimizer state stays local. With `overlap="next-steps"` both the asking and the averaging go on
beside the next steps (`train.delayed_average`).
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, final

from shoal.carriers.profiled import in_profile
from shoal.groups import GeneratorConfig
from shoal.groups.averaging_points import AveragingPoints
from shoal.trace import SpanKind
from shoal.train.periodic_averaging import AbstractPeriodicAveraging
from shoal.watch.remarks import Remark
from shoal.watch.slow_worker import SlowWorker, slow_worker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from shoal.groups.averaging_points import AveragingOverlap
    from shoal.train.replica import Assigned, Replica, Stopwatch


_DEFAULTS = GeneratorConfig()


class GeneratedAveraging:
    """Asks the group generator at every synchronization point and averages within the answer."""

    def __init__(
        self, replica: Replica, config: GeneratorConfig, channel: int, interval: int
    ) -> None:
        self._replica = replica
        self._channel, self._interval = channel, interval
        self._has_left = False
        self._found: SlowWorker | None = None
        replica.groups.join(replica.session, replica.host, config, replica.seed)
        replica.communicator.barrier()  # who asked before others have joined would go on alone

    def synchronize(
        self, step: int, flats: Sequence[Tensor], stopwatch: Stopwatch, wire: str | None
    ) -> None:
        """Average `flats` within the groups this worker owes before its next request."""
        while True:
            assigned = self._request(step, stopwatch)
            self._replica.count(f"group_size.{len(assigned.members)}")
            if len(assigned.members) > 1:
                self._average(assigned, flats, stopwatch, wire)
            if not assigned.more:
                return

    def _request(self, step: int, stopwatch: Stopwatch) -> Assigned:
        start_ns = time.monotonic_ns()
        with in_profile("shoal:wait"):  # a span says whom for, which is known only afterwards
            assigned = self._replica.groups.request_group(self._replica.session, step)
        stopwatch.add(
            SpanKind.WAIT, start_ns, time.monotonic_ns(), assigned.members, assigned.reason
        )
        return assigned

    def _average(
        self,
        assigned: Assigned,
        flats: Sequence[Tensor],
        stopwatch: Stopwatch,
        wire: str | None,
    ) -> None:
        with stopwatch.span(SpanKind.EXCHANGE, assigned.members, assigned.reason):
            for number, flat in enumerate(flats):
                self._replica.communicator.group_average(
                    flat,
                    assigned.members,
                    sequence=assigned.group_id * len(flats) + number,
                    channel=self._channel,
                    wire=wire,
                )

    def remarks(self) -> tuple[Remark, ...]:
        """Return who asks for fewer groups than the others; what was last known after `leave`."""
        if not self._has_left:
            requests = self._replica.groups.requests_by_rank(self._replica.session)
            self._found = slow_worker(requests)
        if self._found is None:
            return ()
        rank, asked, usual = self._found
        sentence = f"Rank {rank} is slow: it asked for {asked} groups; others: {usual:.0f}."
        return (Remark(rank, "slow", self._replica.communicator.rank, sentence),)

    def leave(self) -> None:
        """Take this worker out of every group that has not started."""
        self.remarks()
        self._has_left = True
        if self._replica.communicator.rank == 0:
            counted = self._replica.groups.generator_counters(self._replica.session, self._interval)
            self._replica.counters.update(counted)
        self._replica.groups.leave(self._replica.session)


class AbstractGeneratedStrategy(AbstractPeriodicAveraging):
    """What the two modes of the generator share: they differ only in its configuration.

    After a restart groups are formed afresh.
    """

    is_lock_step = False

    def __init__(self, config: GeneratorConfig, points: AveragingPoints) -> None:
        super().__init__(points)
        self._config = config

    def options(self) -> dict[str, str | int | float | bool | None]:
        """Return the generator's switches, and when what is averaged."""
        config = {name: getattr(self._config, name) for name in self._config.__slots__}
        return {**config, **self._points.options()}

    def validate(self, world_size: int) -> None:
        """Raise `UsageError` if a group cannot have so many members as asked for."""
        self._config.check_world_size(world_size)

    def _attach(self, replica: Replica) -> None:
        """Join the generator's session."""
        super()._attach(replica)
        self._averaging = GeneratedAveraging(
            replica, self._config, self._channel, self._points.interval
        )

    def _synchronize(self, round_index: int) -> None:
        """Average within the groups that the generator hands out."""
        self._carry_out(partial(self._averaging.synchronize, self._position))

    def _end(self) -> None:
        """Deregister: no group that has not started will wait for this worker."""
        self._end_overlap()
        self._averaging.leave()

    def remarks(self) -> tuple[Remark, ...]:
        """Return who is slow, as the generator sees it."""
        return self._averaging.remarks()


@final
class Ripples(AbstractGeneratedStrategy):
    """Smart generator: group buffer, global division, inter-intra rounds, slowdown filter.

    The switches are those of `groups.GeneratorConfig`; `interval` is the number of local steps
    between synchronizations. With `overlap="next-steps"` computing goes on while they last;
    `average_state` averages the optimizer's state as well.
    """

    name = "ripples"

    def __init__(  # noqa: PLR0913 - a user's options, each by its name
        self,
        *,
        group_size: int = _DEFAULTS.group_size,
        group_buffer: bool = _DEFAULTS.group_buffer,
        global_division: bool = _DEFAULTS.global_division,
        inter_intra: bool = _DEFAULTS.inter_intra,
        slowdown_threshold: int | None = _DEFAULTS.slowdown_threshold,
        refined_filter: bool = _DEFAULTS.refined_filter,
        interval: int = 1,
        overlap: AveragingOverlap = "none",
        average_state: bool = False,
    ) -> None:
        config = GeneratorConfig(
            group_size=group_size,
            group_buffer=group_buffer,
            global_division=global_division,
            inter_intra=inter_intra,
            slowdown_threshold=slowdown_threshold,
            refined_filter=refined_filter,
        )
        super().__init__(config, AveragingPoints(interval, overlap, average_state=average_state))


@final
class RipplesRandom(AbstractGeneratedStrategy):
    """Random generator: every request draws a new random group, conflicts are serialized."""

    name = "ripples-random"

    def __init__(
        self,
        *,
        group_size: int = 3,
        interval: int = 1,
        overlap: AveragingOverlap = "none",
        average_state: bool = False,
    ) -> None:
        points = AveragingPoints(interval, overlap, average_state=average_state)
        super().__init__(GeneratorConfig.random_mode(group_size), points)
