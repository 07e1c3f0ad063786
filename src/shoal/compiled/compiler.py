"""Numba: makes machine code of functions. Imported only when something has to be compiled."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numba as _numba
from numba import types
from numba.core import cgutils as _cgutils
from numba.extending import intrinsic

from shoal.compiled.intrinsics import array_over
from shoal.compiled.kept_functions import KeptFunctions
from shoal.compiled.kept_parts import KeptParts
from shoal.compiled.machine_code import MachineCode
from shoal.compiled.parts import Parts, Wholes

if TYPE_CHECKING:
    from shoal.compiled.entry import Entry

numba: Any = _numba
cgutils: Any = _cgutils

_OPTIONS: Final[dict[str, Any]] = {
    "nogil": True,
    "error_model": "numpy",
    "_nrt": False,
}
"""No reference counts: arrays belong to the Python caller for as long as compiled code runs, and
nothing is allocated there (numba refuses to). Counting took up to half of short functions' time."""

_BARE: Final = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Nothing in the machine code that calls Python or numba."""

_KINDS: Final = {
    "int": types.int64,
    "float": types.float64,
    "bool": types.boolean,
    "None": types.none,
}
"""What annotations say to numba."""


def make_part_dispatcher(function: Callable[..., object], *, inline: bool) -> Any:
    """Return what compiles `function` for the types that compiled code calls it with."""
    # said either way: numba passes on what a caller says, and a part is kept for its other callers
    options = _OPTIONS | _BARE | {"forceinline": inline}
    dispatcher = numba.njit(**options, pipeline_class=Parts)(function)
    dispatcher._insert = lambda *_: None  # noqa: SLF001 - of Python's calls: there are none
    dispatcher._cache = KeptParts(function)  # noqa: SLF001 - as numba's own `cache=True` does
    _widen_arguments(dispatcher, function)
    return dispatcher


def make_dispatcher(function: Callable[..., object]) -> Any:
    """Return what compiles `function` for the types that Python calls it with, kept on disk."""
    dispatcher = numba.njit(**_OPTIONS, pipeline_class=Wholes)(function)
    with contextlib.suppress(RuntimeError):  # no place to write: compile in every process
        dispatcher._cache = KeptFunctions(function)  # noqa: SLF001 - as numba's own `cache=True` does
    return dispatcher


def _widen_arguments(dispatcher: Any, function: Callable[..., object]) -> None:
    """Let calls from other compiled code go to one version of `function`, not one for each width.

    Numba types a call by asking the callee's dispatcher for a template that fits the arguments; the
    caller then converts them to what the template says.
    """
    names = list(inspect.signature(function).parameters)
    integers = {name for name in names if function.__annotations__.get(name) == "int"}
    original = dispatcher.get_call_template

    def widen(name: str, kind: Any) -> Any:
        plain = types.unliteral(kind)  # type: ignore[no-untyped-call]
        wide = name in integers and isinstance(plain, types.Integer)
        return types.int64 if wide else plain

    def get_call_template(arguments: Any, keywords: Any) -> Any:
        return original(
            tuple(widen(name, kind) for name, kind in zip(names, arguments, strict=False)),
            {name: widen(name, kind) for name, kind in keywords.items()},
        )

    dispatcher.get_call_template = get_call_template


def compile_entry(function: Entry[..., Any], tables: Sequence[Any]) -> MachineCode:
    """Return the code of `function` for arrays like `tables`, as `entry` calls it.

    It takes the address of the words that say where the arrays are, then the numbers.
    """
    arrays = iter([numba.typeof(each) for each in tables])
    kinds = [_KINDS.get(each) or next(arrays) for each in function.parameters]
    numbers = types.Tuple([_KINDS[each] for each in function.parameters if each in _KINDS])  # type: ignore[no-untyped-call]
    arranged = _arranged(kinds)

    def call(words: int, numbers: tuple[Any, ...]) -> Any:
        return function(*arranged(words, numbers))

    signature = _KINDS[function.result](types.int64, numbers)
    dispatcher = numba.njit(signature, **_OPTIONS, **_BARE, pipeline_class=Wholes)(call)
    (compiled,) = dispatcher.overloads.values()
    _name, _kind, (image, _bitcode) = compiled.library.serialize_using_object_code()
    return MachineCode(compiled.fndesc.llvm_func_name, image)


def _arranged(kinds: Sequence[Any]) -> Any:
    """Return what makes arguments of types `kinds` from words and numbers, in compiled code."""
    result = types.Tuple(kinds)  # type: ignore[no-untyped-call]

    def arranged(_typing_context: Any, words: Any, numbers: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            word = _reader(builder, arguments[0])
            left = iter(cgutils.unpack_tuple(builder, arguments[1]))

            def take(kind: Any) -> Any:
                if kind in _KINDS.values():
                    return next(left)
                if isinstance(kind, types.Array):
                    address, shape = word(), [word() for _ in range(kind.ndim)]
                    return array_over(context, builder, kind, address, shape)
                return context.make_tuple(builder, kind, [take(each) for each in kind])

            return context.make_tuple(builder, result, [take(kind) for kind in kinds])

        return result(words, numbers), generate

    return intrinsic(arranged)


def _reader(builder: Any, address: Any) -> Callable[[], Any]:
    """Return what reads the next of the 64-bit words that begin at `address`."""
    first = builder.inttoptr(address, cgutils.intp_t.as_pointer())
    places = itertools.count()
    return lambda: builder.load(builder.gep(first, [cgutils.intp_t(next(places))]))
