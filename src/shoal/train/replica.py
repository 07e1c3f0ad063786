"""One worker's copy of the model and its connections to the others, which a strategy works with.

Owns no decision. `Replica` bundles the objects of a training run; `Stopwatch` accounts for the
worker's time by kind and hands spans to the trace.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from shoal.arguments import whole_number
from shoal.carriers import in_profile
from shoal.errors import DeadlineExceeded, WorkerLost
from shoal.trace import NullSink, Span, SpanKind, TraceSink, checked_sink
from shoal.watch import Doing, Flight

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch

    from shoal.comm import Communicator, FactStore
    from shoal.control import Member
    from shoal.groups import GeneratorConfig, Topology
    from shoal.membership import View
    from shoal.train.checkpoints import Saving
    from shoal.train.flat_parameters import FlatParameters
    from shoal.train.sample_counts import SampleCounts


def _nothing() -> None:
    pass


class Stopwatch:
    """Adds up a worker's time by kind; every stretch also goes to the trace.

    Stretches timed here appear in torch's profiler as well, as "shoal:exchange" and so on.
    """

    def __init__(
        self, rank: int, sink: TraceSink | None = None, flight: Flight | None = None
    ) -> None:
        self.rank = rank
        self.step = 0
        self.sink: TraceSink = NullSink() if sink is None else checked_sink(sink)
        self.total_ns = dict.fromkeys(SpanKind, 0)
        self.flight = flight or Flight()
        """The flight recorder's data, written if something goes wrong."""
        self.group: tuple[int, ...] = ()
        """The members of the last group; `reason` says why they met."""
        self.reason = ""

    @contextmanager
    def span(
        self, kind: SpanKind, members: tuple[int, ...] = (), reason: str = ""
    ) -> Iterator[None]:
        """Account the body of the `with` statement as time of `kind`."""
        start_ns = time.monotonic_ns()
        try:
            with self.entered(kind, members):
                yield
        finally:
            self.add(kind, start_ns, time.monotonic_ns(), members, reason)

    @contextmanager
    def entered(self, kind: SpanKind, members: tuple[int, ...] = ()) -> Iterator[None]:
        """Show that this worker is blocked during the body; its time is accounted afterwards."""
        self.flight.doing = Doing(str(kind), time.monotonic_ns(), members)
        try:
            with in_profile(f"shoal:{kind}"):
                yield
        except (DeadlineExceeded, WorkerLost):
            raise  # its record then tells what it was blocked by
        except BaseException:
            self.flight.doing = None
            raise
        self.flight.doing = None

    def add(
        self,
        kind: SpanKind,
        start_ns: int,
        end_ns: int,
        members: tuple[int, ...] = (),
        reason: str = "",
    ) -> None:
        """Account a stretch that was timed elsewhere."""
        self.total_ns[kind] += end_ns - start_ns
        self.flight.note(str(kind), start_ns, end_ns, members, reason)
        if members:
            self.group, self.reason = members, reason
        self.sink.record(
            Span(kind, self.rank, self.step, start_ns, end_ns - start_ns, members, reason)
        )


class GroupSource(Protocol):
    """The source of groups formed at run time, as a worker sees it: `control.ControlClient`."""

    def join(self, session: str, host: int, config: GeneratorConfig, seed: int) -> None:
        """Take part in `session`."""
        ...

    def request_group(self, session: str, step: int) -> Assigned:
        """Say that this worker is at a synchronization point; return its group once all are."""
        ...

    def leave(self, session: str) -> None:
        """Make no more requests in `session`."""
        ...

    def generator_counters(self, session: str, interval: int = 1) -> dict[str, float]:
        """Return what the generator has counted so far, by name."""
        ...

    def note_progress(self) -> None:
        """Tell the control plane that this worker is not stuck."""
        ...

    def check_present(self, ranks: Sequence[int], awaited: str = "") -> None:
        """Raise `WorkerLost` if one of `ranks` has left without the call that all others wait in.

        Without `awaited` only if it has left in the middle of a training.
        """
        ...

    def stuck_workers(self, seconds: float) -> list[int]:
        """Return the workers that are alive and have made no progress for so many `seconds`."""
        ...


class Assigned(Protocol):
    """The answer to a group request."""

    @property
    def group_id(self) -> int:
        """The number of this group among all of the session's."""
        ...

    @property
    def members(self) -> tuple[int, ...]:
        """Ranks, ascending."""
        ...

    @property
    def reason(self) -> str:
        """Why this group was formed."""
        ...

    @property
    def epoch(self) -> int:
        """The epoch of the view that it was formed in."""
        ...

    @property
    def more(self) -> bool:
        """Whether this worker owes another group before it goes on computing."""
        ...


@dataclass(slots=True)
class Replica:
    """Everything a strategy may use."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    """The user's own optimizer; its state stays local."""

    flat: FlatParameters
    communicator: Communicator
    groups: GroupSource
    facts: FactStore
    session: str
    """The name of this training run among those of the job; the same on every worker."""

    host: int
    """Index of the host this worker runs on."""

    member: Member
    """This worker as a member of the job: it knows the view, and carries out view changes."""

    seed: int
    """The same on every worker; it goes to the control plane in 64 bits."""

    deadline_s: float
    """Seconds after which any wait for other workers ends in an error."""

    stopwatch: Stopwatch
    noting: Callable[[], AbstractContextManager[None]] = nullcontext
    """The context in which errors of the job are noted that a strategy raises elsewhere than in
    the calls of `DistributedOptimizer`: in backward, say."""

    stepping: Callable[[], AbstractContextManager[None]] = nullcontext
    """The context in which a strategy steps `optimizer` outside of its own `step`."""

    hand_on: Callable[[], None] = _nothing
    """Gives newcomers of the view the state they lack, if this worker is a donor."""

    wire: str | None = None
    """The type in which a strategy that can round (`can_round`) sends floats; None: their own."""

    samples: SampleCounts | None = None
    """The batches that this worker's steps use, if a sampler deals them out."""

    saving: Saving | None = None
    """The last checkpoint that this worker has begun to write."""

    first_view: View | None = None
    """The view in which the training began; newcomers do not know it."""

    num_hosts: int = 1
    """The number of hosts that the training began on; newcomers know it as well."""

    topology: Topology | None = None
    """The hosts in their racks, if workers have said so and stay to the end."""

    counters: dict[str, float] = field(default_factory=dict)
    """What the strategy counts, reported with the result."""

    def __post_init__(self) -> None:
        self.seed = whole_number(self.seed, "The seed", low=-(1 << 63), high=(1 << 63) - 1)

    @property
    def view(self) -> View:
        """The workers that take part."""
        return self.member.view

    def count(self, name: str, amount: float = 1) -> None:
        """Add `amount` to the counter `name`."""
        self.counters[name] = self.counters.get(name, 0) + amount
