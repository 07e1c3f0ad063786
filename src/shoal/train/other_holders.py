"""Whether anything else holds the memory of a model's tensors, and could read it without waiting.

An update or average that is put off can be waited for when a tensor itself is touched
(`train.awaited_tensors`), but not when its memory is read or written by another way: an alias
(`tensor.data`, an old `state_dict()`, a NumPy array), a TorchScript module, a graph that was kept.
torch counts references to tensors and memory, so such holders are noticed before anything is put
off. An address that was written down counts as none: it cannot be noticed.
"""

from __future__ import annotations

import gc
import logging
from typing import TYPE_CHECKING

from torch.autograd.graph import get_gradient_edge

from shoal.carriers import count_holders, unasked

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

_log = logging.getLogger(__name__)


class OtherHolders:
    """Notices when something else has come to hold one of the named `tensors`, or its memory.

    Nothing else may hold the memory when this is made.
    """

    def __init__(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        self._names = {id(tensor): (name, tensor) for name, tensor in tensors}
        self._usual = {key: count_holders(tensor)[1] for key, (_, tensor) in self._names.items()}
        self._nodes: dict[int, object] = {}
        """The nodes that add up gradients: each holds its tensor, and without a hold on it would
        come and go with every graph."""
        self._has_warned = False

    def have_come(self) -> bool:
        """Return whether there are other holders now; the first time, log the tensor's name."""
        held = self._first_held()
        if held is not None and not self._has_warned:
            gc.collect()  # torch.save() of torch 2.7 leaves what it saved to the collector
            held = self._first_held()
        if held is not None and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "Something else holds the memory of %s (an alias such as tensor.data or an"
                " old state_dict(), a TorchScript module, a graph that was kept) and would"
                " read it before its new values are there: step() waits for them while it"
                " does, and overlap hides nothing.",
                held,
            )
        return held is not None

    def hold(self, tensor: Tensor) -> bool:
        """Return whether anything else holds `tensor`, one of those given, or its memory."""
        with unasked():  # looking needs no values
            return self._hold(tensor)

    def _first_held(self) -> str | None:
        """Return the name of a tensor that something else holds, if there is one."""
        with unasked():  # looking needs no values
            return next((name for name, each in self._names.values() if self._hold(each)), None)

    def _hold(self, tensor: Tensor) -> bool:
        key = id(tensor)
        if key not in self._nodes and tensor.requires_grad:
            self._nodes[key] = get_gradient_edge(tensor).node
        of_tensor, of_memory = count_holders(tensor)
        return of_tensor > 1 + (key in self._nodes) or of_memory > self._usual[key]
