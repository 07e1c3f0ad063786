"""Ranges that torch's profiler shows, by a name of ours; next to nothing while none runs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch.autograd.profiler import record_function

from shoal.carriers.torch_private import is_profiled


def in_profile(name: str) -> AbstractContextManager[object]:
    """Return the context whose body a profiler that looks at this thread shows as `name`."""
    return record_function(name) if is_profiled() else nullcontext()
