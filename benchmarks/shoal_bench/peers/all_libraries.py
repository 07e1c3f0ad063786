"""The list of libraries that Shoal is measured against."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.extras import install
from shoal_bench.peers.ddp import DDP
from shoal_bench.peers.decent_dp import DecentDP
from shoal_bench.peers.hivemind import Hivemind
from shoal_bench.peers.post_local_sgd import PostLocalSGD
from shoal_bench.peers.torchft import TorchFT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal_bench.peers.library import AbstractLibrary
    from shoal_bench.stand import Stand

LIBRARIES: tuple[AbstractLibrary, ...] = (
    DDP(),
    PostLocalSGD(),
    TorchFT(),
    DecentDP("complete"),
    DecentDP("one-peer-exp"),
    Hivemind(),
)
"""Every library in every way of using it."""


def installed(stand: Stand) -> Iterator[AbstractLibrary]:
    """Yield the libraries that are installed; skip the others with one line each."""
    for library in LIBRARIES:
        if library.is_installed():
            yield library
        else:
            stand.skip(f"{library.title} is not installed: {install('peers', 'shoal-bench')}.")
