"""What a compiled function is to those that call it: code to be linked into theirs, not run alone.

Numba optimises each function together with all that it calls, makes machine code of it, and wraps
it for Python, so that of a chain of calls the last is compiled as often as the chain is long. Here
a function that others call stays what numba wrote; whoever Python calls links all that it needs,
once, and only that is optimised and becomes machine code. Uses internals of numba, which
pyproject.toml bounds to the versions that this was tried with.

Numba promises the optimiser that sums and products of signed integers never overflow. An index that
comes of one that does can then be any number, and nothing here checks bounds. Whoever sends packets
chooses the factors: so integers wrap here, as NumPy's do.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import llvmlite.binding as _llvm
from numba.core import funcdesc as _funcdesc
from numba.core import typed_passes as _typed_passes
from numba.core.codegen import JITCodeLibrary as _JITCodeLibrary
from numba.core.compiler_machinery import register_pass as _register_pass
from numba.cpython import numbers as _numbers

from shoal.compiled.indices import WithoutSigns

llvm: Any = _llvm
Library: Any = _JITCodeLibrary
NativeLowering: Any = _typed_passes.NativeLowering
register_pass: Any = _register_pass
mangle: Any = _funcdesc.default_mangler

_ARITHMETIC: Final[dict[str, Any]] = _numbers.int_add_impl.__globals__
"""The names of the module of numba that writes sums and products; some versions have two."""
_FLAGS: Final = "_int_arith_flags"
"""Its function that says what the optimiser may take for granted of them."""

_PACKAGE: Final = f"{__name__.partition('.')[0]}."

_FEW: Final = 100
"""The most parts that are optimised twice. The heap kernel of `switching` needs a quarter less time
for a packet then; the transport and congestion controls, of more parts, are no faster for it."""


class Part(Library):  # type: ignore[misc]  # numba has no types
    """The code of a function alone, as numba wrote it."""

    _linking_libraries: list[Any]
    origin: tuple[Callable[..., object], tuple[Any, ...]]
    """The function, and the types of its arguments."""

    def finalize(self) -> None:
        """Say that nothing more is added. There is nothing else to do."""
        self._finalized = True

    @property
    def called(self) -> list[Part]:
        """The parts that this one calls."""
        return [each for each in self._linking_libraries if isinstance(each, Part)]

    def code_to_keep(self) -> bytes:
        """Return the code with that of numba's own functions which it calls, and of no part."""
        whole = self._final_module.clone()
        defined = {each.name for each in whole.functions if not each.is_declaration}
        for library in _closure(self._linking_libraries):
            if not isinstance(library, Part):
                whole.link_in(library._get_module_for_linking(), preserve=True)  # noqa: SLF001 - numba offers no other way
        for each in whole.functions:
            if not each.is_declaration and each.name not in defined:
                # numbered as this process came upon it: by that name another has something else
                each.linkage = "internal"
        code: bytes = whole.as_bitcode()
        return code

    def take_kept(self, code: bytes, called: Iterable[Part]) -> None:
        """Be what `code_to_keep` returned, with the parts that it calls."""
        self._final_module = llvm.parse_bitcode(code)
        self._linking_libraries += called
        self._finalized = True


class Whole(Library):  # type: ignore[misc]  # as above
    """The code of a function with that of all it calls, optimised together."""

    _linking_libraries: list[Any]

    def finalize(self) -> None:
        """Link the parts, once each, then optimise and make machine code."""
        self._linking_libraries = list(_closure(self._linking_libraries))
        super().finalize()

    def _verify_declare_only_symbols(self) -> None:
        """Raise `RuntimeError` if something calls what no part has: it would be at address 0."""
        for each in self._final_module.functions:
            if each.is_declaration and each.name.startswith("_Z"):
                raise RuntimeError(f"nothing that was linked has {each.name}")

    def _optimize_final_module(self) -> None:
        super()._optimize_final_module()
        if sum(isinstance(each, Part) for each in self._linking_libraries) <= _FEW:
            super()._optimize_final_module()


def is_named(function: Callable[..., object]) -> bool:
    """Return whether its module's and its own name lead to a function of the package."""
    found: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return function.__module__.startswith(_PACKAGE) and inspect.unwrap(found) is function


def _closure(libraries: list[Any]) -> Iterator[Any]:
    """Yield libraries and all that they need in turn, each once."""
    seen, left = set(), libraries[::-1]
    while left:
        library = left.pop()
        if library not in seen:
            seen.add(library)
            left += library._linking_libraries[::-1]  # noqa: SLF001 - as above
            yield library


@contextlib.contextmanager
def _integers_that_wrap() -> Iterator[None]:
    """Let the sums and products of signed integers that numba writes meanwhile wrap.

    Numba holds its compiler's lock then, so no other thread writes functions of its own.
    """
    usual = _ARITHMETIC[_FLAGS]
    _ARITHMETIC[_FLAGS] = lambda _kind: []
    try:
        yield
    finally:
        _ARITHMETIC[_FLAGS] = usual


@contextlib.contextmanager
def _names_for_all_processes(context: Any) -> Iterator[None]:
    """Let the functions that numba writes meanwhile be named by what their types are.

    Otherwise numba names a record by a number that counts the types of this process. Files of parts
    name the parts that they call, so another process must come to the same name.
    """

    def name_of(function: str, types: Any, *, abi_tags: Any = (), uid: Any = None) -> Any:
        digest = hashlib.sha256(repr(tuple(types)).encode()).hexdigest()[:16]
        return mangle(function, (), abi_tags=(*abi_tags, digest), uid=uid)

    context.mangler = name_of
    try:
        yield
    finally:
        del context.mangler  # the class's, as usual


@register_pass(mutates_CFG=True, analysis_only=False)
class PartLowering(NativeLowering):  # type: ignore[misc]  # as above
    """Writes a function's code as a part, which cannot be run."""

    _name = "part_lowering"

    def run_pass(self, state: Any) -> bool:
        """Write the code, and let other functions call it."""
        function = state.func_id.func
        state.library = Part(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.origin = function, state.args
        state.flags.no_compile = True
        with _integers_that_wrap(), _names_for_all_processes(state.targetctx):
            if is_named(function):
                state.func_id.unique_id = 0
            super().run_pass(state)
        key = object()
        state.targetctx.insert_user_function(key, state.cr.fndesc, [state.library])
        state.cr = state.cr._replace(cfunc=key)
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class WholeLowering(NativeLowering):  # type: ignore[misc]  # as above
    """Writes a function's code and makes it what can be run."""

    _name = "whole_lowering"

    def run_pass(self, state: Any) -> bool:
        """Write the code, link and optimise it."""
        state.library = Whole(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        with _integers_that_wrap():
            return bool(super().run_pass(state))


class Parts(WithoutSigns):
    """The steps from bytecode to a part."""

    lowering = PartLowering


class Wholes(WithoutSigns):
    """The steps from bytecode to machine code."""

    lowering = WholeLowering

    def compile_extra(self, function: Any) -> Any:
        """Compile `function`, and do not look for garbage meanwhile.

        What numba makes of it is in use until the end: to go through it again and again took an
        eighth of the time.
        """
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return super().compile_extra(function)  # type: ignore[no-untyped-call]
        finally:
            if was_enabled:
                gc.enable()
