"""Compiling per-packet code: the decorators, and arrays over memory named by its address."""

from __future__ import annotations

from shoal.compiled.announcing import announce, be_silent, sentence_of
from shoal.compiled.bits import lowest_bit, number_of_bits
from shoal.compiled.cache import compiling_once, is_cold, kept_in, mark_warm
from shoal.compiled.entry import Given, entry
from shoal.compiled.functions import compiled, inlined
from shoal.compiled.memory import (
    F4,
    F8,
    I4,
    I8,
    U1,
    U2,
    U4,
    U8,
    copy_bytes,
    fence,
    grid_at,
    loaded,
    prefetch,
    rows_at,
    store,
)
from shoal.compiled.zeros import Arena, Zeros, rows_of_zeros

__all__ = [
    "F4",
    "F8",
    "I4",
    "I8",
    "U1",
    "U2",
    "U4",
    "U8",
    "Arena",
    "Given",
    "Zeros",
    "announce",
    "be_silent",
    "compiled",
    "compiling_once",
    "copy_bytes",
    "entry",
    "fence",
    "grid_at",
    "inlined",
    "is_cold",
    "kept_in",
    "loaded",
    "lowest_bit",
    "mark_warm",
    "number_of_bits",
    "prefetch",
    "rows_at",
    "rows_of_zeros",
    "sentence_of",
    "store",
]
