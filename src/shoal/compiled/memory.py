"""Arrays over memory that is named by its address, inside compiled code.

Messages live in buffers that belong to torch, NumPy or the kernel. The tables hold their addresses;
these two functions turn an address into an array of records or numbers. Whoever writes an address
into a table keeps the memory alive for as long as it stands there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils as _cgutils
from numba.extending import intrinsic
from numba.np import arrayobj as _arrayobj

cgutils: Any = _cgutils
arrayobj: Any = _arrayobj

U1 = np.dtype(np.uint8)
U2 = np.dtype(np.uint16)
U4 = np.dtype(np.uint32)
U8 = np.dtype(np.uint64)
I4 = np.dtype(np.int32)
I8 = np.dtype(np.int64)
F4 = np.dtype(np.float32)
F8 = np.dtype(np.float64)


def _rows_at(_typing_context: Any, address: Any, count: Any, dtype: Any) -> Any:
    item = dtype.dtype
    array = types.Array(item, 1, "C")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = arrayobj.make_array(array)(context, builder)
        data_type = context.get_data_type(item)
        size = context.get_constant(types.intp, context.get_abi_sizeof(data_type))
        length = context.cast(builder, arguments[1], signature.args[1], types.intp)
        arrayobj.populate_array(
            view,
            data=builder.inttoptr(arguments[0], data_type.as_pointer()),
            shape=cgutils.pack_array(builder, [length]),
            strides=cgutils.pack_array(builder, [size]),
            itemsize=size,
            meminfo=None,
        )
        return view._getvalue()  # noqa: SLF001 - how numba's own intrinsics return an array

    return array(address, count, dtype), generate


rows_at: Any = intrinsic(_rows_at)
"""`rows_at(address, count, dtype)`: the items of `dtype` that lie at an address, as a 1-d array."""


def _grid_at(_typing_context: Any, address: Any, rows: Any, columns: Any, dtype: Any) -> Any:
    item = dtype.dtype
    array = types.Array(item, 2, "C")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = arrayobj.make_array(array)(context, builder)
        data_type = context.get_data_type(item)
        size = context.get_constant(types.intp, context.get_abi_sizeof(data_type))
        shape = [
            context.cast(builder, arguments[place], signature.args[place], types.intp)
            for place in (1, 2)
        ]
        arrayobj.populate_array(
            view,
            data=builder.inttoptr(arguments[0], data_type.as_pointer()),
            shape=cgutils.pack_array(builder, shape),
            strides=cgutils.pack_array(builder, [builder.mul(shape[1], size), size]),
            itemsize=size,
            meminfo=None,
        )
        return view._getvalue()  # noqa: SLF001 - how numba's own intrinsics return an array

    return array(address, rows, columns, dtype), generate


grid_at: Any = intrinsic(_grid_at)
"""`grid_at(address, rows, columns, dtype)`: what lies at an address as a 2-d array, row by row."""


def _copy_bytes(_typing_context: Any, target: Any, source: Any, count: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointers = [builder.inttoptr(each, cgutils.voidptr_t) for each in arguments[:2]]
        length = context.cast(builder, arguments[2], signature.args[2], types.intp)
        cgutils.raw_memcpy(builder, pointers[0], pointers[1], length, 1)
        return context.get_dummy_value()

    return types.void(target, source, count), generate


copy_bytes: Any = intrinsic(_copy_bytes)
"""`copy_bytes(target, source, count)`: copy between two addresses, which must not overlap."""


def _prefetch(_typing_context: Any, array: Any, index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0]
        view = context.make_array(kind)(context, builder, arguments[0])
        position = context.cast(builder, arguments[1], signature.args[1], types.intp)
        place = builder.gep(view.data, [position])
        pointer = builder.bitcast(place, cgutils.voidptr_t)
        word = ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, word, word, word]),
            "llvm.prefetch.p0i8",
        )
        builder.call(function, [pointer, word(1), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(array, index), generate


prefetch: Any = intrinsic(_prefetch)
"""`prefetch(array, index)`: let the processor fetch the line of an item that is needed soon."""
