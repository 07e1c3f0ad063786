"""The shards of parameter servers at the workers that serve them, view after view.

As `train.servers.serving` and `moving` do it, for all workers of a simulated job. A server's shards
of all pieces of the model move together here, so one stands for all; where all workers stay to the
end, so do the servers, and one stands for all of them. Who serves what in a new view, and what it
goes on from, is `strategies.shard_places`' to say. Sizes are bytes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from shoal.sim.training.executor import TRAINING
from shoal.sim.virtual_time import Signal
from shoal.strategies import (
    Holding,
    Kept,
    Shard,
    handed_on,
    is_copy_due,
    keeper_of,
    next_exchanges,
    next_places,
    note_of,
    origin_of,
    places_before,
    read_kept,
    servers_of,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from shoal.groups import UpdateRule
    from shoal.membership import Decision
    from shoal.sim.training.served_part import AbstractServedPart
    from shoal.sim.training.world import World
    from shoal.sim.virtual_time import Process
    from shoal.strategies import Origin


@dataclass(slots=True)
class ServedShard:
    """One shard as one process has it: what decides about it, and its memory."""

    decisions: Shard
    memory: AbstractServedPart
    holding: Holding = field(default_factory=Holding)
    """What the weights hold."""
    added: list[int] = field(default_factory=list)
    """The workers whose gradients are in the next update."""

    def update(self, scale: float, share: float) -> None:
        """Update the weights by the mean gradient that has been added, times `scale`."""
        self.memory.update(self.added, scale, share)
        self.added = []
        self.holding = self.decisions.holding


@dataclass(frozen=True, slots=True)
class _Copy:
    """A copy of a shard's optimizer state."""

    holding: Holding
    """What the shard held then."""
    state: object
    size: float


@dataclass(slots=True)
class _Owned:
    """What one worker has of the shards, by their numbers."""

    epoch: int = -1
    """The view in which it has served last; -1: none."""
    places: tuple[int, ...] = ()
    """The rank of each server in that view."""
    held: dict[int, ServedShard] = field(default_factory=dict)
    """Shards that it serves, and some that it has served."""
    pulled: dict[int, Holding] = field(default_factory=dict)
    """What the weights hold that are its model's."""
    copies: dict[int, _Copy] = field(default_factory=dict)
    answered: dict[int, Holding] = field(default_factory=dict)
    """What the weights hold that are on their way to it."""
    coming: dict[int, _Copy] = field(default_factory=dict)
    """Copies that are on their way to it."""


@dataclass(slots=True)
class _Move:
    """What one worker gives another before that can serve."""

    size: float = 0.0
    over: Signal = field(default_factory=Signal)


@final
class Serving:
    """All shards of a world's model, with as many servers as there are workers at first."""

    def __init__(self, world: World, rule: UpdateRule) -> None:
        self._world, self._rule = world, rule
        self.places = world.view.members
        """The rank of each server. A worker that has taken over from a lost one is several."""
        self._is_fixed = world.attendance is None
        numbers = range(1 if self._is_fixed else len(self.places))
        self.live = {number: self._make(number, len(numbers)) for number in numbers}
        """The shards that are served in the present view, by their numbers."""
        self._of = {
            rank: _Owned(
                world.view.epoch,
                self.places,
                {number: self.live[number] for number in numbers if self.places[number] == rank},
                dict.fromkeys(numbers, Holding()),
            )
            for rank in self.places
        }
        self._decision: Decision | None = None
        self._origins: list[Origin] = []
        """What each shard goes on from."""
        self._moves: dict[tuple[int, int], _Move] = {}
        """What has to move for the present view, by giver and taker."""
        self._there: dict[int, Signal] = {}
        """Given when a worker has come to its first exchange in the present view."""
        self._serves: dict[int, Signal] = {}
        """Given when a worker serves in it."""
        self._copied = dict.fromkeys(self.places, 0)
        """The version of each worker's last copy for its keeper, or with which it has begun."""
        self._find_keepers()

    @property
    def part_size(self) -> float:
        """The size of one server's part of the model."""
        return self._world.model.bytes / len(self.places)

    def elsewhere(self, rank: int) -> list[int]:
        """Return the numbers of the servers that are not in the process of `rank`."""
        return [number for number, place in enumerate(self.places) if place != rank]

    # What workers are answered.

    def set_aside(self, rank: int) -> None:
        """Set the weights aside for a worker as they are now, to be pulled."""
        for shard in self.live.values():
            shard.memory.set_aside(rank)
        if not self._is_fixed:
            mine = self._of[rank]
            mine.answered = {number: shard.holding for number, shard in self.live.items()}
            mine.coming = dict(
                each for server in self._kept_by[rank] for each in self._due_copies(server)
            )

    def coming(self, rank: int) -> list[tuple[int, float]]:
        """Return the server and the size of each copy that comes with what a worker pulls."""
        found = [] if self._is_fixed else self._of[rank].coming.items()
        return [(self.places[number], copy.size) for number, copy in found]

    def hand_over(self, rank: int) -> None:
        """Let what was set aside be the worker's model: it has been pulled."""
        self._world.learner.pull(rank)
        if not self._is_fixed:
            mine = self._of[rank]
            mine.pulled.update(mine.answered)
            mine.copies.update(mine.coming)
            # all have been served in this view, so nobody needs what others serve by now
            mine.held = dict(self._live_at(rank))

    def _live_at(self, rank: int) -> Iterator[tuple[int, ServedShard]]:
        return (each for each in self.live.items() if self.places[each[0]] == rank)

    def _due_copies(self, server: int) -> Iterator[tuple[int, _Copy]]:
        """Yield copies of a worker's optimizer state, if they are due for their keeper."""
        shards = list(self._live_at(server))
        version = shards[0][1].holding.version
        if not is_copy_due(version, self._copied[server]):
            return
        self._copied[server] = version
        for number, shard in shards:
            if size := shard.memory.state_bytes:
                yield number, _Copy(shard.holding, shard.memory.state(), size)

    # How the view changes.

    def notes(self, rank: int) -> dict[str, bytes]:
        """Return what a worker reports of what it has."""
        return note_of(TRAINING, self._kept(rank))

    def _kept(self, rank: int) -> Kept:
        mine = self._of[rank]
        served = {number: shard.holding for number, shard in mine.held.items()}
        copied = {number: copy.holding for number, copy in mine.copies.items()}
        return Kept(mine.epoch, mine.places, served, mine.pulled, copied)

    def handed_on(self, rank: int) -> Kept:
        """Return what a newcomer has that gets a worker's model."""
        return handed_on(self._kept(rank))

    def take_over(self, rank: int, kept: Kept) -> None:
        """Let a newcomer begin with the model that another has `handed_on`."""
        mine = self._of[rank]
        mine.epoch, mine.places, mine.pulled = kept.epoch, kept.places, dict(kept.pulled)

    def install(self, decision: Decision) -> None:
        """Find out who serves what in a new view, and what of whose it goes on from."""
        members = decision.view.members
        self._decision, self.live, self._moves = decision, {}, {}
        self._there, self._serves = ({rank: Signal() for rank in members} for _ in range(2))
        staying = {rank: mine for rank, mine in self._of.items() if rank in decision.reports}
        self._of = {rank: staying.get(rank, _Owned()) for rank in members}
        kept = read_kept(decision, TRAINING)
        if not any(each.places for each in kept.values()):
            attendance = self._world.attendance
            assert attendance is not None
            raise attendance.over("All who had weights of the parameter servers were lost.")
        serving = servers_of(decision, TRAINING)
        self.places = next_places(places_before(kept.values()), serving) if serving else ()
        self._origins = [origin_of(*each) for each in self._asked(kept)]
        self._find_moves()
        self._find_keepers()

    def _asked(self, kept: dict[int, Kept]) -> Iterator[tuple[int, dict[int, Kept], int]]:
        return ((number, kept, server) for number, server in enumerate(self.places))

    def _find_moves(self) -> None:
        for number, (taker, origin) in enumerate(zip(self.places, self._origins, strict=True)):
            self._add_move(origin.weights, taker, self.part_size)
            if origin.state is not None:
                giver = self._of[origin.state]
                if origin.is_copied:
                    size = giver.copies[number].size
                else:
                    size = giver.held[number].memory.state_bytes
                self._add_move(origin.state, taker, size)

    def _add_move(self, giver: int, taker: int, size: float) -> None:
        if giver != taker and size:
            self._moves.setdefault((giver, taker), _Move()).size += size

    def _find_keepers(self) -> None:
        self._kept_by: defaultdict[int, list[int]] = defaultdict(list)
        """The workers whose optimizer state each worker keeps copies of."""
        if not self._is_fixed:
            view = self._world.view
            for server in dict.fromkeys(self.places):
                keeper = keeper_of(view, server)
                if keeper is not None:
                    self._kept_by[keeper].append(server)

    def go_on(self, rank: int) -> Generator[int | Signal, Any, int | None]:
        """Let a worker serve in the present view, from its first exchange in it on.

        It gives others what they go on from, and takes what it goes on from itself. The answer is
        the number of its next exchange if it is a newcomer that has not served yet.
        """
        decision, mine = self._decision, self._of[rank]
        if decision is None or mine.epoch == decision.view.epoch:
            return None
        self._world.time.give(self._there[rank])
        moves = sorted(self._moves.items())
        for (giver, taker), move in moves:
            if taker == rank:
                yield self._there[giver]
                yield from self._send(giver, taker, move)
        for (giver, _), move in moves:
            if giver == rank:
                yield move.over
        mine.held.update(self._taken_on(rank, decision))
        mine.epoch, mine.places = decision.view.epoch, self.places
        self.live.update(self._held_at(rank))
        self._world.time.give(self._serves[rank])
        return next_exchanges(decision, TRAINING)[rank] if rank in decision.newcomers else None

    def all_serve(self) -> Process:
        """Wait until all servers of the present view serve."""
        if self._decision is not None:
            for rank in dict.fromkeys(self.places):
                yield self._serves[rank]

    def _send(self, giver: int, taker: int, move: _Move) -> Process:
        world, began = self._world, self._world.time.now
        assert world.attendance is not None
        yield world.send(giver, [taker], [move.size])
        yield from world.attendance.lives.held_up((giver, taker), began)
        world.count("moved_bytes", move.size)
        world.time.give(move.over)

    def _held_at(self, rank: int) -> Iterator[tuple[int, ServedShard]]:
        held = self._of[rank].held
        return ((n, held[n]) for n, place in enumerate(self.places) if place == rank)

    def _taken_on(self, rank: int, decision: Decision) -> dict[int, ServedShard]:
        """Return a worker's shards in the view that is decided, as they go on there."""
        found = {}
        held = self._of[rank].held
        for number, (place, origin) in enumerate(zip(self.places, self._origins, strict=True)):
            if place != rank:
                continue
            shard = held.get(number)
            if shard is None or not (origin.is_served and origin.weights == rank):
                shard = self._make(number, len(self.places))
                self._load(shard.memory, number, origin)
            shard.added = []
            shard.decisions.on_view(decision, TRAINING, origin.holding)
            shard.holding = shard.decisions.holding
            found[number] = shard
        if found:
            self._copied[rank] = next(iter(found.values())).holding.version
        return found

    def _make(self, number: int, of: int) -> ServedShard:
        world = self._world
        decisions = Shard(world.view.members, self._rule)
        return ServedShard(decisions, world.learner.served_part(number, of))

    def _load(self, memory: AbstractServedPart, number: int, origin: Origin) -> None:
        if origin.is_served:
            memory.go_on_from(self._of[origin.weights].held[number].memory)
        else:
            memory.go_on_from_model(origin.weights)
        if origin.state is not None:
            giver = self._of[origin.state]
            if origin.is_copied:
                memory.load_state(giver.copies[number].state)
            else:
                memory.load_state(giver.held[number].memory.state())
