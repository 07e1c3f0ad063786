"""Hivemind in jobs whose peers die and come back: `hivemind.Optimizer` with local updates.

Peers step alone and average their parameters now and then, so a death holds up nobody's step; what
it costs shows in the averages. A peer that all are told of runs beside the workers, as a process of
its own.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, final

from shoal_bench.elastic.contender import AbstractContender, Part
from shoal_bench.peers.hivemind_optimizer import STEPS_PER_EPOCH, HivemindOptimizer, start_peer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from shoal_bench.peers.pooled import Seat


@final
class Hivemind(AbstractContender):
    """The optimizer of its quick start, set as in the other benchmarks of this distribution."""

    package = "hivemind"
    service = "first peer"
    modules = ("hivemind",)
    tells_members = False
    title = f"Hivemind (averages every {STEPS_PER_EPOCH} steps)"

    @contextlib.contextmanager
    def launch(self, address: str, port: int) -> Iterator[str]:
        """Run the first peer."""
        dht = start_peer(address, [], port=port)
        try:
            yield ",".join(str(each) for each in dht.get_visible_maddrs())
        finally:
            dht.shutdown()

    def join(self, seat: Seat, model: nn.Module) -> Part:
        """Begin the job, or come to it; what peers have the first step fetches."""
        optimizer = HivemindOptimizer().optimizer_of(seat, model)
        done = kept = epoch = 0

        def update() -> None:
            nonlocal done, kept, epoch
            optimizer.step()
            if optimizer.local_epoch != epoch:  # all steps up to this one are in the average
                epoch, kept = optimizer.local_epoch, done
            done += 1

        return Part(
            model,
            optimizer.zero_grad,
            update,
            done=lambda: done,
            kept=lambda: kept,
            members=lambda: 0,
        )
