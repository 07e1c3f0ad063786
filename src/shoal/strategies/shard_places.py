"""Which worker serves which shards in a new view, and whose memory each shard goes on from. Pure.

A model is shared by a number of servers that stays the same: a lost worker leaves its servers to
others, which then have several, and newcomers take over from workers with several. A lost worker's
shards are put together again from the others' state: the weights that they have pulled, and copies
of the optimizer's state. All members report the state they have (`note_of`) with the reports by
which a view is decided, so all know alike what a shard goes on from.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from shoal.decoding import decode_msgpack
from shoal.strategies.shard import Holding

if TYPE_CHECKING:
    from shoal.membership import Decision, View

UPDATES_PER_COPY: Final = 16
"""The number of updates after which another copy of a shard's optimizer state is made."""


class Kept(msgspec.Struct, frozen=True):
    """The state of a model's shards that a worker has, by their numbers; part of its report."""

    epoch: int
    """The epoch of the view in which it has served or pulled last."""

    places: tuple[int, ...]
    """The rank of each server in that view."""

    served: Mapping[int, Holding]
    """Shards of which it has the weights and the optimizer's state."""

    pulled: Mapping[int, Holding]
    """Shards of which it has the weights, in its model."""

    copied: Mapping[int, Holding] = {}
    """Shards of which it has a copy of the optimizer's state."""


class Origin(msgspec.Struct, frozen=True):
    """The state from which a shard goes on."""

    holding: Holding
    weights: int
    """The rank that has the weights."""

    is_served: bool
    """Whether that rank has served the weights; else it has pulled them into its model."""

    state: int | None
    """The rank that has the optimizer's state, if any still does."""

    is_copied: bool = False
    """Whether that rank has a copy of the state; else it has served with it."""


def note_name(training: str) -> str:
    """Return the name under which workers report what they have kept of a training's shards."""
    return f"{training}/shards"


def note_of(training: str, kept: Kept) -> dict[str, bytes]:
    """Return a worker's report on a training's shards: one of `Report.notes`."""
    return {note_name(training): msgspec.msgpack.encode(kept)}


def read_kept(decision: Decision, training: str) -> dict[int, Kept]:
    """Return each member's report on a training's shards, by rank; members without one left out."""
    fault = "What a worker says of its shards is not understood"
    return {
        rank: decode_msgpack(note, Kept, fault)
        for rank, report in decision.reports.items()
        if (note := report.notes.get(note_name(training))) is not None
    }


def kept_at_first(numbers: Iterable[int]) -> Kept:
    """Return the state of a worker that has yet to make its shards: the model that all began with.

    `numbers` are those of all shards.
    """
    return Kept(-1, (), served={}, pulled=dict.fromkeys(numbers, Holding()))


def handed_on(kept: Kept) -> Kept:
    """Return the state of a newcomer that gets the model of a worker with the state `kept`."""
    return Kept(kept.epoch, kept.places, served={}, pulled=dict(kept.pulled))


def servers_of(decision: Decision, training: str) -> tuple[int, ...]:
    """Return the members of a view that can serve: all except those that have ended."""
    stages = decision.stages_of(training)
    return tuple(
        rank for rank in decision.view.members if rank not in stages or not stages[rank].has_ended
    )


def next_places(places: Sequence[int], serving: Sequence[int]) -> tuple[int, ...]:
    """Return the rank of each server, all of them among the ranks `serving` from now on.

    The numbers of servers of two ranks differ by at most one, and no more servers move than need
    to.
    """
    numbers: dict[int, list[int]] = {rank: [] for rank in serving}
    lost: list[int] = []
    for number, rank in enumerate(places):
        numbers.get(rank, lost).append(number)
    for number in lost:
        _fewest(numbers).append(number)
    while len(most := max(numbers.values(), key=len)) - len(fewest := _fewest(numbers)) > 1:
        fewest.append(most.pop())
    rank_of = {number: rank for rank, its in numbers.items() for number in its}
    return tuple(rank_of[number] for number in range(len(places)))


def _fewest(numbers: Mapping[int, list[int]]) -> list[int]:
    return min(numbers.values(), key=len)


def places_before(kept: Collection[Kept]) -> tuple[int, ...]:
    """Return the rank of each server in the last view in which any reporting member has served."""
    return max(kept, key=lambda each: each.epoch).places


def origin_of(shard: int, kept: Mapping[int, Kept], server: int) -> Origin:
    """Return the state from which a shard goes on at `server`: the newest that any rank `kept`."""

    def newest(*kinds: str) -> tuple[Holding, int, str] | None:
        found = [
            (holding.age, kind == "served", rank == server, -rank, holding, rank, kind)
            for rank, each in kept.items()
            for kind in kinds
            if (holding := getattr(each, kind).get(shard)) is not None
        ]
        return max(found, key=lambda each: each[:4])[4:] if found else None

    weights, state = newest("served", "pulled"), newest("served", "copied")
    assert weights is not None, "whoever reports has a model"
    holding, rank, kind = weights
    if kind == "served":
        return Origin(holding, rank, is_served=True, state=rank)
    if state is None:
        return Origin(holding, rank, is_served=False, state=None)
    return Origin(holding, rank, is_served=False, state=state[1], is_copied=state[2] == "copied")


def keeper_of(view: View, server: int) -> int | None:
    """Return the member that keeps copies of a server's optimizer state, None if there is none.

    It is the next member, on another host than the server's if there is any.
    """
    place = view.place_of(server)
    others = [*range(place + 1, len(view)), *range(place)]
    elsewhere = [each for each in others if view.hosts[each] != view.hosts[place]]
    return next((view.members[each] for each in elsewhere or others), None)


def is_copy_due(version: int, copied: int, piece: int = 0) -> bool:
    """Return whether a copy of a shard's state goes to its keeper with the weights of a `version`.

    The previous copy was of version `copied`, or the view began with that. The first answer after
    every so many updates has a copy, at whichever version: the keeper may never be answered at some
    versions, as others push in between. The pieces of a model take turns.
    """
    return (version + piece) // UPDATES_PER_COPY != (copied + piece) // UPDATES_PER_COPY
