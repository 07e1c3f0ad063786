"""Keeping torch.compile out of what torch calls from within a compiled model.

While a compiled model runs, torch looks at every Python frame that is entered, those of a process
group too, which DDP's forward enters; but what it makes of one cannot be compiled. `torch.compiler.
disable` would say so, at the price of importing the compiler, a second and more, into every job.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import ParamSpec, TypeVar, cast

from shoal.carriers.torch_private import leave_uncompiled, set_frame_watcher

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_Class = TypeVar("_Class", bound=type)


def untraced(
    function: Callable[_Parameters, _Result],
    *,
    within_compiled: Callable[_Parameters, _Result] | None = None,
) -> Callable[_Parameters, _Result]:
    """Return `function`, which torch.compile neither compiles nor looks into.

    `within_compiled`, if given, is called in its place while a compiled model runs.
    """
    within = within_compiled or function

    @functools.wraps(function)
    def called(*arguments: _Parameters.args, **options: _Parameters.kwargs) -> _Result:
        before = set_frame_watcher(None)
        try:
            return (function if before is None else within)(*arguments, **options)
        finally:
            set_frame_watcher(before)

    leave_uncompiled(cast("FunctionType", called))
    return called


def with_untraced_methods(owner: _Class) -> _Class:
    """Make all methods that a class has itself untraced, but for those of Python."""
    for name, value in list(vars(owner).items()):
        if isinstance(value, FunctionType) and not name.startswith("__"):
            setattr(owner, name, untraced(value))
    return owner
