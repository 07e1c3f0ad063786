"""The list of contenders: libraries in the ways their users would use them, and Shoal's modes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, unique
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shoal.extras import install
from shoal_bench.peers.alone import Alone
from shoal_bench.peers.ddp import DDP, LOW_RANK
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
    family: str
    """The name of all settings of one library, or of one algorithm of it."""

    congestion_control: str = _USUAL
    is_first: bool = False
    """Whether it is the setting of its family that is tried first, and by `--quick`."""

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
SMALL_BUCKET: Final = 64 << 10
"""Bytes of a bucket of which the small model makes several, so that sums hide behind backward."""
INTERVALS: Final = (1, 2, 4, 8, 16)
"""Steps between two averagings that libraries are tried with that leave them to their user."""


def _over_tcp(
    name: str, library: PooledLibrary, family: str, *, is_first: bool = False
) -> tuple[Contender, Contender]:
    """Return a library over both kinds of TCP: the usual one, and the one that bears losses."""
    return (
        Contender(name, library, family, is_first=is_first),
        Contender(f"{name}-bbr", library, family, "bbr"),
    )


def _at_intervals(
    name: str, library: Callable[[int], PooledLibrary], family: str, but: int
) -> Iterator[Contender]:
    """Yield a library over both kinds of TCP, averaging after every number of steps `but` one."""
    for steps in INTERVALS:
        if steps != but:
            yield from _over_tcp(f"{name}-{steps}", library(steps), family)


PEERS: Final[tuple[Contender, ...]] = (
    Contender("ddp-cubic", DDP(), "DDP", is_first=True),
    Contender("ddp-bbr", DDP(), "DDP", "bbr"),
    *_over_tcp("ddp-fp16", DDP("fp16"), "DDP"),
    *_over_tcp("ddp-buckets", DDP(bucket_mb=SMALL_BUCKET / 2**20), "DDP"),
    *_over_tcp("ddp-fp16-buckets", DDP("fp16", bucket_mb=SMALL_BUCKET / 2**20), "DDP"),
    *_over_tcp("torchft-ddp", TorchFT(), "DDP"),
    *_over_tcp("ddp-powersgd", DDP("PowerSGD"), "PowerSGD", is_first=True),
    *_over_tcp("ddp-powersgd-fp16", DDP("PowerSGD-fp16"), "PowerSGD"),
    *_over_tcp("ddp-powersgd-8", DDP("PowerSGD", rank=2 * LOW_RANK), "PowerSGD"),
    *_over_tcp("ddp-powersgd-8-fp16", DDP("PowerSGD-fp16", rank=2 * LOW_RANK), "PowerSGD"),
    *_over_tcp("post-local-sgd", PostLocalSGD(), "post-local SGD", is_first=True),
    *_at_intervals("post-local-sgd", PostLocalSGD, "post-local SGD", CYCLE),
    *_over_tcp("post-local-sgd-racks", PostLocalSGD(2, is_hierarchical=True), "post-local SGD"),
    *_over_tcp(
        "post-local-sgd-racks-4", PostLocalSGD(CYCLE, is_hierarchical=True), "post-local SGD"
    ),
    *_over_tcp("torchft-diloco", TorchFTDiLoCo(), "DiLoCo", is_first=True),
    *_at_intervals("torchft-diloco", TorchFTDiLoCo, "DiLoCo", SYNC_EVERY),
    *_at_intervals(
        "torchft-streaming-diloco",
        partial(TorchFTDiLoCo, is_streaming=True),
        "DiLoCo",
        1,  # its two halves take turns
    ),
    *_over_tcp("hivemind", HivemindOptimizer(), "Hivemind", is_first=True),
    *_over_tcp("hivemind-fp16", HivemindOptimizer(is_half=True), "Hivemind"),
    *_over_tcp("hivemind-16-fp16", HivemindOptimizer(INTERVALS[-1], is_half=True), "Hivemind"),
    *_over_tcp("decent-dp", DecentDP("complete"), "Decent-DP"),
    *_over_tcp("decent-dp-one-peer", DecentDP("one-peer-exp"), "Decent-DP", is_first=True),
)
"""The other libraries, each with every setting that ours has and it knows."""


def _ours(
    name: str, strategy: str, family: str = "", *, is_first: bool = False, **options: Any
) -> Contender:
    """Return a mode of Shoal over its own transport, unless `options` name another."""
    library = Shoal(strategy, **{"transport": "shoal"} | options)
    return Contender(f"shoal-{name}", library, f"shoal {family or strategy}", is_first=is_first)


def _overlapped(
    strategy: str, kind: str = "", *, is_first: bool = False, **options: Any
) -> Contender:
    """Return a mode that computes on while it averages, twice as often where that takes half."""
    name, interval = f"{strategy}{kind}-overlap", OVERLAPPED
    if "wire" in options:
        name, interval = f"{name}-fp16", OVERLAPPED // 2
    options |= {"interval": interval, "overlap": "next-steps"}
    return _ours(name, strategy, is_first=is_first, **options)


_FORWARD: Final[dict[str, Any]] = {
    "strategy": "all-reduce",
    "loss_bound": LOSS_BOUND,
    "overlap": "next-forward",
    "bucket_bytes": SMALL_BUCKET,
}
"""All-reduce that hides behind the rest of backward and the next forward pass."""

_LOW_RANK: Final[dict[str, Any]] = {
    "strategy": "all-reduce",
    "family": "low rank",
    "low_rank": 2 * LOW_RANK,
}
"""All-reduce of columns and rows of gradients."""

_BESIDE: Final[dict[str, Any]] = {"overlap": "next-steps", "wire": "float16"}
"""Averages that computing does not wait for."""

OURS: Final[tuple[Contender, ...]] = (
    Contender("shoal-ddp-powersgd", DDP("PowerSGD", "shoal"), "shoal PowerSGD", is_first=True),
    Contender("shoal-ddp-powersgd-fp16", DDP("PowerSGD-fp16", "shoal"), "shoal PowerSGD"),
    Contender("shoal-torchft-ddp", TorchFT(over_shoal=True), "shoal all-reduce"),
    _ours("all-reduce", "all-reduce"),
    _ours("all-reduce-p10", "all-reduce", loss_bound=LOSS_BOUND),
    _ours("all-reduce-p10-fp16", "all-reduce", loss_bound=LOSS_BOUND, wire="float16"),
    _ours("all-reduce-forward", **_FORWARD),
    _ours("all-reduce-forward-fp16", is_first=True, **_FORWARD, wire="float16"),
    _ours("low-rank", **_LOW_RANK),
    _ours("low-rank-forward", is_first=True, **_LOW_RANK, overlap="next-forward"),
    _ours("low-rank-forward-fp16", **_LOW_RANK, overlap="next-forward", wire="float16"),
    _ours("ds-sync-gloo", "ds-sync", transport="gloo"),
    _ours("ds-sync", "ds-sync", loss_bound=LOSS_BOUND),
    _ours("ds-sync-layers", "ds-sync", is_first=True, loss_bound=LOSS_BOUND, overlap="layers"),
    _overlapped("ds-sync", "-racks", shuffle="topology", loss_bound=LOSS_BOUND),
    _overlapped("ds-sync", "-racks", shuffle="topology", loss_bound=LOSS_BOUND, wire="float16"),
    _ours("ripples-gloo", "ripples", transport="gloo"),
    _ours("ripples", "ripples", loss_bound=LOSS_BOUND),
    _ours("ripples-rare", "ripples", loss_bound=LOSS_BOUND, interval=RARELY),
    _overlapped("ripples", loss_bound=LOSS_BOUND),
    _overlapped("ripples", is_first=True, loss_bound=LOSS_BOUND, wire="float16"),
    _ours("local-sgd", "local-sgd", interval=RARELY),
    _ours("local-sgd-layers", "local-sgd", interval=2, overlap="layers"),
    _overlapped("local-sgd", is_first=True),
    _overlapped("local-sgd", wire="float16"),
    _ours("local-sgd-16-overlap-fp16", "local-sgd", **_BESIDE, interval=2 * RARELY),
    _ours("diloco", "diloco", interval=RARELY),
    _ours("diloco-overlap-fp16", "diloco", is_first=True, **_BESIDE, interval=RARELY),
    _ours("diloco-16-overlap-fp16", "diloco", **_BESIDE, interval=2 * RARELY),
)
"""Modes of Shoal."""

NAMED: Final = "shoal-ripples-overlap-fp16"
"""The one setting of Shoal that was named before scenarios were measured anew. It was the best of
the earlier runs, in which computing slept in one piece, in most scenarios that it had run in."""

CONTENDERS: Final[tuple[Contender, ...]] = (
    Contender("alone", Alone(), "control", is_first=True),
    *PEERS,
    *OURS,
)
"""Everyone: the control, the peers, Shoal's modes."""
