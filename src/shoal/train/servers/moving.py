"""How a worker gets the state of its shards in a new view: from its own memory, or other workers'.

Whose memory it is follows from the reports with which the view was decided (`strategies.Origin`),
so all members know it alike, and none asks. A worker gives up none of its state before the view
serves, for another view may begin first.
"""

from __future__ import annotations

import io
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

from shoal.errors import DeadlineExceeded
from shoal.strategies import Origin, Shard, note_name, origin_of
from shoal.train.servers.shard import ParameterShard
from shoal.train.servers.shard_server import ServedShard
from shoal.train.state_memory import copied, memory_for, put_together, taken_apart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from shoal.membership import Decision
    from shoal.strategies import Kept
    from shoal.train.replica import Replica
    from shoal.train.servers.copies import StateCopy
    from shoal.train.servers.service import Service

_POLL_S: Final = 0.002

Parts = dict[int, dict[str, Any]]
"""The state that one worker gives another: each shard's "weights" and "state", by its number."""


def first_shards(
    replica: Replica, service: Service, parameters: Sequence[Tensor]
) -> dict[int, ServedShard]:
    """Return the shards of this worker, by their numbers, at the beginning of a training.

    They take over what the local optimizer knows of the trained `parameters`, which it forgets.
    """
    found, optimizer = {}, replica.optimizer
    for number, (piece, server) in _served_at(service, service.own).items():
        memory = ParameterShard(replica.flat.buffers, service.layout, piece, server, optimizer)
        memory.take_over(parameters, optimizer)
        found[number] = ServedShard(memory, Shard(service.view.members, service.rule))
    optimizer.state.clear()
    return found


def _served_at(service: Service, rank: int) -> dict[int, tuple[int, int]]:
    """Return the piece and the server of each shard that `rank` serves, by its number."""
    layout = service.layout
    return {
        layout.number_of(piece, server): (piece, server)
        for piece in range(len(layout.pieces))
        for server in service.servers_at(rank, piece)
    }


class Move:
    """The shards of one view, made from the state that its members have `kept`.

    `held` are the shards that this worker has had, by number, and `copies` the copies of others'
    optimizer state that it keeps; state is sent over `channel`.
    """

    def __init__(
        self,
        replica: Replica,
        service: Service,
        decision: Decision,
        kept: Mapping[int, Kept],
        held: Mapping[int, ServedShard],
        copies: Mapping[int, StateCopy],
        channel: int,
    ) -> None:
        self._replica, self._service, self._decision = replica, service, decision
        self._held, self._copies, self._channel = held, copies, channel
        self._origins = {
            rank: {number: origin_of(number, kept, rank) for number in _served_at(service, rank)}
            for rank in dict.fromkeys(service.places)
        }
        """The origin of each shard's state, by rank of its server and number."""

    def shards(self) -> dict[int, ServedShard]:
        """Return this worker's shards by their numbers, once they have the state to go on from.

        Gives others what they lack. Raises the communicator's errors, and `DeadlineExceeded`.
        """
        sent = [work for rank in self._origins if rank != self._own for work in self._give(rank)]
        found = self._own_shards()
        for work in sent:
            work.wait()
        return found

    @property
    def _own(self) -> int:
        return self._service.own

    def _own_shards(self) -> dict[int, ServedShard]:
        origins = self._origins.get(self._own, {})
        givers = {each.weights for each in origins.values()}
        givers |= {each.state for each in origins.values() if each.state is not None}
        parts = {rank: self._receive(rank) for rank in sorted(givers - {self._own})}
        parts[self._own] = self._parts_for(self._own, self._own)
        found = {}
        places = _served_at(self._service, self._own)
        for number, origin in origins.items():
            shard = self._held.get(number)
            if shard is None or not self._is_newest(shard, origin):
                shard = self._make(*places[number])
                shard.memory.load_state_dict(_assembled(number, origin, parts))
            shard.memory.drop_contributions()
            shard.decisions.on_view(self._decision, self._replica.session, origin.holding)
            found[number] = shard
        return found

    def _is_newest(self, shard: ServedShard, origin: Origin) -> bool:
        """Return whether this worker's own shard is what it goes on from.

        It may not have been reported, if this worker made it later than the others made theirs.
        """
        is_first = origin.state is None and origin.holding == shard.decisions.holding
        return origin.weights == self._own and (origin.is_served or is_first)

    def _make(self, piece: int, server: int) -> ServedShard:
        replica, layout = self._replica, self._service.layout
        memory = ParameterShard(replica.flat.buffers, layout, piece, server, replica.optimizer)
        return ServedShard(memory, Shard(self._service.view.members, self._service.rule))

    def _parts_for(self, taker: int, giver: int) -> Parts:
        """Return the state that `giver`, this worker, has for `taker`."""
        parts: Parts = defaultdict(dict)
        places = _served_at(self._service, taker)
        for number, origin in self._origins.get(taker, {}).items():
            if origin.weights == giver:
                parts[number]["weights"] = self._weights(number, *places[number], origin)
            if origin.state == giver:
                parts[number]["state"] = self._state(number, origin)
        return dict(parts)

    def _weights(self, number: int, piece: int, server: int, origin: Origin) -> torch.Tensor:
        if origin.is_served:
            return self._held[number].memory.weights
        return self._service.layout.part_of(self._replica.flat.buffers, piece, server)

    def _state(self, number: int, origin: Origin) -> dict[str, Any]:
        """Return the newest optimizer state of a shard, which is here."""
        if origin.is_copied:
            return self._copies[number].unpack()
        return self._held[number].memory.optimizer_state()

    def _give(self, taker: int) -> list[Any]:
        """Begin to send `taker` the state that this worker has for it."""
        parts = self._parts_for(taker, self._own)
        if not parts:
            return []
        skeleton, tensors = taken_apart(parts)
        memory, _ = copied(tensors, all_of_them=True)
        file = io.BytesIO()
        torch.save(skeleton, file)
        self._replica.facts.set(self._fact(self._own, taker), file.getvalue())
        send = self._replica.communicator.send
        return [send(each, taker, channel=self._channel) for each in memory]

    def _receive(self, giver: int) -> Parts:
        name, facts = self._fact(giver, self._own), self._replica.facts
        end = time.monotonic() + self._replica.deadline_s
        while (said := facts.read([name])[0]) is None:
            self._replica.communicator.check()
            if time.monotonic() > end:
                message = f"Rank {giver} did not give its part of the weights to a new server."
                raise DeadlineExceeded(message)
            time.sleep(_POLL_S)
        skeleton = torch.load(io.BytesIO(said), weights_only=True)
        _, empty = taken_apart(skeleton)
        memory, tensors = memory_for(empty)
        receive = self._replica.communicator.receive
        for work in [receive(each, giver, channel=self._channel) for each in memory]:
            work.wait()
        parts: Parts = put_together(skeleton, tensors)
        return parts

    def _fact(self, giver: int, taker: int) -> str:
        epoch = self._decision.view.epoch
        return f"{note_name(self._replica.session)}/{epoch}/{giver}/{taker}"


def _assembled(number: int, origin: Origin, parts: Mapping[int, Parts]) -> dict[str, Any]:
    """Return the state of a shard whose parts have come from two workers at most."""
    state: dict[str, Any] = {"weights": parts[origin.weights][number]["weights"]}
    if origin.state is not None:
        state |= parts[origin.state][number]["state"]
    return state
