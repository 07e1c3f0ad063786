"""The list of who is measured, with their settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.extras import install
from shoal_bench.elastic.hivemind import Hivemind
from shoal_bench.elastic.ours import ELASTIC, Shoal
from shoal_bench.elastic.torchft import AS_IN_ITS_EXAMPLE, TUNED, TorchFT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal_bench.elastic.contender import AbstractContender
    from shoal_bench.stand import Stand

CONTENDERS: Final[tuple[AbstractContender, ...]] = (
    *map(Shoal, ELASTIC),
    TorchFT(TUNED),
    TorchFT(AS_IN_ITS_EXAMPLE),
    Hivemind(),
)

OF_TORCHFT: Final[tuple[AbstractContender, ...]] = tuple(
    TorchFT(settings, over_shoal=over_shoal)
    for settings in (TUNED, AS_IN_ITS_EXAMPLE)
    for over_shoal in (False, True)
)
"""What `torchft` measures: torchft over gloo, and over Shoal's transport."""


def installed(
    stand: Stand, contenders: Sequence[AbstractContender] = CONTENDERS
) -> list[AbstractContender]:
    """Return those that are installed; skip the others with one line for each library."""
    for package in sorted({each.package for each in contenders if not each.is_installed()}):
        stand.skip(f"{package} is not installed: {install('peers', 'shoal-bench')}.")
    return [each for each in contenders if each.is_installed()]
