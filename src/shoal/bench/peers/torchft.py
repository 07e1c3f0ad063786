"""torchft: fault-tolerant DDP, whose lighthouse decides at every step who takes part.

Every worker is a replica group of its own, with torchft's own gloo process group and timeouts; the
lighthouse runs in the launcher.
"""

from __future__ import annotations

import contextlib
import os
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, final

from torch.distributed import TCPStore  # type: ignore[attr-defined] # torch exports it unmarked

from shoal.bench.peers.ours import Shoal
from shoal.bench.peers.pooled import Loop, PooledLibrary
from shoal.bench.perceptron import local_optimizer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from shoal.jobs.worker import WorkerContext

_DEADLINE = timedelta(seconds=60)
_JOIN_MS = 10_000
"""How long the lighthouse waits for late replicas before the first step."""


@final
class TorchFT(PooledLibrary):
    """Its DDP wrapper, manager and optimizer wrapper, as in its train_ddp example."""

    package = "torchft"

    @property
    def title(self) -> str:
        """Its name."""
        return "torchft DDP"

    @property
    def counterpart(self) -> PooledLibrary:
        """The same algorithm, without the fault tolerance."""
        return Shoal("all-reduce")

    @contextlib.contextmanager
    def launch(self, workers: int) -> Iterator[str]:
        """Run the lighthouse; yields its address."""
        _quieten()
        from torchft.coordination import LighthouseServer

        lighthouse = LighthouseServer(
            bind="127.0.0.1:0", min_replicas=workers, join_timeout_ms=_JOIN_MS
        )
        try:
            port = lighthouse.address().rpartition(":")[2]
            yield f"http://127.0.0.1:{port}"
        finally:
            lighthouse.shutdown()

    def loop(self, context: WorkerContext, model: nn.Module, meeting_point: str) -> Loop:
        """Return the loop of its DDP example."""
        _quieten()
        import torchft

        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        manager = torchft.Manager(
            pg=torchft.ProcessGroupGloo(timeout=_DEADLINE),
            min_replica_size=context.session.world_size,
            load_state_dict=model.load_state_dict,
            state_dict=model.state_dict,
            rank=0,
            world_size=1,
            store_addr="127.0.0.1",
            store_port=store.port,
            lighthouse_addr=meeting_point,
            replica_id=f"replica-{context.session.rank}",
            hostname="127.0.0.1",
            init_sync=False,  # as it advises where all start from the same weights
        )
        wrapped: Any = torchft.DistributedDataParallel(manager, model)
        optimizer = torchft.Optimizer(manager, local_optimizer(wrapped.parameters()))
        return Loop(wrapped, optimizer.zero_grad, optimizer.step, partial(_close, manager, store))


def _quieten() -> None:
    """Keep it from writing several lines per step; it reads this when it is first imported."""
    os.environ.setdefault("RUST_LOG", "warn")


def _close(manager: Any, _store: TCPStore) -> None:
    """End the manager; the store must outlive it."""
    manager.shutdown(wait=False)
