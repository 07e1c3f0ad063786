"""The list of contenders: libraries in the ways their users would use them, and Shoal's modes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, unique
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shoal.bench.peers.alone import Alone
from shoal.bench.peers.ddp import DDP
from shoal.bench.peers.decent_dp import DecentDP
from shoal.bench.peers.hivemind_optimizer import HivemindOptimizer
from shoal.bench.peers.ours import Shoal
from shoal.bench.peers.post_local_sgd import PostLocalSGD
from shoal.bench.peers.torchft import TorchFT, TorchFTDiLoCo
from shoal.extras import install

if TYPE_CHECKING:
    from shoal.bench.peers.pooled import PooledLibrary


@unique
class Side(StrEnum):
    """Whose a contender is."""

    PEER = "peer"
    OURS = "ours"
    CONTROL = "control"
    """Nobody's: it shows what the job itself takes."""


_AVAILABLE: Final = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
_USUAL: Final = "cubic"


@dataclass(frozen=True, slots=True)
class Contender:
    """A library, in one way of using it, over TCP of one kind where it uses TCP."""

    name: str
    library: PooledLibrary
    congestion_control: str = _USUAL
    in_quick: bool = True
    """Whether `--quick` measures it unless asked otherwise."""

    @property
    def side(self) -> Side:
        """Whose it is."""
        if isinstance(self.library, Alone):
            return Side.CONTROL
        return Side.OURS if self.library.is_ours else Side.PEER

    def obstacle(self) -> str:
        """Return a sentence on why it cannot be measured here, empty if it can."""
        if not self.library.is_installed():
            return f"{self.library.package} is not installed: {install('bench')}."
        if self.congestion_control not in _AVAILABLE.read_text().split():
            return f"this kernel has no TCP {self.congestion_control}."
        return ""


LOSS_BOUND: Final = 0.1
"""Share of a sum that may get lost; with error feedback, the default."""
RARELY: Final = 8
"""Steps between two averagings, of those that average rarely."""
OVERLAPPED: Final = 4
"""Steps between two averagings, of those that compute on meanwhile."""

CONTENDERS: Final = (
    Contender("alone", Alone(), in_quick=False),
    Contender("ddp-cubic", DDP()),
    Contender("ddp-bbr", DDP(), "bbr"),
    Contender("ddp-fp16", DDP("fp16")),
    Contender("ddp-powersgd", DDP("PowerSGD")),
    Contender("ddp-powersgd-bbr", DDP("PowerSGD"), "bbr", in_quick=False),
    Contender("post-local-sgd", PostLocalSGD()),
    Contender("torchft-ddp", TorchFT()),
    Contender("torchft-diloco", TorchFTDiLoCo()),
    Contender("hivemind", HivemindOptimizer()),
    Contender("decent-dp", DecentDP("complete"), in_quick=False),
    Contender("decent-dp-one-peer", DecentDP("one-peer-exp")),
    Contender("shoal-ddp-powersgd", DDP("PowerSGD", "shoal"), in_quick=False),
    Contender("shoal-all-reduce", Shoal("all-reduce", transport="shoal")),
    Contender(
        "shoal-all-reduce-p10",
        Shoal("all-reduce", transport="shoal", loss_bound=LOSS_BOUND),
        in_quick=False,
    ),
    Contender(
        "shoal-all-reduce-p10-fp16",
        Shoal("all-reduce", transport="shoal", loss_bound=LOSS_BOUND, wire="float16"),
    ),
    Contender("shoal-ds-sync-gloo", Shoal("ds-sync"), in_quick=False),
    Contender("shoal-ds-sync", Shoal("ds-sync", transport="shoal", loss_bound=LOSS_BOUND)),
    Contender("shoal-ripples-gloo", Shoal("ripples"), in_quick=False),
    Contender("shoal-ripples", Shoal("ripples", transport="shoal", loss_bound=LOSS_BOUND)),
    Contender(
        "shoal-ripples-rare",
        Shoal("ripples", transport="shoal", loss_bound=LOSS_BOUND, interval=RARELY),
    ),
    Contender("shoal-local-sgd", Shoal("local-sgd", transport="shoal", interval=RARELY)),
    Contender(
        "shoal-ripples-overlap",
        Shoal(
            "ripples",
            transport="shoal",
            loss_bound=LOSS_BOUND,
            interval=OVERLAPPED,
            overlap="next-steps",
        ),
        in_quick=False,
    ),
    Contender(
        "shoal-ripples-overlap-fp16",
        Shoal(
            "ripples",
            transport="shoal",
            loss_bound=LOSS_BOUND,
            wire="float16",
            interval=OVERLAPPED // 2,
            overlap="next-steps",
        ),
        in_quick=False,
    ),
    Contender(
        "shoal-local-sgd-overlap",
        Shoal("local-sgd", transport="shoal", interval=OVERLAPPED, overlap="next-steps"),
        in_quick=False,
    ),
    Contender(
        "shoal-local-sgd-overlap-fp16",
        Shoal(
            "local-sgd",
            transport="shoal",
            wire="float16",
            interval=OVERLAPPED // 2,
            overlap="next-steps",
        ),
        in_quick=False,
    ),
)
"""Everyone: the control, the peers, Shoal's modes."""
