"""AD-PSGD: asynchronous decentralized SGD by averaging with random neighbors.

Lian et al., ICML 2018; docs/papers.md, 4.1. Even ranks are passive, odd ranks active. After
every step an active worker starts to average its parameters with a passive one of its choice, while
it computes the next gradient; local updates go to the parameters as averaged meanwhile, so a
gradient is at most one iteration stale. Optimizer state stays local. See docs/ad-psgd.md.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, Literal, final

from shoal.groups import Bipartite
from shoal.strategies.acts import (
    CHANGED,
    UPDATE,
    AnswerPairs,
    AwaitGoodbyes,
    Begin,
    Goodbye,
    Pair,
    TakeIn,
)
from shoal.strategies.course import AbstractCourse
from shoal.strategies.definition import AbstractDefinition, Averaged, Family

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shoal.groups import Topology
    from shoal.membership import Decision, View
    from shoal.strategies.acts import Acts
    from shoal.strategies.course import Setting
    from shoal.strategies.definition import CourseOf


@final
class ADPSGD(AbstractDefinition, frozen=True, kw_only=True):
    """Average with one neighbor per local step, in the background.

    `peers` is "random" (the paper) or "exponential" (the published implementation: rank distances
    1, -1, 3, -3, 5, ... in turn).
    """

    word: ClassVar[str] = "ad-psgd"
    family: ClassVar[Family] = Family.PAIRS
    averaged: ClassVar[Averaged] = Averaged.PARAMETERS
    is_lock_step: ClassVar[bool] = False
    takes_loss_bound: ClassVar[bool] = False

    peers: Literal["random", "exponential"] = "random"

    def __post_init__(self) -> None:
        Bipartite(1, self.peers)  # refuses an unknown rule

    @classmethod
    def worth_trying(
        cls,
        cluster: Topology,
        *,
        thorough: bool = False,  # noqa: ARG003 - there is one choice
    ) -> Iterator[Mapping[str, Any]]:
        """Yield the paper's peers, where there are any."""
        if cluster.world_size > 1:
            yield {}

    def courses(self, setting: Setting) -> CourseOf:
        """Return the function that makes the courses."""
        return lambda rank: Pairs(self, rank, setting)


@final
class Pairs(AbstractCourse):
    """One worker's course: active, or passive."""

    def __init__(self, options: ADPSGD, rank: int, setting: Setting) -> None:
        super().__init__(rank, setting.view)
        self._options = options
        self._random = Random(f"ad-psgd {setting.seed} {rank}")
        self.num_exchanges = 0
        """The number of exchanges that this worker has begun."""
        self.on_view(setting.view)

    def on_view(self, view: View) -> None:
        """Take the role of its place in `view`, with no exchange under way."""
        self.pair(view, view.members)

    def pair(self, view: View, ranks: tuple[int, ...]) -> None:
        """Go on in `view`, in which only `ranks` still exchange; the other members have ended.

        Workers that were ending when all reported, active or passive, are not among `ranks`: no
        worker counts on them any more.
        """
        super().on_view(view)
        self._ranks = ranks if self.rank in ranks else ()
        self._pairs = Bipartite(max(1, len(self._ranks)), self._options.peers)
        self._place = self._ranks.index(self.rank) if self._ranks else 0
        self._is_active = self._pairs.is_active(self._place)
        self._answers = self._is_under_way = False

    @property
    def _has_peers(self) -> bool:
        return len(self._ranks) > 1

    def begin(self) -> Acts:
        """Answer active workers from now on, if this worker is passive."""
        if self._has_peers and not (self._is_active or self._answers):
            self._answers = (yield AnswerPairs(self._members(active=True))) is not CHANGED

    def step(self, *, skipped: bool = False) -> Acts:
        """Take in the average's changes, apply the update to the result, and begin the next."""
        if self._is_under_way:
            yield TakeIn(wait=True)
        yield UPDATE
        yield from self.begin()  # if the role is a new one
        if self._is_active:
            peer = self._pairs.active_peer(self._place, self.num_exchanges, self._random)
            begun = yield Begin(_with(self._ranks[peer]))
            self._is_under_way = begun is not CHANGED
            self.num_exchanges += 1

    def finish(self) -> Acts:
        """Say goodbye (active), or answer until every active worker has (passive)."""
        if self._is_under_way:
            yield TakeIn(wait=True)
        while self._has_peers:
            if self._is_active:
                ended = yield Goodbye(self._members(active=False))
            else:
                yield from self.begin()
                if not self._answers:
                    continue  # the view has changed: perhaps no worker asks it any more
                ended = yield AwaitGoodbyes()
            if ended is not CHANGED:
                return  # otherwise the role may be another one now

    def _members(self, *, active: bool) -> tuple[int, ...]:
        return tuple(
            rank for place, rank in enumerate(self._ranks) if self._pairs.is_active(place) == active
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the choice of peers; parameters are the model's."""
        return {"num_exchanges": self.num_exchanges, "random": self._random.getstate()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue choosing peers as the saved run would have."""
        self.num_exchanges = int(state["num_exchanges"])
        version, internal, gauss = state["random"]
        self._random.setstate((version, tuple(internal), gauss))


def _with(peer: int) -> Acts:
    yield Pair(peer)


def pairing(decision: Decision, training: str) -> tuple[int, ...]:
    """Return the members of a new view that pair in it: all that still had steps to make."""
    stages = decision.stages_of(training)
    return tuple(
        rank for rank in decision.view.members if rank not in stages or not stages[rank].is_ending
    )
