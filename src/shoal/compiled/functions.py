"""The decorators of compiled functions. What they return is light: numba comes when it compiles.

So a process that only runs entries whose machine code is kept imports no compiler.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Function(Generic[Parameters, Result]):
    """A function that numba compiles when it is called, by Python or by another one."""

    def __init__(self, function: Callable[Parameters, Result], *, inline: bool = False) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self._inline = inline

    def __call__(self, *arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        """Compile the function for such arguments unless that has been done, and run it."""
        result: Result = self._dispatcher(*arguments, **named)
        return result

    @property
    def _numba_type_(self) -> Any:
        """What numba takes this for where compiled code names it."""
        return self.part_dispatcher._numba_type_

    @functools.cached_property
    def _dispatcher(self) -> Any:
        from shoal.compiled.compiler import make_dispatcher

        return make_dispatcher(self.function)

    @functools.cached_property
    def part_dispatcher(self) -> Any:
        """What compiles the function for the types that compiled code calls it with."""
        from shoal.compiled.compiler import make_part_dispatcher

        return make_part_dispatcher(self.function, inline=self._inline)


def compiled(function: Callable[Parameters, Result]) -> Function[Parameters, Result]:
    """Compile `function` at its first call; it runs without the GIL and without bounds checks.

    Parameters annotated `int` are 64 bits wide whatever is passed to them, so that a function is
    compiled once and not for every width, and for every constant, that it is called with.
    """
    return Function(function)


def inlined(function: Callable[Parameters, Result]) -> Function[Parameters, Result]:
    """Compile `function` into each compiled function that calls it.

    A tuple of arrays is passed as some ten words for each of them: for a function that is called
    for every packet, that takes longer than what it does.
    """
    return Function(function, inline=True)
