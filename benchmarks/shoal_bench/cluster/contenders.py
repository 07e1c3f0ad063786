"""The list of contenders: libraries in the ways their users would use them, and Shoal's modes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, unique
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shoal.extras import install
from shoal_bench.peers.alone import Alone
from shoal_bench.peers.ddp import DDP
from shoal_bench.peers.decent_dp import DecentDP
from shoal_bench.peers.hivemind_optimizer import HivemindOptimizer
from shoal_bench.peers.library import CYCLE
from shoal_bench.peers.ours import Shoal
from shoal_bench.peers.post_local_sgd import PostLocalSGD
from shoal_bench.peers.torchft import SYNC_EVERY, TorchFT, TorchFTDiLoCo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shoal_bench.peers.pooled import PooledLibrary


@unique
class Side(StrEnum):
    """The kinds of contenders."""

    PEER = "peer"
    OURS = "ours"
    CONTROL = "control"
    """A contender that shows what the job itself takes."""


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
        """The contender's kind."""
        if isinstance(self.library, Alone):
            return Side.CONTROL
        return Side.OURS if self.library.is_ours else Side.PEER

    def obstacle(self) -> str:
        """Return a sentence on why it cannot be measured here, empty if it can."""
        if not self.library.is_installed():
            return f"{self.library.package} is not installed: {install('peers', 'shoal-bench')}."
        if self.congestion_control not in _AVAILABLE.read_text().split():
            return f"this kernel has no TCP {self.congestion_control}."
        return ""


LOSS_BOUND: Final = 0.1
"""Share of a sum that may get lost; with error feedback, the default."""
RARELY: Final = 8
"""Steps between two averagings, of our modes that average rarely."""
OVERLAPPED: Final = 4
"""Steps between two averagings, of our modes that compute on meanwhile."""
INTERVALS: Final = (1, 2, 4, 8, 16)
"""Steps between two averagings that libraries are tried with that leave them to their user."""


def _over_tcp(
    name: str, library: PooledLibrary, *, in_quick: bool = False
) -> tuple[Contender, Contender]:
    """Return a library over both kinds of TCP: the usual one, and the one that bears losses."""
    return (
        Contender(name, library, in_quick=in_quick),
        Contender(f"{name}-bbr", library, "bbr", in_quick=False),
    )


def _at_intervals(
    name: str, library: Callable[[int], PooledLibrary], but: int
) -> Iterator[Contender]:
    """Yield a library over both kinds of TCP, averaging after every number of steps `but` one."""
    for steps in INTERVALS:
        if steps != but:
            yield from _over_tcp(f"{name}-{steps}", library(steps))


PEERS: Final[tuple[Contender, ...]] = (
    Contender("ddp-cubic", DDP()),
    Contender("ddp-bbr", DDP(), "bbr"),
    *_over_tcp("ddp-fp16", DDP("fp16"), in_quick=True),
    *_over_tcp("ddp-powersgd", DDP("PowerSGD"), in_quick=True),
    *_over_tcp("ddp-powersgd-fp16", DDP("PowerSGD-fp16")),
    *_over_tcp("post-local-sgd", PostLocalSGD(), in_quick=True),
    *_at_intervals("post-local-sgd", PostLocalSGD, CYCLE),
    *_over_tcp("torchft-ddp", TorchFT(), in_quick=True),
    *_over_tcp("torchft-diloco", TorchFTDiLoCo(), in_quick=True),
    *_at_intervals("torchft-diloco", TorchFTDiLoCo, SYNC_EVERY),
    *_at_intervals(
        "torchft-streaming-diloco",
        partial(TorchFTDiLoCo, is_streaming=True),
        1,  # its two halves take turns
    ),
    *_over_tcp("hivemind", HivemindOptimizer(), in_quick=True),
    *_over_tcp("hivemind-fp16", HivemindOptimizer(is_half=True)),
    *_over_tcp("hivemind-16-fp16", HivemindOptimizer(INTERVALS[-1], is_half=True)),
    *_over_tcp("decent-dp", DecentDP("complete")),
    *_over_tcp("decent-dp-one-peer", DecentDP("one-peer-exp"), in_quick=True),
)
"""The other libraries, each with every setting that ours has and it knows."""


def _ours(name: str, strategy: str, *, in_quick: bool = True, **options: Any) -> Contender:
    """Return a mode of Shoal over its own transport."""
    library = Shoal(strategy, transport="shoal", **options)
    return Contender(f"shoal-{name}", library, in_quick=in_quick)


def _overlapped(strategy: str, **options: Any) -> Contender:
    """Return a mode that computes on while it averages, twice as often where that takes half."""
    name, interval = f"{strategy}-overlap", OVERLAPPED
    if "wire" in options:
        name, interval = f"{name}-fp16", OVERLAPPED // 2
    options |= {"interval": interval, "overlap": "next-steps"}
    return _ours(name, strategy, in_quick=False, **options)


CONTENDERS: Final[tuple[Contender, ...]] = (
    Contender("alone", Alone(), in_quick=False),
    *PEERS,
    Contender("shoal-ddp-powersgd", DDP("PowerSGD", "shoal"), in_quick=False),
    Contender("shoal-torchft-ddp", TorchFT(over_shoal=True), in_quick=False),
    _ours("all-reduce", "all-reduce"),
    _ours("all-reduce-p10", "all-reduce", loss_bound=LOSS_BOUND, in_quick=False),
    _ours("all-reduce-p10-fp16", "all-reduce", loss_bound=LOSS_BOUND, wire="float16"),
    Contender("shoal-ds-sync-gloo", Shoal("ds-sync"), in_quick=False),
    _ours("ds-sync", "ds-sync", loss_bound=LOSS_BOUND),
    Contender("shoal-ripples-gloo", Shoal("ripples"), in_quick=False),
    _ours("ripples", "ripples", loss_bound=LOSS_BOUND),
    _ours("ripples-rare", "ripples", loss_bound=LOSS_BOUND, interval=RARELY),
    _ours("local-sgd", "local-sgd", interval=RARELY),
    _overlapped("ripples", loss_bound=LOSS_BOUND),
    _overlapped("ripples", loss_bound=LOSS_BOUND, wire="float16"),
    _overlapped("local-sgd"),
    _overlapped("local-sgd", wire="float16"),
    _ours("ds-sync-layers", "ds-sync", in_quick=False, loss_bound=LOSS_BOUND, overlap="layers"),
    _ours("local-sgd-layers", "local-sgd", in_quick=False, interval=2, overlap="layers"),
)
"""Everyone: the control, the peers, Shoal's modes."""
