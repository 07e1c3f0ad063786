"""The several ways in which torch lets a process group's methods be called.

torch's own groups take lists and an object of options, or a tensor and plain values (`op=`,
`root=`); a group written in Python gets whatever its caller gives. These decorators turn all of
them into the first way. torchft and older scripts use the others. A timeout among them is not
heeded: the group's own holds for all of its operations.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor

Method = TypeVar("Method", bound=Callable[..., Any])


def takes_reduction(method: Method) -> Method:
    """Let `method(tensors, options)` take a tensor, and a reduction in place of the options."""

    @functools.wraps(method)
    def called(
        self: Any, tensors: Any, opts: Any = None, _timeout: Any = None, *, op: Any = None
    ) -> Any:
        return method(self, _listed(tensors), _options(dist.AllreduceOptions, opts, op=op))

    return called  # type: ignore[return-value]  # it takes more than `method`


def takes_root(kind: type[Any]) -> Callable[[Method], Method]:
    """Let `method(tensors, options)` take a tensor, and a root, and a reduction, for the options.

    `kind` are the options.
    """

    def extended(method: Method) -> Method:
        @functools.wraps(method)
        def called(
            self: Any,
            tensors: Any,
            opts: Any = None,
            op: Any = None,
            _timeout: Any = None,
            *,
            root: int | None = None,
        ) -> Any:
            return method(self, _listed(tensors), _options(kind, opts, op=op, root=root))

        return called  # type: ignore[return-value]  # as above

    return extended


def takes_one_output(kind: type[Any] | None) -> Callable[[Method], Method]:
    """Let `method(outputs, inputs, options)` take a tensor and a list in place of lists of each.

    `kind` are the options, if it has a root or a reduction among them.
    """

    def extended(method: Method) -> Method:
        @functools.wraps(method)
        def called(
            self: Any,
            outputs: Any,
            inputs: Any,
            opts: Any = None,
            _timeout: Any = None,
            *,
            op: Any = None,
            root: int | None = None,
        ) -> Any:
            # all_gather and gather fill a list out of one; scatter and reduce_scatter the reverse
            if isinstance(inputs, Tensor) or isinstance(outputs, Tensor):
                outputs, inputs = [outputs], [inputs]
            options = opts if kind is None else _options(kind, opts, op=op, root=root)
            return method(self, outputs, inputs, options)

        return called  # type: ignore[return-value]  # as above

    return extended


def _listed(tensors: Any) -> Any:
    return [tensors] if isinstance(tensors, Tensor) else tensors


def _options(kind: type[Any], given: Any, *, op: Any = None, root: int | None = None) -> Any:
    """Return `given` if those are options; else options of `kind` with the plain values."""
    if isinstance(given, int):
        root = given
    elif isinstance(given, dist.ReduceOp | dist.ReduceOp.RedOpType):
        op = given
    elif given is not None:
        return given
    if op is None and root is None:
        return None if kind in (dist.AllreduceOptions, dist.ReduceScatterOptions) else kind()
    made = kind()
    if op is not None:
        made.reduceOp = op
    if root is not None:
        made.rootRank = root
    return made
