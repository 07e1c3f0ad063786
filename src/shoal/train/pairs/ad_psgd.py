"""AD-PSGD: asynchronous decentralized SGD by averaging with random neighbors.

Lian et al., ICML 2018; docs/papers.md, 4.1. Even ranks are passive, odd ranks active. After
every step an active worker starts to average its parameters with a passive one of its choice, while
it computes the next gradient; local updates go to whatever the parameters have become meanwhile, so
a gradient is at most one iteration stale. Optimizer state stays local. See docs/ad-psgd.md.
"""

from __future__ import annotations

import time
from random import Random
from typing import TYPE_CHECKING, Any, Literal, final

import torch

from shoal.carriers.channels import reserve_channels
from shoal.carriers.profiled import in_profile
from shoal.groups.bipartite import Bipartite
from shoal.trace import SpanKind
from shoal.train.model_hooks import ModelHook
from shoal.train.model_use import ModelUse
from shoal.train.pairs.master_copy import MasterCopy
from shoal.train.pairs.pair_exchange import ActiveSide, Channels, PassiveSide
from shoal.train.strategy import AbstractStrategy, Averaged

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.train.pairs.pair_exchange import Exchange
    from shoal.train.replica import Replica


@final
class ADPSGD(AbstractStrategy):
    """Average with one neighbor per local step, in the background.

    `peers` is "random" (the paper) or "exponential" (the published implementation: rank distances
    1, -1, 3, -3, 5, ... in turn).
    """

    name = "ad-psgd"
    averaged = Averaged.PARAMETERS
    is_lock_step = False

    def __init__(self, *, peers: Literal["random", "exponential"] = "random") -> None:
        self._peers: Literal["random", "exponential"] = peers
        Bipartite(1, peers)  # refuses an unknown rule now rather than in `bind`

    def options(self) -> dict[str, str | int | float | bool | None]:
        """Return how active workers choose their peers."""
        return {"peers": self._peers}

    def _attach(self, replica: Replica) -> None:
        """Start the thread that starts or answers exchanges."""
        self._replica = replica
        communicator = replica.communicator
        self._pairs = Bipartite(communicator.world_size, self._peers)
        self._random = Random(f"ad-psgd {replica.seed} {communicator.rank}")
        self._num_exchanges = 0
        self._master = MasterCopy(replica.flat.buffers, replica.flat.statistics)
        self._on_load = replica.model.register_load_state_dict_post_hook(
            ModelHook(lambda *_: self._master.reload())
        )
        self._use = ModelUse(replica.model)
        channels = Channels(*reserve_channels(communicator)[:3])
        self._active: ActiveSide | None = None
        self._passive: PassiveSide | None = None
        if self._pairs.is_active(communicator.rank):
            self._active = ActiveSide(communicator, channels, self._master, replica.deadline_s)
            self._active.start()
        elif communicator.world_size > 1:
            actives = [k for k in range(communicator.world_size) if self._pairs.is_active(k)]
            self._passive = PassiveSide(
                communicator, channels, self._master, actives, replica.deadline_s
            )
            self._passive.start()

    def step(self, update: Callable[[], None], *, skipped: bool = False) -> None:
        """Take in what averaging has changed, apply `update` to it, and average on."""
        self._use.check()
        if self._passive is not None:
            self._passive.check()
        if self._active is not None:
            self._await_exchange(self._active)
        with torch.no_grad():
            self._master.update(update)
        if self._active is not None:
            rank = self._replica.communicator.rank
            peer = self._pairs.active_peer(rank, self._num_exchanges, self._random)
            self._active.begin(peer)
            self._num_exchanges += 1

    def _await_exchange(self, active: ActiveSide) -> None:
        """Wait for the exchange that ran beside this step's computing, if it still does."""
        begin_ns = time.monotonic_ns()
        with in_profile("shoal:exchange"):
            exchange = active.wait()
        if exchange is not None:
            self._account(exchange, begin_ns, time.monotonic_ns())

    def _account(self, exchange: Exchange, begin_ns: int, end_ns: int) -> None:
        """Count the exchange, and record what of it the training thread had to wait for."""
        replica = self._replica
        members = tuple(sorted((replica.communicator.rank, exchange.passive)))
        add = replica.stopwatch.add
        if exchange.granted_ns > begin_ns:
            granted_ns = min(exchange.granted_ns, end_ns)
            reason = f"rank {exchange.passive} has not answered yet"
            add(SpanKind.WAIT, begin_ns, granted_ns, members, reason)
        if exchange.end_ns > begin_ns:
            moving_ns = max(exchange.granted_ns, begin_ns)
            add(SpanKind.EXCHANGE, moving_ns, end_ns, members, "the exchange outlasts computing")
        replica.count("group_size.2")
        replica.count("exchanges")
        replica.count("exchange_seconds", (exchange.end_ns - exchange.begin_ns) / 1e9)
        replica.count("exposed_exchange_seconds", (end_ns - begin_ns) / 1e9)
        if exchange.queued_ns:
            queued_s = exchange.queued_ns / 1e9
            longest = max(replica.counters.get("max.queue_seconds", 0.0), queued_s)
            replica.counters["max.queue_seconds"] = longest
            replica.count("busy_requests")
            replica.count("queue_seconds", queued_s)

    def _end(self) -> None:
        """Say goodbye (active), or serve until every active worker has (passive)."""
        if self._active is not None:
            self._await_exchange(self._active)
            self._active.finish(list(range(0, self._replica.communicator.world_size, 2)))
        if self._passive is not None:
            self._passive.finish()
            self._replica.count("group_size.2", self._passive.num_served)
        with torch.no_grad():
            self._master.update(lambda: None)
        self._on_load.remove()

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the choice of peers; parameters are the model's."""
        return {"num_exchanges": self._num_exchanges, "random": self._random.getstate()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue choosing peers as the saved run would have."""
        self._num_exchanges = int(state["num_exchanges"])
        version, internal, gauss = state["random"]
        self._random.setstate((version, tuple(internal), gauss))
