"""A membership whose keeper is lost goes on with its standby.

Members tell the standby how far they know the membership to have come, and go over to it when they
hear no more of the keeper. The standby takes over as soon as most members have come over, so that
there are never two keepers: the previous one cannot decide anything against a majority.

Knows no message, socket or clock: time is an argument.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from msgspec.structs import replace

from shoal.membership.membership import Change, Event, Kind, Membership, Position, Quorum

if TYPE_CHECKING:
    from shoal.membership.view import View


class Succession:
    """The standby's knowledge of the membership, which `keeper` would keep.

    `report_ns`, `min_members` and `quorum` are the membership's.
    """

    def __init__(
        self,
        keeper: int,
        report_ns: int,
        *,
        min_members: int,
        quorum: Quorum = Quorum.MAJORITY,
    ) -> None:
        self._keeper, self._report_ns = keeper, report_ns
        self._min_members, self._quorum = min_members, quorum
        self._positions: dict[int, Position] = {}
        """How far each member that follows knows the membership to have come."""
        self._moved: set[int] = set()
        self._ended: set[int] = set()
        self._finished: set[int] = set()
        self._following: set[int] = set()

    @property
    def position(self) -> Position | None:
        """How far the membership has come, as far as any member has told."""
        told = self._positions.values()
        if not told:
            return None
        epoch = max(each.view.epoch for each in told)
        newest = [each for each in told if each.view.epoch == epoch]
        return replace(
            newest[0],
            way=max(each.way for each in told),
            proposal=max(each.proposal for each in told),
            preparation=max(each.preparation for each in told),
            num_finished=max(each.num_finished for each in newest),
            changes=tuple(change for each in newest for change in each.changes),
        )

    def follow(self, rank: int, position: Position, *, has_moved: bool) -> None:
        """Take note of the position that `rank` knows, and whether it has come over."""
        self._positions[rank] = position
        self._following.add(rank)
        self._ended.discard(rank)  # another process may be this rank
        self._finished.discard(rank)
        if has_moved:
            self._moved.add(rank)

    def leave(self, rank: int, *, has_finished: bool) -> None:
        """Take note that `rank` does not need the others any more."""
        if has_finished:
            self._finished.add(rank)
        self.ended(rank)

    def forget(self, rank: int) -> None:
        """Take note that `rank` follows another standby."""
        self._positions.pop(rank, None)
        self._following.discard(rank)
        self._moved.discard(rank)

    def ended(self, rank: int) -> None:
        """Take note that the process of `rank` has ended."""
        self._moved.discard(rank)
        self._following.discard(rank)
        self._ended.add(rank)

    @property
    def expected(self) -> tuple[int, ...]:
        """The members that do not follow yet: those that were just told to may be on the way."""
        position = self.position
        if position is None:
            return ()
        there = self._following | self._gone(position).keys()
        return tuple(rank for rank in position.view.members if rank not in there)

    def missing(self, reachable: Collection[int]) -> int:
        """Return how many more members have to come over; `reachable` are the members heard of."""
        position = self.position
        if position is None:
            return 1
        gone = self._gone(position)
        living = [rank for rank in position.view.members if rank not in gone]
        least = len(living) // 2 + 1
        if self._quorum is Quorum.ANY:  # members come over only if they cannot reach the keeper
            least = max(1, sum(rank in reachable for rank in living))
        return max(0, least - sum(rank in self._moved for rank in living))

    def ascend(
        self, reachable: Collection[int], now_ns: int
    ) -> tuple[Membership, list[Event]] | None:
        """Return the membership to keep from now on, and its first events; None if not yet.

        All members that are `reachable` have to come over now.
        """
        position = self.position
        if position is None or self.missing(reachable):
            return None
        gone = self._gone(position)
        num_finished = sum(change.kind is Kind.FINISHED for change in gone.values())
        membership = Membership(
            position.view,
            self._report_ns,
            min_members=self._min_members,
            quorum=self._quorum,
            num_finished=position.num_finished + num_finished,
        )
        events = membership.succeed(position, self._keeper, now_ns)
        for rank in position.view.members:
            if rank in gone:
                events = membership.lose(rank, gone[rank].reason, now_ns)
            elif rank not in reachable:
                reason = f"Rank {rank} did not come over to the control plane's successor."
                events = membership.lose(rank, reason, now_ns, has_ended=False)
        return membership, events

    def _gone(self, position: Position) -> dict[int, Change]:
        """Return what has become of the members at `position` that are gone.

        Perhaps only the lost keeper has heard of some. Then it has proposed to go on without them,
        and any of the other members may have heard that proposal.
        """
        gone: dict[int, Change] = {}
        for rank in self._ended:
            kind = Kind.FINISHED if rank in self._finished else Kind.LOST
            reason = f"Rank {rank} was lost, or left, with the control plane."
            gone[rank] = Change(kind, rank, reason)
        for change in position.changes:
            if change.is_end:
                gone[change.rank] = change
        return {rank: gone[rank] for rank in position.view.members if rank in gone}


def who_stands_by(view: View, keeper: int, host: int, willing: Collection[int]) -> int | None:
    """Return which of the `willing` members should stand by for the keeper, which is on `host`.

    It is on another host than the keeper's, if any is; None if no member can.
    """
    places = [
        (other == host, rank)
        for rank, other in zip(view.members, view.hosts, strict=True)
        if rank in willing and rank != keeper
    ]
    return min(places)[1] if places else None
