"""Keeping torch.compile out of what torch calls from within a compiled model.

While a compiled model runs, torch looks at every Python frame that is entered, those of a process
group too, which DDP's forward enters; but what it makes of one cannot be compiled. `torch.compiler.
disable` would say so, at the price of importing the compiler, a second and more, into every job.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, ParamSpec, TypeVar

from torch._C import _dynamo

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_Class = TypeVar("_Class", bound=type)

_frames: Any = _dynamo.eval_frame


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
        before = _frames.set_eval_frame(None)
        try:
            return (function if before is None else within)(*arguments, **options)
        finally:
            _frames.set_eval_frame(before)

    called._torchdynamo_disable = True  # type: ignore[attr-defined]  # noqa: SLF001 - what `disable` says
    _leave_alone(called.__code__)  # type: ignore[attr-defined]  # of the function that `wraps` returns
    return called


def with_untraced_methods(owner: _Class) -> _Class:
    """Make all methods that a class has itself untraced, but for those of Python."""
    for name, value in list(vars(owner).items()):
        if isinstance(value, FunctionType) and not name.startswith("__"):
            setattr(owner, name, untraced(value))
    return owner


def _leave_alone(code: CodeType) -> None:
    """Have a frame of `code` run as it is, whatever is compiled around it."""
    if hasattr(_frames, "skip_code"):  # older releases of torch
        _frames.skip_code(code)
    else:
        action = _frames._FrameAction  # noqa: SLF001 - as torch.compiler.disable uses it
        strategy = _frames._FrameExecStrategy(action.SKIP, action.DEFAULT)  # noqa: SLF001
        _frames.set_code_exec_strategy(code, strategy)
