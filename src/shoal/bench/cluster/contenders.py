"""The list of contenders: libraries in the ways their users would use them, and Shoal's modes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shoal.bench.peers.ddp import DDP
from shoal.bench.peers.ours import Shoal

if TYPE_CHECKING:
    from shoal.bench.peers.pooled import PooledLibrary

_AVAILABLE: Final = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
_USUAL: Final = "cubic"


@dataclass(frozen=True, slots=True)
class Contender:
    """A library, in one way of using it, over TCP of one kind where it uses TCP."""

    name: str
    library: PooledLibrary
    congestion_control: str = _USUAL

    @property
    def is_ours(self) -> bool:
        """Whether it is one of Shoal's modes."""
        return isinstance(self.library, Shoal)

    def obstacle(self) -> str:
        """Return a sentence on why it cannot be measured here, empty if it can."""
        if not self.library.is_installed():
            return f"{self.library.package} is not installed; pip install 'shoal[bench]' has it."
        if self.congestion_control not in _AVAILABLE.read_text().split():
            return f"this kernel has no TCP {self.congestion_control}."
        return ""


CONTENDERS: Final = (
    Contender("ddp", DDP()),
    Contender("shoal-all-reduce", Shoal("all-reduce", transport="shoal")),
)
"""Everyone, peers first."""
