"""Machine code of entries: kept in files, and linked into this process without the compiler.

A file belongs to one version of the sources and one kind of processor, which its path names. One
that is missing, damaged, or calls what this process does not have is made anew.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import llvmlite.binding as _llvm

from shoal.compiled.cache import folder_for
from shoal.compiled.kept_files import read_kept, target_hash, write_kept

llvm: Any = _llvm

_NUMBERS: Final = itertools.count()
_LINKED: Final[list[Any]] = []
"""What owns the code that has been linked: it stays until the process ends."""


class MachineCode(NamedTuple):
    """A function's name in an object file, and the file's bytes."""

    symbol: str
    image: bytes


def linked(function: Callable[..., object], variant: str, make: Callable[[], MachineCode]) -> int:
    """Return the address of the code of `function`, which `make` compiles if it is not kept.

    `variant` says which of those of the function it is.
    """
    file = _file(function, variant)
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        return _link(_read(file))
    code = make()
    with contextlib.suppress(OSError):  # no place to write: compile in every process
        write_kept(file, code.symbol.encode() + b"\0" + code.image)
    return _link(code)


def _file(function: Callable[..., object], variant: str) -> Path:
    """Return where the code is kept. The function's own file may lie outside the rooms."""
    source = Path(function.__code__.co_filename).read_bytes()
    digest = hashlib.sha256(variant.encode() + source).hexdigest()[:16]
    name = f"{function.__module__}.{function.__qualname__}-{digest}"
    return Path(folder_for(function.__module__), f"entries-{target_hash()}", name)


def _read(file: Path) -> MachineCode:
    """Return the code in a file. Raises `ValueError` if it is not as it was written."""
    symbol, _, image = read_kept(file).partition(b"\0")
    return MachineCode(symbol.decode(), image)


@functools.cache
def _linker() -> Any:
    llvm.initialize_native_target()
    # JITLink lays a file's sections side by side: on ARM they cannot reach each other from afar
    return llvm.create_lljit_compiler(use_jit_link=True, suppress_errors=True)


def _link(code: MachineCode) -> int:
    """Return the address of the code. Raises `RuntimeError` if what it calls is not here."""
    builder = llvm.JITLibraryBuilder().add_object_img(code.image).add_current_process()
    builder.export_symbol(code.symbol)
    library = builder.link(_linker(), f"entry-{next(_NUMBERS)}")
    _LINKED.append(library)
    return int(library[code.symbol])
