"""Registering the backend "shoal" with torch.distributed, and making its process groups.

`register` is an entry point of torch (`torch.backends`), called whenever torch is imported, so it
must stay cheap: what the backend needs is imported when a process group is made.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from shoal.wire import UdpEngine


def register() -> None:
    """Make "shoal" known to torch.distributed; quietly do nothing where torch has none."""
    import torch.distributed as dist

    if dist.is_available() and "shoal" not in dist.Backend.backend_list:
        dist.Backend.register_backend("shoal", _create, extended_api=True, devices=["cpu", "cuda"])


def current_engine() -> UdpEngine:
    """Return the transport of this process's process groups, for its counters.

    Raises `UsageError` before `init_process_group("shoal")`.
    """
    from shoal.errors import UsageError
    from shoal.session import open_engines

    engines = open_engines()
    if not engines:
        raise UsageError("Call init_process_group('shoal') first.")
    return engines[0]


def _create(options: Any, _backend_options: Any) -> ProcessGroup:
    """Return the process group that torch asks for, over the transport that this process has."""
    import torch.distributed as dist

    from shoal.adapters.torch_process_group import ShoalProcessGroup
    from shoal.collectives import AUTO
    from shoal.session import over_store, share_engine
    from shoal.wire import TransportGroup, from_environment

    if getattr(options, "enable_reconfigure", False):  # torch has it from 2.14 on
        from shoal.adapters.torch_reconfigured_group import ReconfiguredGroup

        return ReconfiguredGroup(
            options.store,
            options.group_rank,
            options.group_size,
            deadline_s=options.timeout.total_seconds(),
            sums=replace(from_environment().sums, algorithm=AUTO),
        )
    size = options.group_size
    ranks = tuple(options.global_ranks_in_group) or tuple(range(size))
    world_size = dist.get_world_size() if dist.is_initialized() else size
    deadline_s = options.timeout.total_seconds()
    share = share_engine(
        ranks[options.group_rank],
        ranks,
        world_size,
        over_store(options.store, options.group_rank, size, deadline_s),
        deadline_s=deadline_s,
    )
    sums = from_environment().sums
    if size < world_size:  # what the environment says is about all
        sums = replace(sums, algorithm=AUTO)
    places = tuple(share.ranks.index(rank) for rank in ranks)
    group = TransportGroup(share, places, share.new_stream("torch", ranks))
    return ShoalProcessGroup.over(group, sums=sums)
