"""What torch's profiler sees of collectives: one range each, from its start until it is done.

As of torch's own backends: "shoal:all_reduce" as gloo's is "gloo:all_reduce", asynchronous, so that
other ranges of the same thread overlap it. A collective that is made of others is shown alone.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

from torch.autograd.profiler import record_function
from torch.futures import Future

from shoal.carriers import end_with, is_profiled

_Class = TypeVar("_Class", bound=type)

TITLES: Final = {
    "all_reduce": ("allreduce", "allreduce_coalesced", "average"),
    "reduce": ("reduce",),
    "reduce_scatter": (
        "reduce_scatter",
        "_reduce_scatter_base",
        "reduce_scatter_tensor_coalesced",
    ),
    "broadcast": ("broadcast",),
    "all_gather": (
        "allgather",
        "_allgather_base",
        "allgather_coalesced",
        "allgather_into_tensor_coalesced",
    ),
    "gather": ("gather",),
    "scatter": ("scatter",),
    "all_to_all": ("alltoall", "alltoall_base"),
    "send": ("send",),
    "recv": ("recv", "recv_anysource"),
    "barrier": ("barrier", "monitored_barrier"),
}
"""What a process group's methods are shown as."""

_thread = threading.local()


def with_profiled_collectives(owner: _Class) -> _Class:
    """Have the profiler see the collectives of a class of process groups, under all their names."""
    titles = {vars(owner)[name]: title for title, names in TITLES.items() for name in names}
    shown = {method: _profiled(method, f"shoal:{title}") for method, title in titles.items()}
    for name, value in list(vars(owner).items()):
        if callable(value) and value in shown:
            setattr(owner, name, shown[value])
    return owner


def _profiled(collective: Callable[..., Any], title: str) -> Callable[..., Any]:
    @functools.wraps(collective)
    def called(*arguments: Any, **options: Any) -> Any:
        if not is_profiled() or getattr(_thread, "is_within", False):
            return collective(*arguments, **options)
        _thread.is_within = True
        try:
            with record_function(title) as record:
                work = collective(*arguments, **options)
                if work is None:  # this one returns when it is done
                    return None
                done: Future[None] = Future()
                end_with(done, record)
        finally:
            _thread.is_within = False
        # Not at the end of the work's own future, which is completed by a thread that waits for it.
        work.tell(lambda _error: done.set_result(None))
        return work

    return called
