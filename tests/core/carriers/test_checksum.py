"""A digest of memory: what it is made of, and that it tells any other bytes from these."""

from __future__ import annotations

from hashlib import blake2b
from random import Random

import pytest
import torch

from shoal.carriers import checksum as checksums
from shoal.carriers import digest_of
from thoroughness import examples

BLOCK = 64


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksums, "_BLOCK_BYTES", BLOCK)


def slow_digest(memory: bytes) -> bytes:
    """Return the digest as its definition says, word by word."""
    found = blake2b(digest_size=16)
    for start in range(0, len(memory), BLOCK):
        block = memory[start : start + BLOCK]
        whole = len(block) // 4
        words = [int.from_bytes(block[4 * n : 4 * n + 4], "little") for n in range(whole)]
        total = sum(word * (2 * n + 1) for n, word in enumerate(words)) % (1 << 64)
        found.update(total.to_bytes(8, "little") + block[4 * whole :])
    return found.digest()


def random_bytes(random: Random, count: int) -> torch.Tensor:
    return torch.tensor(list(random.randbytes(count)), dtype=torch.uint8)


@pytest.mark.parametrize("seed", range(examples(100)))
def test_it_is_what_its_definition_says(seed: int) -> None:
    random = Random(seed)
    memory = random_bytes(random, random.randrange(1, 4 * BLOCK))
    assert digest_of(memory) == slow_digest(bytes(memory.tolist()))
    if len(memory) > 1:  # wherever it lies
        assert digest_of(memory[1:]) == slow_digest(bytes(memory[1:].tolist()))


@pytest.mark.parametrize("seed", range(examples(100)))
def test_a_bit_that_flips_and_bytes_that_change_places_change_it(seed: int) -> None:
    random = Random(seed)
    memory = random_bytes(random, random.randrange(8, 4 * BLOCK))
    before, changed = digest_of(memory), memory.clone()
    changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    assert digest_of(changed) != before
    unit = random.choice((1, 4, BLOCK))
    count = len(memory) // unit
    if count > 1:
        one, other = random.sample(range(count), 2)
        first, second = memory[one * unit :][:unit], memory[other * unit :][:unit]
        moved = memory.clone()
        moved[one * unit :][:unit], moved[other * unit :][:unit] = second, first
        assert (digest_of(moved) == before) == torch.equal(first, second)
