"""Where the parts of compiled code are kept: what one process has written, others link.

A part's file holds its code before the optimiser has seen what it calls, what numba knows of it,
and the names of the parts that it calls. Only the package's own functions have one: the folder is
named by a hash of their sources. Imported only when something has to be compiled. Uses internals of
numba, which pyproject.toml bounds to the versions that this was tried with.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import operator
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from numba.core import compiler as _compiler
from numba.core import serialize as _serialize

from shoal.compiled.cache import folder_for
from shoal.compiled.kept_files import read_kept, target_hash, write_kept
from shoal.compiled.parts import Part, is_named

compiler: Any = _compiler
serialize: Any = _serialize


class _Name(NamedTuple):
    """The names of a function, and the types that a part of it is for."""

    module: str
    function: str
    types: tuple[Any, ...]


class _Kept(NamedTuple):
    """What a file holds."""

    code: bytes
    called: tuple[_Name, ...]
    description: Any
    signature: Any


class KeptParts:
    """What numba asks for the code of `function`'s parts, and gives it to keep."""

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function

    def load_overload(self, types: Any, target_context: Any) -> Any:
        """Return what numba knows of the part for these types, or None if it is not kept."""
        if not is_named(self._function):
            return None
        with contextlib.suppress(OSError, ValueError):
            # `folder_for` has seen that nobody else can write there
            kept = _Kept(*pickle.loads(read_kept(_file(self._function, types))))
            part = Part(target_context.codegen(), self._function.__qualname__)
            part.origin = self._function, types
            part.take_kept(kept.code, map(_part, kept.called))
            return compiler.compile_result(
                target_context=target_context,
                entry_point=object(),
                library=part,
                signature=kept.signature,
                objectmode=False,
                lifted=(),
                fndesc=kept.description,
                reload_init=(),
            )
        return None

    def save_overload(self, types: Any, result: Any) -> None:
        """Keep a part, unless it or one that it calls is not a function of the package."""
        part, description = result.library, result.fndesc
        origins = [each.origin for each in part.called]
        if not all(map(is_named, [self._function, *(function for function, _ in origins)])):
            return
        called = tuple(_Name(each.__module__, each.__qualname__, of) for each, of in origins)
        known = description.typemap, description.calltypes
        description.typemap = description.calltypes = None  # nobody who calls it asks for them
        try:
            kept = _Kept(part.code_to_keep(), called, description, result.signature)
            body = serialize.dumps(tuple(kept))
        finally:
            description.typemap, description.calltypes = known
        with contextlib.suppress(OSError):  # no place to write: compile in every process
            write_kept(_file(self._function, types), body)


def _file(function: Callable[..., object], types: Any) -> Path:
    digest = hashlib.sha256(repr(types).encode()).hexdigest()[:16]
    name = f"{function.__module__}.{function.__qualname__}-{digest}"
    return Path(folder_for(function.__module__), f"parts-{target_hash()}", name)


def _part(name: _Name) -> Part:
    """Return the part of that name, compiled if it is not kept."""
    function = operator.attrgetter(name.function)(importlib.import_module(name.module))
    dispatcher = function.part_dispatcher
    dispatcher.compile(name.types)
    part: Part = dispatcher.overloads[name.types].library
    return part
