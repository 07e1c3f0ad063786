"""The shards that one process serves, of every piece of the model, and what all of them share.

One thread receives the other workers' requests and hands them to the shards that they are for.
What a shard does with them is `shard_server`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.errors import UsageError
from shoal.train.background import BackgroundThread
from shoal.train.servers.protocol import Kind
from shoal.train.servers.shard import ANOTHER_SHARD, ParameterShard
from shoal.train.servers.shard_server import ShardServer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from torch.optim import Optimizer

    from shoal.strategies import Pulled
    from shoal.train.servers.protocol import Request, RequestWords
    from shoal.train.servers.service import Service


class ShardHost:
    """Serves this process's shards to all workers, until all have left."""

    def __init__(
        self,
        service: Service,
        flats: Sequence[Tensor],
        optimizer: Optimizer,
        words: RequestWords,
    ) -> None:
        """Copy the shards out of the model's `flats`; `words` is memory for a request."""
        self._service, self._words = service, words
        layout, own = service.layout, service.own
        self._shards = {
            piece: ShardServer(
                service,
                ParameterShard(flats, layout, piece, service.server_of(own), optimizer),
                piece,
            )
            for piece in service.pieces_at(own, range(len(layout.pieces)))
        }
        self._remote = tuple(service.others) if self._shards else ()
        self._thread = BackgroundThread("shoal-requests", self._serve)

    @property
    def num_requests(self) -> int:
        """Requests taken by every shard."""
        return min((shard.num_requests for shard in self._shards.values()), default=0)

    def start(self) -> None:
        """Begin to serve; every worker has its first weights already."""
        for shard in self._shards.values():
            shard.start()
        if self._remote:
            self._thread.start()

    def submit(self, request: Request, outbox: Sequence[Tensor]) -> None:
        """Let the shards take a request of the worker of this process.

        Its parts of `outbox` must stay unchanged until `collect` of their pieces returns.
        """
        for piece, shard in self._shards.items():
            if piece in request.pieces:
                shard.submit(request, self._service.part_of(outbox, piece, self._service.own))

    def collect(self, piece: int, inbox: Sequence[Tensor]) -> Pulled | None:
        """Wait until this process's worker may go on with `piece`; copy its shard into `inbox`.

        Returns None if none of it is here. Raises as `ShardServer.collect`.
        """
        shard = self._shards.get(piece)
        if shard is None:
            return None
        return shard.collect(self._service.part_of(inbox, piece, self._service.own))

    def join(self) -> None:
        """Wait until the shards have been served: all workers have left with the last weights."""
        if self._remote:
            self._thread.join(self._service.deadline_s)
        for shard in self._shards.values():
            shard.join()

    def check(self) -> None:
        """Raise what a thread failed with, if one did."""
        self._thread.check()
        for shard in self._shards.values():
            shard.check()

    def counters(self) -> dict[str, float]:
        """Return what the shards have counted, on an average: see docs/parameter-server.md."""
        decisions = [shard.decisions for shard in self._shards.values()]
        reads = [each.clock.staleness_counts for each in decisions]
        share = 1 / max(1, len(decisions))
        return {
            "shard_reads": share * sum(sum(each.values()) for each in reads),
            "shard_updates": share * sum(each.version for each in decisions),
            "shard_skips": share * sum(each.skipped for each in decisions),
            "staleness": share * sum(steps * n for each in reads for steps, n in each.items()),
            "max.staleness": max((max(each) for each in reads), default=0),
            "update_delay": share * sum(each.delays for each in decisions),
            "max.update_delay": max((each.longest_delay for each in decisions), default=0),
        }

    def load_weights(self, flats: Sequence[Tensor]) -> None:
        """Take the weights from the model's `flats` anew; keep the optimizer's state."""
        for shard in self._shards.values():
            shard.load_weights(flats)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the shards' state and the numbers of updates made."""
        return {"shards": [shard.state_dict() for shard in self._shards.values()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`. No worker may push meanwhile except under BSP.

        Raises `UsageError` for the state of other shards.
        """
        saved = state.get("shards", ())
        if len(saved) != len(self._shards):
            raise UsageError(ANOTHER_SHARD)
        for shard, its in zip(self._shards.values(), saved, strict=True):
            shard.check_fits(its)
        for shard, its in zip(self._shards.values(), saved, strict=True):
            shard.load_state_dict(its)

    def _serve(self) -> None:
        try:
            self._take_requests()
        except BaseException as error:
            for shard in self._shards.values():
                shard.fail(error)
            raise

    def _take_requests(self) -> None:
        """Take requests of other processes until all of them have left."""
        remaining = set(self._remote)
        while remaining:
            rank = self._service.communicator.receive_any(
                self._words.words,
                channel=self._service.channels.requests,
                senders=tuple(remaining),
            )
            request = self._words.read()
            for piece, shard in self._shards.items():
                if piece in request.pieces:
                    shard.ask(rank, request)
            if request.kind is Kind.LEAVE:
                remaining.remove(rank)
