"""A checksum of memory, as fast as memory is read: it tells damaged bytes from whole ones.

Every word of four bytes is multiplied by an odd number of its own, so that no change of one word
and no change of places is without effect. It keeps no forger out.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from shoal.carriers.host_copy import HOST
from shoal.compiled import U4, compiling_once, entry, rows_at

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK_BYTES: Final = 1 << 20
"""The bytes that one checksum covers, which are in the processor's cache while it is made."""
_WORD_BYTES: Final = 4


def digest_of(memory: Tensor) -> bytes:
    """Return a digest, of 16 bytes, of contiguous bytes in host memory: uint8, one dimension.

    It is a hash of the checksums of its blocks.
    """
    found = blake2b(digest_size=16)
    for block in memory.split(_BLOCK_BYTES):
        aligned = block.clone() if block.data_ptr() % _WORD_BYTES else block
        words, rest = divmod(len(aligned), _WORD_BYTES)
        found.update(checksum(aligned.data_ptr(), words).to_bytes(8, "little", signed=True))
        if rest:
            found.update(bytes(aligned[-rest:].tolist()))
    return found.digest()


def load_checksums() -> None:
    """Compile what `digest_of` runs, or load it, so that nobody waits for that later."""
    with compiling_once("checksum"):
        digest_of(torch.zeros(_WORD_BYTES, dtype=torch.uint8, device=HOST))


@entry
def checksum(address: int, count: int) -> int:
    """Return the checksum of `count` words of four bytes from `address` on."""
    words = rows_at(address, count, U4)
    total = np.uint64(0)
    for index in range(count):
        total += np.uint64(words[index]) * np.uint64(np.uint32(2 * index + 1))
    return int(np.int64(total))
