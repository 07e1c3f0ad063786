"""torchft in jobs whose replicas die and come back: its DDP example, and the same tuned.

Every worker is a replica group of its own. Its lighthouse is a process of its own, which has to
live as long as the job.
"""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, final

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined] # torch exports it unmarked

from shoal_bench.elastic.contender import AbstractContender, Part
from shoal_bench.peers.torchft import quieten, shoal_group

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from shoal_bench.peers.pooled import Seat


@dataclass(frozen=True, slots=True)
class Settings:
    """The times that its users set."""

    name: str
    join_timeout_ms: int
    """How long the lighthouse waits for replicas that are alive and have not asked yet."""

    quorum_tick_ms: int
    """How often the lighthouse looks."""

    heartbeat_timeout_ms: int
    """The silence after which the lighthouse takes a replica for dead."""

    collective_s: float
    """The time after which gloo gives a collective up."""

    timeout_s: float
    """The manager's `timeout`, for its own requests."""


AS_IN_ITS_EXAMPLE: Final = Settings("as in its example", 10_000, 100, 5_000, 5.0, 10.0)
"""The lighthouse's options are those of its README, the timeouts those of train_ddp.py; the rest is
what they leave at its default."""

TUNED: Final = Settings("tuned", 1_000, 20, 500, 0.5, 5.0)
"""Chosen by trying: see benchmarks/README.md."""


@final
class TorchFT(AbstractContender):
    """`DistributedDataParallel`, `Optimizer` and `Manager` of torchft, over gloo or over Shoal.

    A newcomer gets parameters and the optimizer's state from another replica.
    """

    package = "torchft"
    service = "lighthouse"

    def __init__(self, settings: Settings, *, over_shoal: bool = False) -> None:
        self._settings, self._over_shoal = settings, over_shoal

    @property
    def title(self) -> str:
        """The library and how it is set."""
        over = ", over Shoal" if self._over_shoal else ""
        return f"torchft ({self._settings.name}{over})"

    @contextlib.contextmanager
    def launch(self, address: str, port: int) -> Iterator[str]:
        """Run the lighthouse."""
        quieten()
        from torchft.coordination import LighthouseServer

        lighthouse = LighthouseServer(
            bind=f"{address}:{port}",
            min_replicas=1,
            join_timeout_ms=self._settings.join_timeout_ms,
            quorum_tick_ms=self._settings.quorum_tick_ms,
            heartbeat_timeout_ms=self._settings.heartbeat_timeout_ms,
        )
        try:
            yield f"http://{address}:{port}"
        finally:
            lighthouse.shutdown()

    def join(self, seat: Seat, model: nn.Module) -> Part:
        """Begin the job, or come to it."""
        quieten()
        import torchft

        inner = seat.make_optimizer(model.parameters())

        def state() -> dict[str, Any]:
            return {"model": model.state_dict(), "optim": inner.state_dict()}

        def load(state: dict[str, Any]) -> None:
            model.load_state_dict(state["model"])
            inner.load_state_dict(state["optim"])

        store = TCPStore(seat.address, 0, is_master=True, wait_for_workers=False)
        kind, wrapper = _shoal() if self._over_shoal else _gloo()
        manager = torchft.Manager(
            pg=kind(timeout=timedelta(seconds=self._settings.collective_s)),
            min_replica_size=1,
            load_state_dict=load,
            state_dict=state,
            timeout=timedelta(seconds=self._settings.timeout_s),
            rank=0,
            world_size=1,
            store_addr=seat.address,
            store_port=store.port,
            lighthouse_addr=seat.meeting_point,
            replica_id=f"replica-{seat.rank}",
            hostname=seat.address,
            checkpoint_transport=_at(seat.address, timedelta(seconds=self._settings.timeout_s)),
        )
        wrapped: Any = wrapper(manager, model)
        optimizer = torchft.Optimizer(manager, inner)
        done = 0

        def update() -> None:
            nonlocal done
            before = manager.current_step()
            takes_part = manager.participating_rank() is not None
            optimizer.step()
            done += takes_part and manager.current_step() > before

        def count(_store: TCPStore = store) -> int:  # which has to outlive the manager
            return done

        return Part(
            wrapped,
            optimizer.zero_grad,
            update,
            done=count,
            kept=count,
            members=manager.num_participants,
        )


def _at(address: str, timeout: timedelta) -> Any:
    """Return what a manager hands state on with by default, but at `address`.

    By itself it is found by its host's name, which an emulated host shares with all others.
    """
    from torchft.checkpointing import HTTPTransport

    class Addressed(HTTPTransport):
        def metadata(self) -> str:
            return str(super().metadata()).replace(f"//{socket.gethostname()}:", f"//{address}:")

    return Addressed(timeout=timeout, num_chunks=0)


def _gloo() -> tuple[Any, Any]:
    """Return the kind of process group, and the wrapper of the model, for gloo."""
    import torchft

    return torchft.ProcessGroupGloo, _mended(torchft.DistributedDataParallel)


def _shoal() -> tuple[Any, Any]:
    """Return the same for Shoal, under which torchft's own wrapper outlives a failed sum."""
    import torchft

    return shoal_group(), torchft.DistributedDataParallel


def _mended(wrapper: type[Any]) -> type[Any]:
    """Return torchft's `DistributedDataParallel` with a hook that outlives a failed sum.

    The hook of torchft 0.2.0 asserts that the sum has a future, which it has not once gloo has
    raised an error on waiting for it: all survivors of a death would end. This one hands back the
    buffer, whose sum the manager has noted as failed, so that the step is not committed.
    """

    # a lambda, for torch looks at a hook's annotations
    hook = staticmethod(lambda manager, bucket: _summed_or_not(manager, bucket.buffer()))
    return type("Mended", (wrapper,), {"_comm_hook": hook})


def _summed_or_not(manager: Any, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    manager.allreduce(buffer).wait()
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(buffer)
    return done
