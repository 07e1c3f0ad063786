"""What a simulated run came to."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.sim.training.learning import CurvePoint  # noqa: TC001 - decoders read it


@dataclass(frozen=True, slots=True)
class EventOutcome:
    """What became of an event of a worker. Times are seconds of virtual time."""

    words: str
    """What was to happen."""
    fired_s: float | None
    """The time when it happened; None: it did not."""
    view_s: float | None = None
    """The time from there until the members went on in a view that it led to; None: they did not,
    or needed none."""
    step_s: float | None = None
    """The time from there until every other worker had made a step, or a newcomer its first."""
    remark: str = ""
    """Why nothing came of it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a simulated run came to. Times are seconds of virtual time."""

    name: str
    workers: int
    steps: int
    """Made by all workers together."""
    seconds: float
    """The time until the last worker had made its steps."""
    step_ms: float
    """Mean of the time per step, over the workers that made one."""
    compute_share: float
    wait_share: float
    exchange_share: float
    """These are shares of the workers' time until each had made its last step, or until the run was
    stopped if an exchange held it then."""
    steps_by_rank: tuple[int, ...]
    counters: dict[str, float]
    flows: int
    """Flows that the network carried."""
    digest: str
    """A digest of every worker's times: the same scenario and seed give the same."""
    curve: tuple[CurvePoint, ...] = ()
    """What the workers' models knew when, if they learnt; the last point is the end's."""
    milestones_s: tuple[float, ...] = ()
    """The times by which all workers together had made 1 %, 2 %, ... of all the steps that they
    were to make."""
    together_s: float = 0.0
    """The time until the first worker had made all its steps: from then on not all of them
    train."""
    together_steps: int = 0
    """Made by all workers together until then."""
    most_behind: int | None = None
    """Staleness: the most steps that the slowest worker was behind the fastest, at any time; None:
    not known, of a formula."""

    events: tuple[EventOutcome, ...] = ()
    """What became of the events of workers."""

    @property
    def rate(self) -> float:
        """Steps per second of all workers together, while all of them trained."""
        return self.together_steps / self.together_s if self.together_s else 0.0

    @property
    def lost_share(self) -> float:
        """The share that was lost of the contributions to sums that may get lost."""
        may = self.counters.get("lossy_bytes", 0.0)
        return self.counters["lost_bytes"] / may if may else 0.0
