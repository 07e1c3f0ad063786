"""Parameter server, sharded over the workers: BSP, SSP and ASP (docs/papers.md, 4.2).

Workers push gradients and pull weights; the update happens on the servers, which run the user's
optimizer on their shards. Every worker process hosts one server, unless fewer are asked for, so
that every machine carries the same share of the traffic. See docs/parameter-server.md. Servers
decide by `strategies.shard`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, final, get_args

from msgspec.structs import force_setattr

from shoal.arguments import flag, share, whole_number
from shoal.errors import UsageError
from shoal.groups import UpdateRule, ssp_staleness
from shoal.strategies.acts import CHANGED, Exchange
from shoal.strategies.course import AbstractCourse
from shoal.strategies.definition import AbstractDefinition, Averaged, Family

if TYPE_CHECKING:
    from shoal.membership import View
    from shoal.strategies.acts import Acts
    from shoal.strategies.course import Setting
    from shoal.strategies.definition import CourseOf

ServerOverlap = Literal["none", "next-forward", "layers"]
"""The computing that an exchange hides behind: none; the next forward pass, layer by layer and with
the same result under BSP; or that and the backward pass, if gradients are not changed after it."""


@final
class ParameterServer(AbstractDefinition, frozen=True):
    """Push gradients to sharded servers, pull weights from them, at every step.

    `staleness` 0 is bulk-synchronous (BSP): one update per step with the mean gradient of all. A
    positive number is stale-synchronous (SSP): every push is applied at once, and no worker gets
    more than so many steps ahead of the slowest. None is asynchronous (ASP): no bound.
    `scale_updates` makes SSP's and ASP's updates so small that one push of each worker moves the
    weights as far as one of BSP's updates, so that the learning rate found for BSP works; without
    it every push makes a full step. `pull_bound` is the share of the parameters of each pull that
    may get lost over a transport with a loss bound: they keep their older values at that worker
    until the next pull. No part of the last pull, in `finish`, may get lost.
    With `overlap="next-forward"` a step ends when the gradients are on their way, and each layer
    waits for its part of the pull when the next forward pass gets there. With "layers" each layer's
    gradients are pushed as soon as backward has them, too; clipping and gradient scalers, which
    change them before the step, are refused. `servers` is how many of the workers' processes serve,
    the first ones; 0: all, so that every machine carries the same share of the traffic.
    """

    family: ClassVar[Family] = Family.SERVERS
    averaged: ClassVar[Averaged] = Averaged.GRADIENTS
    is_lock_step: ClassVar[bool] = False

    staleness: int | None = 0
    scale_updates: bool = True
    pull_bound: float = 0.0
    overlap: ServerOverlap = "none"
    servers: int = 0

    def __post_init__(self) -> None:
        if self.staleness is not None:
            what = "Staleness, unless None for no bound,"
            force_setattr(self, "staleness", whole_number(self.staleness, what, low=0))
        flag(self.scale_updates, "scale_updates")
        force_setattr(self, "pull_bound", share(self.pull_bound, "A pull's bound"))
        if self.overlap not in get_args(ServerOverlap):
            words = ", ".join(get_args(ServerOverlap))
            message = f"overlap is one of {words} for parameter servers, not {self.overlap!r}."
            raise UsageError(message)
        what = "The number of servers, 0 for all,"
        force_setattr(self, "servers", whole_number(self.servers, what, low=0))

    @classmethod
    def bsp(
        cls, *, pull_bound: float = 0.0, overlap: ServerOverlap = "none", servers: int = 0
    ) -> ParameterServer:
        """Return the bulk-synchronous parameter server."""
        return cls(0, pull_bound=pull_bound, overlap=overlap, servers=servers)

    @classmethod
    def ssp(
        cls,
        *,
        staleness: int = 3,
        scale_updates: bool = True,
        pull_bound: float = 0.0,
        overlap: ServerOverlap = "none",
        servers: int = 0,
    ) -> ParameterServer:
        """Return the stale-synchronous parameter server; `staleness` is at least 1."""
        return cls(
            ssp_staleness(staleness),
            scale_updates=scale_updates,
            pull_bound=pull_bound,
            overlap=overlap,
            servers=servers,
        )

    @classmethod
    def asp(
        cls,
        *,
        scale_updates: bool = True,
        pull_bound: float = 0.0,
        overlap: ServerOverlap = "none",
        servers: int = 0,
    ) -> ParameterServer:
        """Return the asynchronous parameter server."""
        return cls(
            None,
            scale_updates=scale_updates,
            pull_bound=pull_bound,
            overlap=overlap,
            servers=servers,
        )

    @property
    def word(self) -> str:  # type: ignore[override]  # it depends on the mode
        """The word that selects this mode."""
        return {0: "ps-bsp", None: "ps-asp"}.get(self.staleness, "ps-ssp")

    @property
    def rule(self) -> UpdateRule:
        """The rule of how far updates go, and which worker waits for which."""
        return UpdateRule(self.staleness, self.scale_updates)

    @property
    def replicas_differ(self) -> bool:
        """Whether workers hold weights of different versions until `finish` gives all the last."""
        return self.staleness != 0

    @property
    def bound_of_pulls(self) -> float:
        """The share of a pull that may get lost, as the options say."""
        return self.pull_bound

    def check_goes_on(self) -> None:
        """Raise `UsageError` for pulls that would be under way when the view changes."""
        if self.overlap != "none":
            message = (
                f"overlap={self.overlap!r} of a parameter server needs all workers to the end, and"
                " this job goes on without those that are lost: leave overlap out."
            )
            raise UsageError(message)

    def check_size(self, workers: int) -> None:
        """Raise `UsageError` for more servers than workers."""
        if self.servers > workers:
            message = (
                f"Servers are 1 to {workers} of the workers, or 0 for all: not {self.servers}."
            )
            raise UsageError(message)

    def courses(self, setting: Setting) -> CourseOf:
        """Return the function that makes the workers' courses."""
        return lambda rank: Served(rank, setting.view)


@final
class Served(AbstractCourse):
    """One worker's course: an exchange with all shards in every step."""

    counts = ("num_exchanges",)

    def __init__(self, rank: int, view: View) -> None:
        super().__init__(rank, view)
        self.num_exchanges = 0

    def step(self, *, skipped: bool = False) -> Acts:
        """Push and pull; the update happens on the servers."""
        yield from self._exchange("skip" if skipped else "push")
        self.num_exchanges += 1

    def finish(self) -> Acts:
        """Leave all servers, and pull the final weights when every worker has left."""
        yield from self._exchange("leave")

    def report(self) -> int:
        """Return how many exchanges this worker has made."""
        return self.num_exchanges

    def _exchange(self, kind: Literal["push", "skip", "leave"]) -> Acts:
        while (yield Exchange(kind, self.num_exchanges)) is CHANGED:
            pass
