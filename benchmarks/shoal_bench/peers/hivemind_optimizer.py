"""Hivemind's optimizer in worker processes that may fork: local updates, averaged now and then.

The first worker's host also runs a peer of the DHT that the others are told of.
"""

from __future__ import annotations

import contextlib
import tempfile
from typing import TYPE_CHECKING, Any, Final, final

from shoal_bench.peers.ours import Shoal
from shoal_bench.peers.pooled import LOOPBACK, Loop, PooledLibrary, Seat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

STEPS_PER_EPOCH: Final = 40
"""Steps of every worker that make up one global batch; its guide recommends large ones."""
MATCHMAKING_S: Final = 3.5
"""The seconds of matchmaking: hivemind's configuration guide recommends 3 to 5 for small runs; its
requests take 3."""
AVERAGING_TIMEOUT_S: Final = 10.0
"""The seconds of averaging after which hivemind gives up, as in its quick start."""


@final
class HivemindOptimizer(PooledLibrary):
    """`hivemind.Optimizer` with local updates: workers step alone and average their parameters.

    `steps_per_epoch` is how many steps lie between two averagings; with `is_half` parameters are
    sent as float16, as its documentation advises.
    """

    package = "hivemind"
    is_lock_step = False
    counterpart = Shoal("ripples")
    """Waiting for nobody."""

    def __init__(self, steps_per_epoch: int = STEPS_PER_EPOCH, *, is_half: bool = False) -> None:
        self._steps_per_epoch, self._is_half = steps_per_epoch, is_half

    @property
    def title(self) -> str:
        """The library's name, with how seldom it averages."""
        words = f"averages every {self._steps_per_epoch} steps{', float16' * self._is_half}"
        return f"Hivemind ({words})"

    def join(self, _seat: Seat) -> None:
        """Nothing: peers find each other."""

    @contextlib.contextmanager
    def launch(self, _workers: int, address: str = LOOPBACK) -> Iterator[str]:
        """Run the first peer; yields its addresses."""
        dht = start_peer(address, [])
        try:
            yield ",".join(str(each) for each in dht.get_visible_maddrs())
        finally:
            dht.shutdown()

    def loop(self, seat: Seat, model: nn.Module) -> Loop:
        """Return the loop of its quick start, with local updates."""
        optimizer = self.optimizer_of(seat, model)

        def close() -> None:
            optimizer.shutdown()
            optimizer.dht.shutdown()

        return Loop(model, optimizer.zero_grad, optimizer.step, close)

    def optimizer_of(self, seat: Seat, model: nn.Module) -> Any:
        """Return the optimizer of a peer that trains `model`; its `dht` ends apart from it."""
        import hivemind
        from hivemind.compression import Float16Compression, NoCompression

        return hivemind.Optimizer(
            dht=start_peer(seat.address, seat.meeting_point.split(",")),
            run_id="train",
            # in steps: every sample counts as much, so the unit does not matter
            target_batch_size=self._steps_per_epoch * seat.world_size,
            batch_size_per_step=1,
            params=model.parameters(),
            optimizer=seat.make_optimizer,
            use_local_updates=True,
            matchmaking_time=MATCHMAKING_S,
            averaging_timeout=AVERAGING_TIMEOUT_S,
            state_averaging_compression=Float16Compression() if self._is_half else NoCompression(),
        )


def start_peer(address: str, first: list[str], port: int = 0) -> Any:
    """Start a peer of the DHT, at any free port if `port` is 0.

    Its sockets lie where temporary files do.
    """
    import hivemind
    from hivemind.p2p import P2P

    P2P._UNIX_SOCKET_PREFIX = f"/unix{tempfile.gettempdir()}/"  # noqa: SLF001 - it leaves sockets behind, and offers no other way to say where
    return hivemind.DHT(initial_peers=first, host_maddrs=[f"/ip4/{address}/tcp/{port}"], start=True)
