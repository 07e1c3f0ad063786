"""Compiled functions that Python calls at run time: their machine code is kept, and called as C.

The arrays among an entry's arguments, and those in its tuples of arrays, become words: an address
and the lengths. Those stay the same from call to call, so `given` takes them apart once.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Generic

import numpy as np

from shoal.compiled.functions import Function, Parameters, Result
from shoal.compiled.machine_code import MachineCode, linked

_NUMBERS: Final[dict[str, Any]] = {
    "int": ctypes.c_int64,
    "float": ctypes.c_double,
    "bool": ctypes.c_bool,
}
"""The type that C takes for each annotation. A parameter with another annotation is an array, or a
tuple of arrays."""
_RESULTS: Final = _NUMBERS | {"None": ctypes.c_void_p}


class Entry(Function[Parameters, Result]):
    """A compiled function whose code is found again by later processes, which need no compiler.

    Returns a number or nothing. Its arrays are contiguous.
    """

    def __init__(self, function: Callable[Parameters, Result]) -> None:
        super().__init__(function)
        names, annotations = inspect.signature(function).parameters, function.__annotations__
        self.parameters: list[str] = [annotations[name] for name in names]
        self.result: str = annotations["return"]
        numbers = [_NUMBERS[each] for each in self.parameters if each in _NUMBERS]
        pointers = [ctypes.c_void_p] * 3
        self._prototype = ctypes.CFUNCTYPE(ctypes.c_int32, *pointers, *numbers)
        self._codes: dict[str, Callable[..., int]] = {}
        self._lock = threading.Lock()

    def __call__(self, *arguments: Parameters.args, **_named: Parameters.kwargs) -> Result:
        """Run the function; its arguments are given by position."""
        pairs = list(zip(self.parameters, arguments, strict=True))
        tables = [value for kind, value in pairs if kind not in _NUMBERS]
        return self.given(*tables)(*[value for kind, value in pairs if kind in _NUMBERS])

    def given(self, *tables: Any) -> Given[Result]:
        """Return this function with its arrays given, to be called with its numbers."""
        words = list(_words(tables))
        return Given(
            self._code(tables), (ctypes.c_int64 * len(words))(*words), tables, _RESULTS[self.result]
        )

    def _code(self, tables: Sequence[Any]) -> Callable[..., int]:
        """Return the code for such arrays, compiled if need be."""
        variant = _variant(tables)
        with self._lock:
            if variant not in self._codes:
                address = linked(self.function, variant, lambda: self._compile(tables))
                self._codes[variant] = self._prototype(address)
            return self._codes[variant]

    def _compile(self, tables: Sequence[Any]) -> MachineCode:
        from shoal.compiled.compiler import compile_entry

        return compile_entry(self, tables)


class Given(Generic[Result]):
    """An entry with its arrays given. Several threads may call it at once."""

    __slots__ = ("_code", "_error", "_result", "_tables", "_words")

    def __init__(
        self,
        code: Callable[..., int],
        words: ctypes.Array[ctypes.c_int64],
        tables: Sequence[Any],
        result: Any,
    ) -> None:
        self._code, self._words, self._result = code, words, result
        self._tables = tables  # whose addresses the words are
        self._error = ctypes.c_void_p()

    def __call__(self, *numbers: Any) -> Result:
        """Run the function."""
        result = self._result()
        status = self._code(ctypes.byref(result), ctypes.byref(self._error), self._words, *numbers)
        if status != 0:
            raise SystemError("compiled code must not raise")
        value: Result = result.value
        return value


def entry(function: Callable[Parameters, Result]) -> Entry[Parameters, Result]:
    """Compile `function` as `compiled` does, and keep its code for the calls that Python makes."""
    return Entry(function)


def _words(tables: Sequence[Any]) -> Iterator[int]:
    """Yield where arrays are, and how long, as the code of an entry expects it."""
    for each in tables:
        if not isinstance(each, np.ndarray):
            yield from _words(each)
        elif each.flags.c_contiguous:
            yield from (each.ctypes.data, *each.shape)
        else:
            raise TypeError("an entry's arrays are contiguous")


def _variant(tables: Sequence[Any]) -> str:
    """Return what makes the code for some arrays another than that for others."""
    return " ".join(
        f"{_name(each.dtype)}[{each.ndim}]"
        if isinstance(each, np.ndarray)
        else f"{type(each).__name__}({_variant(each)})"
        for each in tables
    )


@functools.cache
def _name(dtype: np.dtype[Any]) -> str:
    return str(dtype)
