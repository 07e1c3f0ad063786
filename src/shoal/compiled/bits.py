"""Counting bits of a word, in one instruction of the processor, inside compiled code."""

from __future__ import annotations

from typing import Any


def lowest_bit(word: Any) -> int:
    """Return the index of the lowest set bit of a 64-bit word that is not zero."""
    raise NotImplementedError


def number_of_bits(word: Any) -> int:
    """Return how many bits of a 64-bit word are set."""
    raise NotImplementedError
