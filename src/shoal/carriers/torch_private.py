"""torch's private names: all that Shoal uses, each for want of a public one.

A release of torch may change them without a word, so nothing else in Shoal names one (a test sees
to that). What torch asks of our own classes under such names (`_allgather_base` of a process group,
`_step_supports_amp_scaling` of an optimizer) stays with these classes. `make test-versions` tries
all of it with the releases from 2.7 to 2.14.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from contextlib import AbstractContextManager
from datetime import timedelta
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C import _dynamo
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optimizers

from shoal.errors import UsageError
from shoal.extras import install

if TYPE_CHECKING:
    from torch.autograd.profiler import record_function
    from torch.futures import Future

_LEAST: Final = "2.7"
"""Older ones lose works of process groups that are written in Python: C++ holds half of them."""

if torch.__version__ < _LEAST:
    raise UsageError(
        f"This is torch {torch.__version__}, and Shoal needs {_LEAST} or newer: {install('torch')}"
    )

_Tensor = TypeVar("_Tensor", bound=Tensor)
_frames: Any = _dynamo.eval_frame

COMPILER: Final = "torch._dynamo"
"""The module of torch.compile, which torch imports at the first use of any optimizer."""

# ---- tensors, modules and optimizers -------------------------------------------------------------


def unasked() -> AbstractContextManager[None]:
    """Return the context in which torch asks no class of tensors (`__torch_function__`) first."""
    made: AbstractContextManager[None] = torch._C.DisableTorchFunctionSubclass()
    return made


def tensor_of_nothing(kind: type[_Tensor]) -> _Tensor:
    """Return a tensor of the class `kind` that has no elements and no memory."""
    made: _Tensor = Tensor._make_wrapper_subclass(kind, (0,))
    return made


def count_holders(tensor: Tensor) -> tuple[int, int]:
    """Return how many hold `tensor` itself, Python as one of them, and how many its memory."""
    counted: Any = tensor  # `_use_count` is torch's, and missing in its types
    return counted._use_count(), torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


def parameters_held_by(module: nn.Module) -> Mapping[str, nn.Parameter | None]:
    """Return where `module` itself keeps its parameters, by name; reading it takes no copy."""
    return module._parameters


def modules_held_by(module: nn.Module) -> Mapping[str, nn.Module | None]:
    """Return where `module` itself keeps the modules within it, by name."""
    return module._modules


def buffers_held_by(module: nn.Module) -> MutableMapping[str, Tensor | None]:
    """Return where `module` itself keeps its buffers, by name; others may be put there."""
    return module._buffers


def active_ddp_model() -> nn.Module | None:
    """Return the DistributedDataParallel model whose forward pass runs, if one does."""
    return DistributedDataParallel._get_active_ddp_module()


def note_step(optimizer: torch.optim.Optimizer) -> None:
    """Let learning-rate schedulers believe that `optimizer` has stepped: they check it."""
    optimizer._opt_called = True  # type: ignore[attr-defined]  # schedulers add it


def pre_step_hooks(optimizer: torch.optim.Optimizer) -> MutableMapping[int, Any] | None:
    """Return what is called before each step of `optimizer`; None if it is not torch's kind."""
    found: MutableMapping[int, Any] | None = getattr(optimizer, "_optimizer_step_pre_hooks", None)
    return found


def all_step_hooks(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Return what is called before or after each step of `optimizer`, or of all optimizers."""
    own = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    everywhere = (optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks)
    return [hook for table in (*own, *everywhere) for hook in table.values()]


# ---- backward passes -----------------------------------------------------------------------------


def run_after_backward(callback: Callable[[], None]) -> None:
    """Have `callback` run at the end of the backward pass that this thread is in.

    Callbacks run in the order in which they were given. DDP's Python hooks use this as well.
    """
    Variable._execution_engine.queue_callback(callback)


def is_in_backward() -> bool:
    """Return whether this thread is in a backward pass."""
    return bool(torch._C._current_graph_task_id() >= 0)


# ---- torch.distributed ---------------------------------------------------------------------------


def default_store() -> Any:
    """Return the store that torch has connected for its default process group."""
    return dist.distributed_c10d._get_default_store()


def stores_of_groups() -> MutableMapping[dist.ProcessGroup, tuple[Any, Any]]:
    """Return where torch keeps every group's backend and store; `new_group` takes no store."""
    groups: MutableMapping[dist.ProcessGroup, tuple[Any, Any]] = dist.distributed_c10d._world.pg_map
    return groups


def source_of(work: dist.Work) -> int:
    """Return which member's message a receive from anyone has got."""
    return int(work._source_rank())


def set_timeout(options: Any, timeout: timedelta) -> None:
    """Give a backend's `options` a timeout, as torch's own `new_group` does."""
    options._timeout = timeout


def read_with(future: Future[Any], read: Callable[[Any], Any]) -> None:
    """Make `read` decide what Python code gets when it asks for the value of `future`."""
    future._set_unwrap_func(read)


# ---- torch.compile -------------------------------------------------------------------------------

set_frame_watcher: Final[Callable[[Any], Any]] = _frames.set_eval_frame
"""torch's function that sets what looks at every Python frame that this thread enters, and returns
what looked at them before.

That is None while no compiled model runs.
"""


def leave_uncompiled(function: FunctionType) -> None:
    """Have frames of `function` run as they are, even if code around them is compiled."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]  # as torch.compiler.disable
    action = _frames._FrameAction
    strategy = _frames._FrameExecStrategy(action.SKIP, action.DEFAULT)
    _frames.set_code_exec_strategy(function.__code__, strategy)


# ---- the profiler --------------------------------------------------------------------------------

is_profiled: Final[Callable[[], bool]] = torch.autograd._profiler_enabled  # type: ignore[attr-defined]
"""Returns whether a profiler of torch's looks at what this thread does."""


def end_with(future: Future[Any], record: record_function) -> None:
    """End a range that was begun in this thread when `future` is done, in any thread."""
    record._call_end_callbacks_on_future(future)
