"""What the group generator says: assignments with their reason, its counters and its state.

Plain frozen data that msgspec turns into JSON as it stands. Source: Ripples/Prague, docs/papers.md,
3.4 (group ids, pending groups) and 3.6 (what to report).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from shoal.groups.generator_config import GeneratorConfig  # noqa: TC001 - msgspec decodes it


class AssignmentReason(Enum):
    """Why a group looks as it does: `value` for machines, `str()` a sentence for people."""

    RANDOM = "random"
    DIVISION = "division"
    ACROSS_HOSTS = "across-hosts"
    WITHIN_HOST = "within-host"
    WHOLE_HOST = "whole-host"
    ALONE = "alone"
    SHRUNK = "shrunk"
    PARTED = "parted"

    def __str__(self) -> str:
        return _SENTENCES[self]


_SENTENCES = {
    AssignmentReason.RANDOM: "The group was drawn at random for the worker that asked.",
    AssignmentReason.DIVISION: "A request divided all idle workers into groups.",
    AssignmentReason.ACROSS_HOSTS: "First round of a division: these hosts' heads meet.",
    AssignmentReason.WITHIN_HOST: "First round of a division: the host's other workers meet.",
    AssignmentReason.WHOLE_HOST: "Second round of a division: the whole host meets.",
    AssignmentReason.ALONE: "No other worker was free to join, so this one goes on alone.",
    AssignmentReason.SHRUNK: "The other members left, so this worker goes on alone.",
    AssignmentReason.PARTED: "Members that wait for these ones in another run are left out.",
}


@dataclass(frozen=True, slots=True)
class Assignment:
    """A group whose members have all arrived: they run it now, in the order of group ids."""

    group_id: int
    """Position in the one order of all groups; members use it as the collective's sequence."""

    members: tuple[int, ...]
    """Ranks, ascending."""

    requested_by: int
    """The rank whose request made the generator plan this group. It may have left since."""

    reason: AssignmentReason
    """Why the group looks as it does."""

    more: tuple[int, ...] = ()
    """Members that owe another group first: they ask again before they go on computing."""


@dataclass(slots=True)
class GeneratorCounters:
    """What happened so far. The generator alone writes it; `dump` returns a copy."""

    requests: int = 0
    """Synchronizations begun. Asking again because of `Assignment.more` does not count."""

    requests_by_rank: dict[int, int] = field(default_factory=dict)
    """Requests of each worker, also of those that left."""

    buffer_hits: int = 0
    """Requests answered from the worker's queue, without planning a group."""

    groups_formed: int = 0
    """Groups planned."""

    groups_started: int = 0
    """Groups handed out."""

    group_sizes: dict[int, int] = field(default_factory=dict)
    """Groups handed out, by size."""

    conflicts: int = 0
    """Pairs of a new group and an unfinished group of an earlier plan that share a worker."""

    serializations: int = 0
    """Groups that have to wait for an unfinished group of an earlier plan."""

    filtered: int = 0
    """How often the slowdown filter kept a worker out of a group it would have been in."""

    parted: int = 0
    """How often a worker was left out of its group because it waited, elsewhere, for that group."""
    staleness_by_rank: dict[int, list[int]] = field(default_factory=dict)
    """Maps each rank to the number of requests by which it was apart from the furthest member of a
    group that it met: [in all, at most]."""

    wait_ns: int = 0
    """Nanoseconds from a worker's request to its answer, over all answers."""

    longest_wait_ns: int = 0
    """The longest single wait, in nanoseconds."""

    def staleness(self, interval: int) -> dict[str, float]:
        """Return counters of staleness in steps; a worker makes a request every `interval` steps.

        The largest of all, and each worker's mean over its requests, in the names of results.
        """
        means = {
            f"staleness.{rank}": interval * total / self.requests_by_rank[rank]
            for rank, (total, _) in sorted(self.staleness_by_rank.items())
            if rank in self.requests_by_rank
        }
        largest = max((most for _, most in self.staleness_by_rank.values()), default=0)
        return {"max.staleness": interval * largest, **means}


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """A group that waits for members to arrive."""

    group_id: int
    members: tuple[int, ...]
    arrived: int
    """How many members have arrived and wait for this group."""
    requested_by: int
    reason: AssignmentReason


@dataclass(frozen=True, slots=True)
class WorkerState:
    """One worker as the generator sees it."""

    rank: int
    host: int
    progress: float
    """The counter of the slowdown filter, in requests."""
    waiting_since_ns: int | None
    """The time at which it asked for the group it waits for, in nanoseconds, or None while it runs
    a group or computes."""
    running: int | None
    """Id of the group it was last told to run and has not released by asking again."""
    queue: tuple[int, ...]
    """Ids of the groups planned for it, next first."""
    owed: int | None
    """The group that ends its present synchronization, when groups are not buffered."""


@dataclass(frozen=True, slots=True)
class GeneratorState:
    """Everything the generator knows, for people and for `msgspec.json.encode`."""

    config: GeneratorConfig
    workers: tuple[WorkerState, ...]
    groups: tuple[PlannedGroup, ...]
    """The planned groups, oldest first."""
    counters: GeneratorCounters
