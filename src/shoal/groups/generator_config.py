"""The switches of the group generator, validated once. Knows nothing of workers, time or messages.

Source: Ripples/Prague, docs/papers.md, 3.4 and 3.7 (every mechanism switchable). The
defaults are measured: docs/group-generator.md has the figures, benchmarks/core/generator_sweep.py
repeats them.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.arguments import flag, whole_number
from shoal.errors import UsageError

DEFAULT_GROUP_SIZE = 3
DEFAULT_SLOWDOWN_THRESHOLD = 4


@dataclass(frozen=True, slots=True)
class GeneratorConfig:
    """How groups are formed. Each switch stands alone; `inter_intra` acts only within divisions.

    Raises `UsageError` for a group size below two, a threshold below one or a switch that is none.
    """

    group_size: int = DEFAULT_GROUP_SIZE
    """Workers in a group: exactly this many when drawn at random, at most when divided."""

    group_buffer: bool = True
    """A worker takes the group already planned for it instead of drawing a new one."""

    global_division: bool = True
    """One request divides all idle workers; otherwise it draws one random group."""

    inter_intra: bool = True
    """A division plans two groups for each worker: across hosts, then its whole host."""

    slowdown_threshold: int | None = DEFAULT_SLOWDOWN_THRESHOLD
    """Requests by which a worker must lag the requester to be left out; None switches it off."""

    refined_filter: bool = True
    """Mend the filter's traps, see `shoal.groups.slowdown_filter`. Off is the published rule."""

    def __post_init__(self) -> None:
        def keep(name: str, number: int) -> None:
            object.__setattr__(self, name, number)  # plain, so that it can be sent

        # one worker would average nothing, and a threshold of 0 would leave every worker out
        keep("group_size", whole_number(self.group_size, "A group size", low=2))
        if self.slowdown_threshold is not None:
            what = "A slowdown threshold, unless None for no filter,"
            keep("slowdown_threshold", whole_number(self.slowdown_threshold, what, low=1))
        for name in ("group_buffer", "global_division", "inter_intra", "refined_filter"):
            flag(getattr(self, name), name)

    def check_world_size(self, world_size: int) -> None:
        """Raise `UsageError` if a group cannot have so many members as asked for."""
        if world_size < self.group_size != DEFAULT_GROUP_SIZE:
            message = (
                f"Group size {self.group_size} is larger than the {world_size} workers of"
                " this job; choose a smaller one."
            )
            raise UsageError(message)

    @classmethod
    def random_mode(cls, group_size: int = DEFAULT_GROUP_SIZE) -> GeneratorConfig:
        """Return the paper's baseline: every request draws a new random group, nothing else."""
        return cls(
            group_size=group_size,
            group_buffer=False,
            global_division=False,
            inter_intra=False,
            slowdown_threshold=None,
        )

    @classmethod
    def smart_mode(
        cls,
        group_size: int = DEFAULT_GROUP_SIZE,
        slowdown_threshold: int | None = DEFAULT_SLOWDOWN_THRESHOLD,
    ) -> GeneratorConfig:
        """Return the paper's full generator: all switches on."""
        return cls(group_size=group_size, slowdown_threshold=slowdown_threshold)
