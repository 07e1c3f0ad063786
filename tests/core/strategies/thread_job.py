"""A job whose workers are threads: what executors need of one, exact and without a network.

Waits end in `DeadlineExceeded`, so that a course that waits for nobody fails and does not hang.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from shoal.control import Member
from shoal.errors import DeadlineExceeded
from shoal.groups import GeneratorConfig, GroupGenerator
from shoal.membership import View
from shoal.train.flat_parameters import FlatParameters
from shoal.train.replica import Replica, Stopwatch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from torch import Tensor

DEADLINE_S = 20.0


@dataclass
class Work:
    """Waits by calling `wait`."""

    wait: Callable[[], None]


@dataclass(frozen=True)
class Assigned:
    """An answer of the generator to one member."""

    group_id: int
    members: tuple[int, ...]
    more: bool
    reason: str = ""
    epoch: int = 0


class ThreadJob:
    """What the workers share."""

    def __init__(self, size: int, seed: int = 0) -> None:
        self.size, self.seed = size, seed
        self.changed = threading.Condition()
        self.brought: dict[Any, dict[int, list[Tensor]]] = defaultdict(dict)
        self.messages: dict[tuple[int, int, int], list[Tensor]] = defaultdict(list)
        self.facts: set[str] = set()
        self.generator: GroupGenerator | None = None
        self.answers: dict[int, Assigned] = {}

    def wait_for(self, poll: Callable[[], Any]) -> Any:
        """Return what `poll` gives once that is not None. The lock must be held."""
        end = time.monotonic() + DEADLINE_S
        while (found := poll()) is None:
            if not self.changed.wait(end - time.monotonic()):
                raise DeadlineExceeded("A thread waited for nobody.")
        return found

    def meet(self, key: Any, rank: int, members: Collection[int], buffer: Tensor) -> list[Tensor]:
        """Bring a copy of `buffer`; return all members' in their order, once all are here."""
        with self.changed:
            here = self.brought[key]
            assert rank not in here, f"{key} was used twice by rank {rank}"
            here[rank] = [buffer.clone()]
            self.changed.notify_all()
            self.wait_for(lambda: True if len(here) == len(members) else None)
            return [here[member][0] for member in members]

    def run(self, worker: Callable[[int], None]) -> None:
        """Run `worker` in a thread for every rank; raise what one of them raised."""
        errors: list[BaseException] = []

        def caught(rank: int) -> None:
            try:
                worker(rank)
            except BaseException as error:  # noqa: BLE001 - raised again below
                errors.append(error)

        threads = [threading.Thread(target=caught, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]


class ThreadCommunicator:
    """`comm.Communicator`, and the control plane and facts of one rank."""

    def __init__(self, job: ThreadJob, rank: int) -> None:
        self.job, self.rank, self.world_size = job, rank, job.size
        self.means: list[tuple[tuple[int, ...], int]] = []
        """The members and the sequence of every group average."""
        self._sums, self._meetings = 0, 0
        self._received: dict[tuple[int, int], int] = defaultdict(int)

    def all_reduce(self, buffer: Tensor, **_hints: object) -> Work:
        number, self._sums = self._sums, self._sums + 1
        mine = buffer.clone()

        def wait() -> None:
            everyone = range(self.world_size)
            buffer.copy_(sum(self.job.meet(("sum", number), self.rank, everyone, mine)))

        return Work(wait)

    def cuts_freely(self, _buffer: object) -> bool:
        return False

    def group_average(
        self,
        buffer: Tensor,
        members: Sequence[int],
        *,
        sequence: int,
        weights: Sequence[int] = (),
        channel: int = 0,
        **_hints: object,
    ) -> Work:
        self.means.append((tuple(members), sequence))
        key = ("mean", tuple(members), channel, sequence)
        shares = weights or [1] * len(members)

        def wait() -> None:
            values = self.job.meet(key, self.rank, members, buffer)
            total = sum(value * share for value, share in zip(values, shares, strict=True))
            buffer.copy_(total / sum(shares))

        return Work(wait)

    def broadcast(self, buffer: Tensor, source: int) -> None:
        number, self._meetings = self._meetings, self._meetings + 1
        everyone = range(self.world_size)
        buffer.copy_(self.job.meet(("broadcast", number), self.rank, everyone, buffer)[source])

    def barrier(self) -> None:
        self.broadcast(torch.zeros(1), 0)

    def send(self, buffer: Tensor, destination: int, *, channel: int, **_hints: object) -> Work:
        with self.job.changed:
            self.job.messages[self.rank, destination, channel].append(buffer.clone())
            self.job.changed.notify_all()
        return Work(lambda: None)

    def receive(self, buffer: Tensor, source: int, *, channel: int, **_hints: object) -> Work:
        place = self._received[source, channel]
        self._received[source, channel] += 1

        def wait() -> None:
            messages = self.job.messages[source, self.rank, channel]
            with self.job.changed:
                self.job.wait_for(lambda: True if len(messages) > place else None)
                buffer.copy_(messages[place])

        return Work(wait)

    def receive_any(
        self,
        buffer: Tensor,
        *,
        channel: int,
        senders: Collection[int] | None = None,
        epoch: int | None = None,
    ) -> int:
        def first() -> int | None:
            for source in senders or range(self.world_size):
                if (
                    len(self.job.messages[source, self.rank, channel])
                    > self._received[source, channel]
                ):
                    return source
            return None

        with self.job.changed:
            source: int = self.job.wait_for(first)
        self.receive(buffer, source, channel=channel).wait()
        return source

    def check(self) -> None: ...

    def check_contributions(self) -> None: ...

    def are_published(self, facts: Sequence[str]) -> list[bool]:
        with self.job.changed:
            return [fact in self.job.facts for fact in facts]

    def publish(self, fact: str) -> None:
        with self.job.changed:
            self.job.facts.add(fact)

    def join(self, _session: str, host: int, config: GeneratorConfig, seed: int) -> None:
        with self.job.changed:
            if self.job.generator is None:
                self.job.generator = GroupGenerator(config, Random(seed))
            self.job.generator.join(self.rank, host)

    def request_group(self, _session: str, _step: int) -> Assigned:
        job = self.job
        with job.changed:
            assert job.generator is not None
            self._hear(job.generator.request(self.rank, time.monotonic_ns()))
            job.wait_for(lambda: job.answers.get(self.rank))
            return job.answers.pop(self.rank)

    def leave(self, _session: str) -> None:
        with self.job.changed:
            assert self.job.generator is not None
            self._hear(self.job.generator.leave(self.rank, time.monotonic_ns()))

    def _hear(self, assignments: Iterable[Any]) -> None:
        for each in assignments:
            for member in each.members:
                self.job.answers[member] = Assigned(
                    each.group_id, each.members, member in each.more
                )
        self.job.changed.notify_all()

    def check_present(self, _ranks: object, _awaited: str = "") -> None:
        """Return: nobody leaves before the end."""

    def generator_counters(self, _session: str, _interval: int = 1) -> dict[str, float]:
        return {}


def replica_of(job: ThreadJob, rank: int, workers_per_host: int = 2) -> Replica:
    """Return a worker's replica: one small layer, the same on every rank."""
    torch.manual_seed(3)
    model = nn.Linear(3, 2)
    communicator: Any = ThreadCommunicator(job, rank)
    view = View.first(job.size, workers_per_host)
    return Replica(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        flat=FlatParameters(model),
        communicator=communicator,
        groups=communicator,
        facts=communicator,
        session="test",
        host=rank // workers_per_host,
        member=Member(view, DEADLINE_S),
        seed=job.seed,
        deadline_s=DEADLINE_S,
        stopwatch=Stopwatch(rank),
        first_view=view,
    )
