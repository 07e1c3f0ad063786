"""Which functions are compiled into their callers is said by their decorators alone."""

from __future__ import annotations

from typing import Any

import numba

from shoal.compiled import compiled, inlined


@compiled
def halved(number: int) -> int:
    return number // 2


@inlined
def quartered(number: int) -> int:
    return halved(halved(number))


def is_inlined(function: Any) -> bool:
    """Return whether the optimiser must put the function's code into each caller's."""
    (compiled_once,) = function.part_dispatcher.overloads.values()
    return "alwaysinline" in compiled_once.library.get_llvm_str()


def test_a_function_does_not_take_over_that_its_caller_is_inlined() -> None:
    quartered.part_dispatcher.compile((numba.int64,))  # and what it calls
    assert is_inlined(quartered)
    assert not is_inlined(halved)
