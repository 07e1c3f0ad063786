"""torchft: fault-tolerant DDP and DiLoCo, whose lighthouse decides which replicas take part.

Every worker is a replica group of its own, with torchft's own gloo process group and timeouts, or
Shoal's in its place; the lighthouse runs beside the workers.
"""

from __future__ import annotations

import contextlib
import os
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final

import torch
from torch import nn
from torch.distributed import TCPStore  # type: ignore[attr-defined] # torch exports it unmarked

from shoal_bench.peers.ours import Shoal
from shoal_bench.peers.pooled import LOOPBACK, Loop, PooledLibrary, Seat

if TYPE_CHECKING:
    from collections.abc import Iterator

_DEADLINE = timedelta(seconds=60)
_JOIN_MS = 10_000
"""How long the lighthouse waits for late replicas before the first step."""

SYNC_EVERY: Final = 8
"""Steps between two outer steps of DiLoCo, unless it is told otherwise."""
_OUTER_RATE: Final = 0.7
_OUTER_MOMENTUM: Final = 0.9
"""The momentum of the outer optimizer of its train_diloco example and of the paper (arXiv
2311.08105)."""


class AbstractTorchFT(PooledLibrary):
    """What its ways of training share: the lighthouse and the manager."""

    package = "torchft"

    def join(self, _seat: Seat) -> None:
        """Nothing: the manager joins."""

    @contextlib.contextmanager
    def launch(self, workers: int, address: str = LOOPBACK) -> Iterator[str]:
        """Run the lighthouse; yields its address."""
        quieten()
        from torchft.coordination import LighthouseServer

        lighthouse = LighthouseServer(
            bind=f"{address}:0", min_replicas=workers, join_timeout_ms=_JOIN_MS
        )
        try:
            port = lighthouse.address().rpartition(":")[2]
            yield f"http://{address}:{port}"
        finally:
            lighthouse.shutdown()

    def _manager(
        self, seat: Seat, model: nn.Module, *, is_async: bool, over_shoal: bool = False
    ) -> tuple[Any, TCPStore]:
        """Return a manager of this replica, and the store that has to outlive it."""
        quieten()
        import torchft

        kind = shoal_group() if over_shoal else torchft.ProcessGroupGloo
        store = TCPStore(seat.address, 0, is_master=True, wait_for_workers=False)
        manager = torchft.Manager(
            pg=kind(timeout=_DEADLINE),
            min_replica_size=seat.world_size,
            load_state_dict=model.load_state_dict,
            state_dict=model.state_dict,
            use_async_quorum=is_async,
            rank=0,
            world_size=1,
            store_addr=seat.address,
            store_port=store.port,
            lighthouse_addr=seat.meeting_point,
            replica_id=f"replica-{seat.rank}",
            hostname=seat.address,
            init_sync=False,  # as it advises where all start from the same weights
        )
        return manager, store


@final
class TorchFT(AbstractTorchFT):
    """torchft's DDP wrapper, manager and optimizer wrapper, as in its train_ddp example.

    Sums go over gloo, or over Shoal's transport.
    """

    counterpart = Shoal("all-reduce")
    """Shoal with the same algorithm, without the fault tolerance."""

    def __init__(self, *, over_shoal: bool = False) -> None:
        self.is_ours = over_shoal

    @property
    def title(self) -> str:
        """The library's name, with the transport if that is ours."""
        return "torchft DDP, over Shoal" if self.is_ours else "torchft DDP"

    def loop(self, seat: Seat, model: nn.Module) -> Loop:
        """Return the loop of its DDP example."""
        manager, store = self._manager(seat, model, is_async=True, over_shoal=self.is_ours)
        import torchft

        wrapped: Any = torchft.DistributedDataParallel(manager, model)
        optimizer = torchft.Optimizer(manager, seat.make_optimizer(wrapped.parameters()))
        return Loop(wrapped, optimizer.zero_grad, optimizer.step, partial(_close, manager, store))


@final
class TorchFTDiLoCo(AbstractTorchFT):
    """Local steps, then an outer step with the mean of what they changed.

    `sync_every` is how many steps lie between two outer steps of the same parameters. If
    `is_streaming`, two halves of the model take turns, and each is exchanged while half of the
    steps up to the next one compute, as in its train_diloco example (Streaming DiLoCo, arXiv
    2501.18512).
    """

    def __init__(self, sync_every: int = SYNC_EVERY, *, is_streaming: bool = False) -> None:
        self._sync_every, self._is_streaming = sync_every, is_streaming

    @property
    def title(self) -> str:
        """The library's name, with how rarely it synchronizes."""
        name = "torchft Streaming DiLoCo" if self._is_streaming else "torchft DiLoCo"
        return f"{name} (every {self._sync_every} steps)"

    @property
    def counterpart(self) -> PooledLibrary:
        """The same algorithm, as rarely."""
        return Shoal("diloco", interval=self._sync_every)

    def loop(self, seat: Seat, model: nn.Module) -> Loop:
        """Return the loop of its DiLoCo example."""
        manager, store = self._manager(seat, model, is_async=False)
        from torchft.local_sgd import DiLoCo

        inner = seat.make_optimizer(model.parameters())
        fragments: list[Any] = halves_of(model) if self._is_streaming else [model]
        averaging = DiLoCo(
            manager,
            fragments,
            inner,
            [_outer(fragment) for fragment in fragments],
            sync_every=self._sync_every,
            fragment_sync_delay=self._sync_every // len(fragments) // 2 * self._is_streaming,
        )
        averaging.__enter__()

        def close() -> None:
            averaging.__exit__(None, None, None)
            _close(manager, store)

        return Loop(model, inner.zero_grad, inner.step, close)


def _outer(fragment: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(fragment.parameters(), _OUTER_RATE, _OUTER_MOMENTUM, nesterov=True)


def halves_of(model: nn.Module) -> list[nn.ModuleList]:
    """Return the layers of `model` as two modules of about as many parameters.

    Layers that share a parameter stay together, so that each parameter is in one of the two.
    """
    halves = [nn.ModuleList(), nn.ModuleList()]
    for layer in model.modules():
        own = set(layer.parameters(recurse=False))
        if own:
            sharing = (half for half in halves if own & set(half.parameters()))
            next(sharing, min(halves, key=_size)).append(layer)
    return halves


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def shoal_group() -> Any:
    """Return the kind of process group that stands in for torchft's own."""
    from shoal.adapters.torchft import ProcessGroupShoal

    return ProcessGroupShoal


def quieten() -> None:
    """Keep it from writing several lines per step; it reads this when it is first imported."""
    os.environ.setdefault("RUST_LOG", "warn")


def _close(manager: Any, _store: TCPStore) -> None:
    """End the manager; the store must outlive it."""
    manager.shutdown(wait=False)
