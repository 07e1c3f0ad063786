"""The list of libraries that Shoal is measured against."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.bench.peers.ddp import DDP
from shoal.bench.peers.decent_dp import DecentDP
from shoal.bench.peers.hivemind import Hivemind
from shoal.bench.peers.post_local_sgd import PostLocalSGD
from shoal.bench.peers.torchft import TorchFT
from shoal.extras import install

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.bench.peers.library import AbstractLibrary
    from shoal.bench.stand import Stand

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
            stand.skip(f"{library.title} is not installed: {install('bench')}.")
