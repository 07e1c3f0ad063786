"""The one trace schema: what a worker did and when, for real and simulated runs alike.

Owns the record and the sinks that need no I/O. Knows no clock: whoever records passes the time of
its own world, so that a simulated run is stamped with virtual time. `jobs.trace_file` writes
records as Chrome trace events, which Perfetto opens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol, runtime_checkable

from shoal.errors import UsageError

TRACE_FORMAT: Final = 1
"""The version of trace files: it goes up when what is in them means something else."""


class SpanKind(StrEnum):
    """What a worker's time went into."""

    COMPUTE = "compute"
    """Forward, backward, local update, and the padding that stands for a slower machine."""

    WAIT = "wait"
    """The worker is blocked until other workers are ready: none of its data is moving."""

    EXCHANGE = "exchange"
    """Data is moving between this worker and its group."""


@dataclass(frozen=True, slots=True)
class Span:
    """One stretch of a worker's time."""

    kind: SpanKind
    """What the time went into."""

    rank: int
    """The rank of the worker whose time it was."""

    step: int
    """The worker's own step number."""

    start_ns: int
    """Start on the clock of this run (monotonic, shared by all processes of one machine)."""

    duration_ns: int
    """Length of the stretch."""

    members: tuple[int, ...] = ()
    """The group it belonged to, if any."""

    reason: str = ""
    """Why this group, as the member that formed it gave it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Figures of a stretch of a worker's time that are no spans."""

    name: str
    """The subject of the figures."""

    rank: int
    step: int
    """The worker's own step number."""

    at_ns: int
    """The time at which the stretch ended, in nanoseconds on the clock of the run."""

    values: dict[str, float]
    """Figures by name, which says the unit."""


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """What a trace was recorded of: what its file says beside the events."""

    strategy: str
    workers: int
    parameters: int
    """The number of parameters that are trained."""
    shoal_trace: int = TRACE_FORMAT


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedWorker:
    """What the spans are of that a worker of any script has recorded."""

    job: str
    """A name that no other job has."""

    training: str
    """The name of the training in the job."""

    rank: int
    host: str
    at_ns: int
    """The time at which recording began, in nanoseconds on the clock of the spans."""

    date_ns: int
    """The same in nanoseconds since 1970."""

    script: str
    """The name of the script's file."""

    model: str
    """The name of the model's class."""

    parameters: int
    """The number of parameters that are trained."""

    strategy: str
    options: dict[str, str | int | float | bool | None]
    """The options of the strategy."""

    seed: int
    shoal_trace: int = TRACE_FORMAT


@runtime_checkable
class TraceSink(Protocol):
    """A receiver of spans and samples."""

    @property
    def wants_samples(self) -> bool:
        """Whether samples are worth taking."""
        ...

    def record(self, span: Span) -> None:
        """Keep `span`."""
        ...

    def sample(self, sample: Sample) -> None:
        """Keep `sample`."""
        ...


def checked_sink(sink: object) -> TraceSink:
    """Return `sink`; raise `UsageError` unless it takes spans and samples."""
    if not isinstance(sink, TraceSink):
        message = (
            f"A trace needs record(), sample() and wants_samples, as shoal.trace.ListSink() has"
            f" them; {sink!r} has not."
        )
        raise UsageError(message)
    return sink


class NullSink:
    """Drops everything."""

    wants_samples = False

    def record(self, span: Span) -> None:
        """Drop `span`."""

    def sample(self, sample: Sample) -> None:
        """Drop `sample`."""


@dataclass(slots=True)
class ListSink:
    """Keeps every span and sample in memory, oldest first."""

    spans: list[Span] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    wants_samples: bool = True

    def record(self, span: Span) -> None:
        """Append `span`."""
        self.spans.append(span)

    def sample(self, sample: Sample) -> None:
        """Append `sample`."""
        self.samples.append(sample)
