"""Where numba keeps what it compiles: by what a source holds, not by where it lies.

Numba names the place by the path of the source, so that each clone and each environment would
compile the same code again. Imported only when something has to be compiled. Uses internals of
numba, which pyproject.toml bounds to the versions that this was tried with.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from numba.core import caching as _caching

from shoal.compiled.cache import folder_for

caching: Any = _caching


class _Locator(caching._CacheLocator):  # type: ignore[misc]  # noqa: SLF001 - numba offers no other way, and has no types
    """The place of one function's code."""

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function

    def get_cache_path(self) -> str:
        """Return the folder: there is one for each module, in that of the present sources."""
        module = self._function.__module__
        return str(Path(folder_for(module), "functions", module))

    def get_source_stamp(self) -> bytes:
        """Return a hash of the source that the function is in."""
        return _hash_of(self._function.__code__.co_filename)

    def get_disambiguator(self) -> str:
        """Return what tells functions of one name apart: their lines."""
        return str(self._function.__code__.co_firstlineno)

    @classmethod
    def from_function(cls, function: Callable[..., object], _file: str) -> Self | None:
        """Return the locator, or None where nothing can be kept."""
        locator = cls(function)
        try:
            locator.ensure_cache_path()
        except OSError:
            return None
        return locator


class _Implementation(caching.CompileResultCacheImpl):  # type: ignore[misc]  # as above
    _locator_classes = (_Locator,)


class KeptFunctions(caching.FunctionCache):  # type: ignore[misc]  # as above
    """What numba asks for a function's code, and gives it to keep.

    Raises `RuntimeError` where nothing can be kept.
    """

    _impl_class = _Implementation


@functools.cache
def _hash_of(file: str) -> bytes:
    return hashlib.sha256(Path(file).read_bytes()).digest()
