"""This worker's servers and its client of all servers, view after view.

Owns the cut of a model for a number of servers, which a job keeps, and the record of a worker's
shards: it serves some, has served others, and has pulled all of them. When the view changes it
reports that record (`Kept`), and its next shards follow from all reports (`moving`).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, final

from shoal.carriers import reserve_channels
from shoal.errors import ViewChanging, WorkerLost
from shoal.strategies import (
    Holding,
    Kept,
    handed_on,
    kept_at_first,
    next_exchanges,
    next_places,
    note_of,
    places_before,
    read_kept,
    servers_of,
)
from shoal.train.model_pieces import ModelPieces
from shoal.train.servers.boxes import Inbox, Outbox
from shoal.train.servers.client import ParameterClient
from shoal.train.servers.moving import Move, first_shards
from shoal.train.servers.protocol import Channels, RequestWords
from shoal.train.servers.service import Service
from shoal.train.servers.shard import ModelLayout, PieceSpan, TrainedSpan
from shoal.train.servers.shard_host import ShardHost

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor

    from shoal.membership import Decision, View
    from shoal.strategies import ParameterServer
    from shoal.train.model_pieces import Piece
    from shoal.train.replica import Replica
    from shoal.train.servers.copies import StateCopy
    from shoal.train.servers.shard_server import ServedShard


@final
class Serving:
    """The shards that one worker serves, and its client of all servers.

    `parameters` are those that servers update, with `num_options` numeric options. A newcomer
    learns how many servers share the model once it is a member.
    """

    def __init__(
        self,
        definition: ParameterServer,
        replica: Replica,
        parameters: Sequence[Tensor],
        num_options: int,
    ) -> None:
        self._definition, self._replica = definition, replica
        self._parameters, self._num_options = parameters, num_options
        self._reserved = reserve_channels(replica.communicator)
        self._held: dict[int, ServedShard] = {}
        """Shards by their numbers: all that this worker serves, and some that it has served."""
        self._pulled: dict[int, Holding] = {}
        """The pushes in the model's weights, by shard."""
        self._copies: dict[int, StateCopy] = {}
        """Others' optimizer state, by shard."""
        self._epoch = -1
        self._places: tuple[int, ...] = ()
        self._host: ShardHost | None = None
        self._is_cut = False
        first, member = replica.first_view, replica.member
        if first is not None:
            self._cut_for(definition.servers or len(first))
            service = self._service_in(first, self._first_places(first))
            shards = first_shards(replica, service, parameters)
            if not member.is_fixed:
                self._pulled = dict(kept_at_first(self._layout.numbers).pulled)
            self._have(service, shards)
            with suppress(ViewChanging), member.acting_in(first):  # in a next one: see `go_on`
                self.host.start()
        if not member.is_fixed:
            member.keep(self)

    def _cut_for(self, servers: int) -> None:
        """Cut the model into pieces that so many servers share."""
        replica, self._is_cut = self._replica, True
        self.cut = ModelPieces(replica.model, replica.flat, servers)
        pieces, flats = self.cut.pieces, replica.flat.buffers
        self._layout = _layout(replica, pieces, self._parameters, servers)
        self._channels = Channels.among(self._reserved, len(pieces))
        self.outbox = Outbox(flats, pieces, self._layout, self._parameters)
        self.inbox = Inbox(flats, pieces)

    def _first_places(self, view: View) -> tuple[int, ...]:
        return view.members[: self._layout.num_servers]

    def _service_in(self, view: View, places: tuple[int, ...]) -> Service:
        return Service(
            self._replica.communicator,
            self._channels,
            view,
            places,
            self.cut,
            self._layout,
            self._definition.rule,
            self._definition.pull_bound,
            self._replica.deadline_s,
            tells_holdings=not self._replica.member.is_fixed,
        )

    def _have(self, service: Service, shards: Mapping[int, ServedShard]) -> None:
        """Have these shards in the service's view, to be served once their host is started."""
        self._held.update(shards)
        self._epoch, self._places = service.view.epoch, service.places
        self._host = ShardHost(service, shards, self._request_words())
        self.client = ParameterClient(
            service,
            self._host,
            self._request_words,
            self.outbox.flats,
            self.inbox.flats,
            self._replica.count,
        )

    def _request_words(self) -> RequestWords:
        return RequestWords.allocate(len(self._parameters), self._num_options)

    @property
    def host(self) -> ShardHost:
        """The host of the shards that this worker serves in the present view."""
        assert self._host is not None
        return self._host

    @property
    def all_pieces(self) -> range:
        """The numbers of the model's pieces."""
        return range(len(self.cut.pieces))

    def check(self) -> None:
        """Raise the error of this worker's servers, if they failed."""
        if self._host is not None:
            self._host.check()

    def is_in(self, view: View) -> bool:
        """Return whether this worker serves, and is served, in `view`."""
        return self._epoch == view.epoch

    def go_on(self) -> int | None:
        """Serve, and be served, in the present view from now on.

        Return the number of its next exchange if this worker is a newcomer. Raises the
        communicator's errors.
        """
        decision, training = self._replica.member.decision, self._replica.session
        if self._epoch == decision.view.epoch:
            return None
        if self._host is not None:
            self._host.end()
            self._host = None
        kept, first = read_kept(decision, training), self._replica.first_view
        if kept:
            before = places_before(kept.values())
        elif first is not None:
            before = self._first_places(first)
        else:
            raise WorkerLost("All who had weights of the parameter servers were lost.")
        places = next_places(before, servers_of(decision, training))
        if not self._is_cut:
            self._cut_for(len(places))
        late = kept_at_first(self._layout.numbers)
        kept |= {rank: late for rank in decision.reports if rank not in kept}
        service = self._service_in(decision.view, places)
        channel = self._reserved[-1]
        move = Move(self._replica, service, decision, kept, self._held, self._copies, channel)
        self._have(service, move.shards())
        self.host.start()
        rank = self._replica.communicator.rank
        return next_exchanges(decision, training)[rank] if rank in decision.newcomers else None

    def hand_over(self, pieces: Iterable[int]) -> None:
        """Copy pulled pieces into the model. Raises `ViewChanging` if the view is over."""
        member = self._replica.member
        if member.is_fixed:
            self.inbox.hand_over(pieces)
            return
        with member.changed:
            if member.is_fenced or member.view.epoch != self._epoch:
                raise ViewChanging
            self.inbox.hand_over(pieces)
            self._pulled.update(self.client.holdings)
            self._copies.update(self.client.copies)
            # all have been served in this view, so nobody needs shards that have moved elsewhere
            self._held = dict(self.host.shards)

    def handed_on(self) -> Kept:
        """Return the record of a newcomer that gets this worker's model."""
        return handed_on(self._kept())

    def take_over(self, kept: Kept) -> None:
        """Begin with the record of the model that another worker has `handed_on`."""
        self._epoch, self._places = kept.epoch, kept.places
        self._pulled = dict(kept.pulled)

    def report(self) -> dict[str, bytes]:
        """Freeze this worker's shards and return the record of them; see `Bookkeeper`."""
        if self._host is not None:
            self._host.freeze()
        return note_of(self._replica.session, self._kept())

    def _kept(self) -> Kept:
        served = {number: shard.decisions.holding for number, shard in self._held.items()}
        copied = {number: copy.holding for number, copy in self._copies.items()}
        return Kept(self._epoch, self._places, served, self._pulled, copied)

    def decided(self, decision: Decision) -> None:
        """Hear of a decision, which `go_on` acts on; see `Bookkeeper`."""

    def load_weights(self) -> None:
        """Serve the model's weights as they are now."""
        self.host.load_weights(self._replica.flat.buffers)

    def close(self) -> None:
        """Keep no more copies for others. This worker's own shards stay, for a checkpoint."""
        self._copies = {}


def _layout(
    replica: Replica, pieces: Sequence[Piece], trained: Sequence[Tensor], num_servers: int
) -> ModelLayout:
    """Return the places of pieces and trained parameters in the model's flat tensors."""
    groups = {
        id(parameter): index
        for index, group in enumerate(replica.optimizer.param_groups)
        for parameter in group["params"]
    }
    return ModelLayout(
        pieces=tuple(PieceSpan(each.flat, each.elements, each.is_statistics) for each in pieces),
        trained=tuple(TrainedSpan(*replica.flat.place_of(p), groups[id(p)]) for p in trained),
        num_servers=num_servers,
    )
