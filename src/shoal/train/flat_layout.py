"""Where a model's parameters lie among its flat tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from shoal.train.flat_parameters import FlatParameters


def place_of(parameter: Tensor, flat: FlatParameters) -> tuple[int, range]:
    """Return which flat tensor holds `parameter` (not empty), and which elements of it.

    Raises `UsageError` if none does.
    """
    for number, buffer in enumerate(flat.buffers):
        if (parameter.dtype, parameter.device) == (buffer.dtype, buffer.device):
            start = (parameter.data_ptr() - buffer.data_ptr()) // buffer.element_size()
            if 0 <= start <= buffer.numel() - parameter.numel():
                return number, range(start, start + parameter.numel())
    raise UsageError(
        "A parameter does not live in the model's flat tensors; do not move or cast the model after"
        " making DistributedOptimizer, and give it an optimizer of that model's parameters."
    )
