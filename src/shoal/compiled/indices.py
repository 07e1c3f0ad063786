"""Array indices without a sign: compiled code never counts from the end.

Python lets -1 stand for the last item, so numba asks of every signed index whether it is negative,
which needs the array's length as well. Rows that name rows do so several times for every packet:
a seventh of the window kernel's time went that way. Constants such as -1 still count from the end.
"""

from __future__ import annotations

from typing import Any

from numba.core import ir
from numba.core import types as _types
from numba.core.compiler import CompilerBase
from numba.core.compiler import DefaultPassBuilder as _DefaultPassBuilder
from numba.core.compiler_machinery import FunctionPass
from numba.core.compiler_machinery import register_pass as _register_pass
from numba.core.typed_passes import NativeLowering, NopythonRewrites

types: Any = _types
pass_builder: Any = _DefaultPassBuilder
register_pass: Any = _register_pass


@register_pass(mutates_CFG=False, analysis_only=False)
class IndicesWithoutSign(FunctionPass):
    """Types every integer that an array is indexed by as one without a sign."""

    _name = "indices_without_sign"

    def __init__(self) -> None:  # abstract in numba, which also has no types
        super().__init__()  # type: ignore[no-untyped-call]

    def run_pass(self, state: Any) -> bool:
        """Change the types in place; the code stays as it is."""
        known = state.calltypes
        for node, signature in list(known.items()):
            is_read = isinstance(node, ir.Expr) and node.op == "getitem"
            if not (is_read or isinstance(node, ir.SetItem)):
                continue
            array, index, *value = signature.args
            if isinstance(array, types.Array):
                del known[node]  # it takes no key twice
                known[node] = signature.replace(args=(array, _without_sign(index), *value))
        return True


class WithoutSigns(CompilerBase):
    """Numba's usual steps, with indices that are never negative."""

    lowering: Any = NativeLowering

    def define_pipelines(self) -> list[Any]:
        """Return the steps from bytecode to machine code."""
        manager = pass_builder.define_nopython_pipeline(self.state)
        manager.add_pass_after(IndicesWithoutSign, NopythonRewrites)
        manager.passes = [
            (self.lowering, about) if each is NativeLowering else (each, about)
            for each, about in manager.passes
        ]
        manager.finalize()
        return [manager]


def _without_sign(index: Any) -> Any:
    if isinstance(index, types.Integer):
        return types.uintp
    if isinstance(index, types.BaseTuple):
        return types.Tuple([_without_sign(each) for each in index])
    return index
