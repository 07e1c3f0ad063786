"""Counting bits of a word, in one instruction of the processor."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_NOT_ZERO: Any = ir.Constant(ir.IntType(1), 1)


def _lowest_bit(_typing_context: Any, _word: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], _NOT_ZERO)

    return types.int64(types.uint64), generate


def _number_of_bits(_typing_context: Any, _word: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), generate


lowest_bit: Any = intrinsic(_lowest_bit)
"""`lowest_bit(word)`: the index of the lowest set bit of a 64-bit word that is not zero."""

number_of_bits: Any = intrinsic(_number_of_bits)
"""`number_of_bits(word)`: how many bits of a 64-bit word are set."""
