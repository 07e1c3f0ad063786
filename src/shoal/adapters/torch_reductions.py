"""What torch's reductions are to the transport, and the ones that torch carries out itself."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from shoal.carriers import form_of
from shoal.errors import UsageError
from shoal.transport import RAW

ReduceOp = dist.ReduceOp

_REDUCTIONS: dict[Any, Callable[[Tensor, Tensor], Tensor]] = {
    ReduceOp.SUM: torch.add,
    ReduceOp.AVG: torch.add,
    ReduceOp.PRODUCT: torch.mul,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.MAX: torch.maximum,
    ReduceOp.BAND: torch.bitwise_and,
    ReduceOp.BOR: torch.bitwise_or,
    ReduceOp.BXOR: torch.bitwise_xor,
}


def reduction_of(opts: Any) -> Any:
    """Return the reduction that an operation's options name; a sum without any."""
    return ReduceOp.SUM if opts is None else opts.reduceOp


def is_sum(reduction: Any, tensor: Tensor) -> bool:
    """Return whether the transport can make it: a sum, or a mean of floats."""
    return reduction == ReduceOp.SUM or (
        reduction == ReduceOp.AVG and tensor.dtype.is_floating_point
    )


def is_made_in_sums(reduction: Any, tensor: Tensor) -> bool:
    """Return whether the transport makes it of tensors of this type, multiplied first or not."""
    reduction = ReduceOp.SUM if reduction == ReduceOp.PREMUL_SUM else reduction
    return form_of(tensor.dtype) != RAW and is_sum(reduction, tensor)


def operations_of(reduction: Any, tensor: Tensor) -> int:
    """Return how many operations of the group it makes: a sum, or two that move shards."""
    return 1 if is_made_in_sums(reduction, tensor) else 2


def _name(reduction: Any) -> str:
    return getattr(reduction, "op", reduction).name


def factor_of(reduction: Any, tensor: Tensor) -> Any:
    """Return what a PREMUL_SUM multiplies each contribution by: a number, or a tensor of one."""
    if not tensor.is_floating_point():
        message = f"PREMUL_SUM multiplies floats, not {tensor.dtype}."
        raise UsageError(message)
    _, factor = reduction.__getstate__()  # as pickled: older torches have no other way to read it
    return factor.to(tensor.device) if isinstance(factor, Tensor) else factor


def reduce_rows(rows: Tensor, reduction: Any) -> Tensor:
    """Return the reduction of the rows, in order."""
    for known, function in _REDUCTIONS.items():
        if reduction == known:
            total = functools.reduce(function, rows[1:], rows[0])
            return total / len(rows) if known == ReduceOp.AVG else total
    message = f"The shoal backend has no reduction {_name(reduction)}."
    raise UsageError(message)


def check_reduction(tensor: Tensor, reduction: Any) -> None:
    """Raise `UsageError` for what torch cannot reduce, before a rank waits for its outcome."""
    try:
        reduce_rows(tensor.new_zeros((2, 1)), reduction)
    except (RuntimeError, NotImplementedError) as error:
        message = f"The shoal backend cannot reduce {tensor.dtype} by {_name(reduction)}: {error}"
        raise UsageError(message) from None
