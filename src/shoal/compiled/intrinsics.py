"""What the functions of `memory` and `bits` become in compiled code.

Tells numba, so only the compiler imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir as _ir
from numba import extending as _extending
from numba import types
from numba.core import cgutils as _cgutils
from numba.np import arrayobj as _arrayobj

from shoal.compiled.bits import lowest_bit, number_of_bits
from shoal.compiled.memory import copy_bytes, fence, grid_at, loaded, prefetch, rows_at, store

ir: Any = _ir
extending: Any = _extending
cgutils: Any = _cgutils
arrayobj: Any = _arrayobj

Generator = Callable[[Any, Any, Any, Any], Any]
"""A function that writes a call: it takes numba's context, the builder of instructions, the call's
types and its arguments."""


def _becomes(
    function: Callable[..., Any], arguments: Sequence[Any], result: Callable[..., Any]
) -> Callable[[Generator], Generator]:
    """Let calls of `function` be what the decorated generator writes.

    `result` returns their type, given those of the arguments.
    """
    extending.type_callable(function)(lambda _context: result)
    decorate: Callable[[Generator], Generator] = extending.lower_builtin(function, *arguments)
    return decorate


def array_over(context: Any, builder: Any, kind: Any, address: Any, shape: Sequence[Any]) -> Any:
    """Return the array of type `kind`, row by row, that lies at an address."""
    view = arrayobj.make_array(kind)(context, builder)
    data_type = context.get_data_type(kind.dtype)
    size = context.get_constant(types.intp, context.get_abi_sizeof(data_type))
    strides = [size]
    for length in reversed(shape[1:]):
        strides.insert(0, builder.mul(length, strides[0]))
    arrayobj.populate_array(
        view,
        data=builder.inttoptr(address, data_type.as_pointer()),
        shape=cgutils.pack_array(builder, shape),
        strides=cgutils.pack_array(builder, strides),
        itemsize=size,
        meminfo=None,
    )
    return view._getvalue()  # noqa: SLF001 - how numba's own intrinsics return an array


def _write_array(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    shape = [
        context.cast(builder, length, kind, types.intp)
        for length, kind in zip(arguments[1:-1], signature.args[1:-1], strict=True)
    ]
    return array_over(context, builder, signature.return_type, arguments[0], shape)


_becomes(
    rows_at,
    (types.Integer, types.Integer, types.DType),
    lambda address, count, dtype: types.Array(dtype.dtype, 1, "C"),  # noqa: ARG005
)(_write_array)

_becomes(
    grid_at,
    (types.Integer, types.Integer, types.Integer, types.DType),
    lambda address, rows, columns, dtype: types.Array(dtype.dtype, 2, "C"),  # noqa: ARG005
)(_write_array)


@_becomes(copy_bytes, [types.Integer] * 3, lambda target, source, count: types.none)  # noqa: ARG005
def _write_copy(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    pointers = [builder.inttoptr(each, cgutils.voidptr_t) for each in arguments[:2]]
    length = context.cast(builder, arguments[2], signature.args[2], types.intp)
    cgutils.raw_memcpy(builder, pointers[0], pointers[1], length, 1)
    return context.get_dummy_value()


@_becomes(prefetch, (types.Array, types.Integer), lambda array, index: types.none)  # noqa: ARG005
def _write_prefetch(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    view = context.make_array(signature.args[0])(context, builder, arguments[0])
    position = context.cast(builder, arguments[1], signature.args[1], types.intp)
    pointer = builder.bitcast(builder.gep(view.data, [position]), cgutils.voidptr_t)
    word = ir.IntType(32)
    function = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, word, word, word]),
        "llvm.prefetch.p0i8",
    )
    builder.call(function, [pointer, word(1), word(3), word(1)])
    return context.get_dummy_value()


def _word(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    return context.cast(builder, arguments[0], signature.args[0], types.uint64)


@_becomes(lowest_bit, [types.Integer], lambda word: types.int64)  # noqa: ARG005
def _write_lowest_bit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    not_zero = ir.Constant(ir.IntType(1), 1)
    return builder.cttz(_word(context, builder, signature, arguments), not_zero)


@_becomes(number_of_bits, [types.Integer], lambda word: types.int64)  # noqa: ARG005
def _write_number_of_bits(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    return builder.ctpop(_word(context, builder, signature, arguments))


def _pointer_to_word(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, ir.IntType(64).as_pointer())


@_becomes(loaded, [types.Integer], lambda address: types.int64)  # noqa: ARG005
def _write_load(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
    return builder.load_atomic(_pointer_to_word(builder, arguments[0]), "acquire", 8)


@_becomes(store, [types.Integer] * 2, lambda address, value: types.none)  # noqa: ARG005
def _write_store(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    value = context.cast(builder, arguments[1], signature.args[1], types.int64)
    builder.store_atomic(value, _pointer_to_word(builder, arguments[0]), "release", 8)
    return context.get_dummy_value()


@_becomes(fence, [], lambda: types.none)
def _write_fence(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
    builder.fence("seq_cst")
    return context.get_dummy_value()
