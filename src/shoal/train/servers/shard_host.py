"""The shards that one process serves, of every piece of the model, and their shared thread.

The thread receives the other workers' requests and hands them to the shards of their pieces, which
`shard_server` serves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from shoal.errors import UsageError, ViewChanging
from shoal.train.background import BackgroundThread
from shoal.train.servers.protocol import Kind
from shoal.train.servers.shard import ANOTHER_SHARD
from shoal.train.servers.shard_server import ShardServer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from shoal.membership import View
    from shoal.strategies import Holding, Pulled
    from shoal.train.servers.protocol import Request, RequestWords
    from shoal.train.servers.service import Service
    from shoal.train.servers.shard_server import ServedShard


class ShardHost:
    """Serves this process's shards to all workers of a view, until all have left."""

    def __init__(
        self, service: Service, shards: Mapping[int, ServedShard], words: RequestWords
    ) -> None:
        """Serve `shards`, by their numbers; `words` is memory for a request."""
        self._service, self._words = service, words
        self.shards = shards
        layout, own = service.layout, service.own
        self._servers = {
            piece: ShardServer(
                service,
                [
                    shards[layout.number_of(piece, server)]
                    for server in service.servers_at(own, piece)
                ],
                piece,
            )
            for piece in service.pieces_at(own, range(len(layout.pieces)))
        }
        self._remote = tuple(service.others) if self._servers else ()
        self._thread = BackgroundThread("shoal-requests", self._serve)

    @property
    def view(self) -> View:
        """The view to whose members the shards are served."""
        return self._service.view

    @property
    def num_requests(self) -> int:
        """Requests taken by every shard."""
        return min((server.num_requests for server in self._servers.values()), default=0)

    def start(self) -> None:
        """Begin to serve; every worker has its first weights already."""
        for server in self._servers.values():
            server.start()
        if self._remote:
            self._thread.start()

    def submit(self, request: Request, outbox: Sequence[Tensor]) -> None:
        """Queue a request of the worker of this process at the shards.

        Its parts of `outbox` must stay unchanged until `collect` of their pieces returns.
        """
        for piece, server in self._servers.items():
            if piece in request.pieces:
                server.submit(request, self._service.parts_of(outbox, piece, self._service.own))

    def collect(
        self, piece: int, inbox: Sequence[Tensor]
    ) -> tuple[Pulled, Sequence[Holding]] | None:
        """Wait until this process's worker may go on with `piece`; copy its shards into `inbox`.

        Return also the pushes that the shards hold; None if this process has no shard of `piece`.
        Raises as `ShardServer.collect`.
        """
        server = self._servers.get(piece)
        if server is None:
            return None
        return server.collect(self._service.parts_of(inbox, piece, self._service.own))

    def join(self) -> None:
        """Wait until the shards have been served: all workers have left with the last weights."""
        if self._remote:
            self._thread.join(self._service.deadline_s)
        for server in self._servers.values():
            server.join()

    def freeze(self) -> None:
        """Let nothing change the shards any more."""
        for server in self._servers.values():
            server.freeze()

    def end(self) -> None:
        """End the threads; each ends by itself if the view changes."""
        self.freeze()
        over = ViewChanging()
        for server in self._servers.values():
            server.fail(over)
        with suppress(ViewChanging):
            if self._remote:
                self._thread.join(self._service.deadline_s)
        for server in self._servers.values():
            server.end()

    def check(self) -> None:
        """Raise a thread's error, unless the view has ended."""
        with suppress(ViewChanging):
            self._thread.check()
            for server in self._servers.values():
                server.check()

    def counters(self) -> dict[str, float]:
        """Return the shards' counters, on average: see docs/parameter-server.md."""
        decisions = [shard.decisions for shard in self.shards.values()]
        reads = [each.clock.staleness_counts for each in decisions]
        share = 1 / max(1, len(decisions))
        return {
            "shard_reads": share * sum(sum(each.values()) for each in reads),
            "shard_updates": share * sum(each.version for each in decisions),
            "shard_skips": share * sum(each.skipped for each in decisions),
            "staleness": share * sum(steps * n for each in reads for steps, n in each.items()),
            "max.staleness": max((max(each) for each in reads if each), default=0),
            "update_delay": share * sum(each.delays for each in decisions),
            "max.update_delay": max((each.longest_delay for each in decisions), default=0),
        }

    def load_weights(self, flats: Sequence[Tensor]) -> None:
        """Take the weights from the model's `flats` anew; keep the optimizer's state."""
        for server, shard in self._all_shards():
            with server.at_rest():
                shard.memory.load_weights(flats)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the shards' state and the numbers of updates made."""
        states = []
        for server, shard in self._all_shards():
            with server.at_rest():
                version = shard.decisions.version
                states.append({**shard.memory.state_dict(), "version": version})
        return {"shards": states}

    def slices(self, numbers: Sequence[int]) -> dict[str, Any]:
        """Return a copy of what the shards keep, by parameter; see `ParameterShard`."""
        slices, counted = [], []
        for server, shard in self._all_shards():
            with server.at_rest():
                slices += shard.memory.slices(numbers)
                counted += shard.memory.counted()
        return {"slices": slices, "counted": counted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`. No worker may push meanwhile except under BSP.

        Raises `UsageError` for the state of other shards.
        """
        saved = state.get("shards", ())
        if len(saved) != len(self.shards):
            raise UsageError(ANOTHER_SHARD)
        pairs = list(zip(self._all_shards(), saved, strict=True))
        for (_, shard), its in pairs:
            shard.memory.check_fits(its)
        for (server, shard), its in pairs:
            with server.at_rest():
                shard.memory.load_state_dict(its)
                shard.decisions.restart_at(int(its["version"]))

    def _all_shards(self) -> Iterator[tuple[ShardServer, ServedShard]]:
        return ((server, shard) for server in self._servers.values() for shard in server.shards)

    def _serve(self) -> None:
        try:
            self._take_requests()
        except BaseException as error:
            for server in self._servers.values():
                server.fail(error)
            raise

    def _take_requests(self) -> None:
        """Take requests of other processes until all of them have left."""
        remaining = set(self._remote)
        while remaining:
            rank = self._service.communicator.receive_any(
                self._words.words,
                channel=self._service.channels.requests,
                senders=tuple(remaining),
                epoch=self._service.view.epoch,
            )
            request = self._words.read()
            for piece, server in self._servers.items():
                if piece in request.pieces:
                    server.ask(rank, request)
            if request.kind is Kind.LEAVE:
                remaining.remove(rank)
