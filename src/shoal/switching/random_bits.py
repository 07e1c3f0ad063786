"""Random bits from a seed and a counter, so that any engine can make the same run again."""

from __future__ import annotations

from numpy import int64, uint64

from shoal.compiled import compiled


@compiled
def mixed(word: uint64) -> uint64:
    """Return `word` with its bits mixed (the finalizer of SplitMix64)."""
    word = (word ^ (word >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> uint64(27))) * uint64(0x94D049BB133111EB)
    return word ^ (word >> uint64(31))


@compiled
def random_word(seed: int, stream: int, counter: int) -> uint64:
    """Return 64 random bits: number `counter` of `stream`."""
    base = mixed(uint64(seed) + uint64(0x9E3779B97F4A7C15) * (uint64(stream) + uint64(1)))
    return mixed(base + uint64(0x9E3779B97F4A7C15) * (uint64(counter) + uint64(1)))


@compiled
def random_share(seed: int, stream: int, counter: int) -> int:
    """Return a random number from 0 to 2 ** 32 - 1, to be compared with fixed-point shares."""
    return int(int64(random_word(seed, stream, counter) >> uint64(32)))
