"""Ready-made subgroups for backends whose messages bear no tags, such as NCCL's: cached, bounded.

Owns which subgroups exist and when they are made and freed. Only members take part, as with
messages; Ripples caches its communicators likewise and lets members agree whether they still have
one (docs/papers.md, 3.2). Deadlock-free because each worker's groups come in one total
order.

Not `torch.distributed.new_group(use_local_synchronization=True)`: it names a group by how many
groups a worker has made so far (torch 2.13), on which workers with different pasts disagree.

`Subgroups` is what a communicator uses; `SubgroupCache` is its memory and knows no torch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from shoal.carriers.gloo_messages import GlooConnections, GuardedWork
from shoal.carriers.torch_private import set_timeout
from shoal.collectives import Phase
from shoal.errors import UsageError

if TYPE_CHECKING:
    from shoal.carriers.exchange import Conversation
    from shoal.carriers.guard import Guard
    from shoal.carriers.mean import Mean

Backend: TypeAlias = Any
"""A torch.distributed backend over the members only, in their order."""

Agree: TypeAlias = Callable[[tuple[int, int]], Sequence[tuple[int, int]]]
"""A function that gives every member's pair to every member; a member passes its own and gets all
pairs, its own included."""

NONE_HELD = -1


class SubgroupCache:
    """The most recently used subgroups of one worker, for one thread of it.

    `make(members, name)` opens one, together with the other members; `close` frees one. Threads
    need a cache each, with names kept apart by `make`: they agree with other workers in no order.
    """

    def __init__(
        self,
        make: Callable[[tuple[int, ...], str], Backend],
        close: Callable[[Backend], None],
        capacity: int = 32,
    ) -> None:
        self._make = make
        self._close = close
        self._capacity = capacity
        self._held: OrderedDict[tuple[int, ...], tuple[int, Backend]] = OrderedDict()
        self._next_generation = 0

    def get(self, members: tuple[int, ...], agree: Agree) -> Backend:
        """Return the subgroup of `members`, made now unless all of them still hold the same one.

        Every member calls this at the same point of its order of groups.
        """
        generation, backend = self._held.get(members, (NONE_HELD, None))
        proposals = agree((generation, self._next_generation))
        if backend is not None and all(held == generation for held, _ in proposals):
            self._held.move_to_end(members)
            return backend
        self._drop(members)
        generation = max(upcoming for _, upcoming in proposals)
        self._next_generation = generation + 1
        while len(self._held) >= self._capacity:
            self._drop(next(iter(self._held)))
        backend = self._make(members, f"{members}/{generation}")
        self._held[members] = (generation, backend)
        return backend

    def close(self) -> None:
        """Free all subgroups, which ends what is blocked in them. Callable from any thread."""
        for _, backend in list(self._held.values()):
            self._close(backend)

    def __len__(self) -> int:
        return len(self._held)

    def _drop(self, members: tuple[int, ...]) -> None:
        _, backend = self._held.pop(members, (NONE_HELD, None))
        if backend is not None:
            self._close(backend)


class Subgroups:
    """Averages over subgroups of `group`, made on first use. For one thread a channel."""

    def __init__(self, group: dist.ProcessGroup, guard: Guard) -> None:
        self._group = group
        self._guard = guard
        self._caches: dict[tuple[str, int], SubgroupCache] = {}

    def average(
        self,
        flat: Tensor,
        mean: Mean,
        talk: Conversation,
        *,
        members: tuple[int, ...],
        channel: int,
    ) -> None:
        """Replace `flat` by the mean, as `TorchCommunicator.group_average` does.

        Scaled before it is summed, so that narrow types do not overflow.
        """

        def agree(mine: tuple[int, int]) -> list[tuple[int, int]]:
            everyone = torch.tensor([mine] * len(members))
            self._guard.run(lambda: exchange_rows(everyone, mean.me, talk), talk.waiting)
            return [(held, upcoming) for held, upcoming in everyone.tolist()]

        what = talk.waiting.what
        backend = self._cache_of(flat.device, channel).get(members, agree)
        flat.mul_(mean.share)
        start = partial(backend.allreduce, [flat], dist.AllreduceOptions())
        try:
            work = self._guard.start(start, peer=None, what=what)
        except dist.DistBackendError as error:
            if "Duplicate GPU" not in str(error):
                raise
            message = (
                f"Ranks {members} do not have a GPU each, which NCCL wants for averages in groups;"
                " give them one each, or take transport='shoal'."
            )
            raise UsageError(message) from None
        GuardedWork(self._guard, work, None, what).wait()

    def close(self) -> None:
        """Free all subgroups, which ends what is blocked in them. Callable from any thread."""
        for cache in list(self._caches.values()):
            cache.close()

    def _cache_of(self, device: torch.device, channel: int) -> SubgroupCache:
        place = (device.type, channel)
        if place not in self._caches:
            self._caches[place] = SubgroupCache(
                lambda members, name: self._open(device.type, members, f"{place}/{name}"),
                _close_backend,
            )
        return self._caches[place]

    def _open(self, device_type: str, members: tuple[int, ...], name: str) -> Backend:
        prefix_store = dist.PrefixStore  # type: ignore[attr-defined]  # documented by torch, but missing from its __all__
        store = prefix_store(f"shoal/{name}", self._group.get_group_store())
        make = _make_gloo if device_type == "cpu" else _make_nccl
        me = members.index(self._group.rank())
        start = partial(make, store, me, len(members), self._guard.deadline)
        return self._guard.start(start, peer=None, what=f"making a subgroup of ranks {members}")


def _make_gloo(store: dist.Store, me: int, size: int, deadline: timedelta) -> Backend:  # type: ignore[name-defined]  # as above
    return dist.ProcessGroupGloo(store, me, size, deadline)


def _make_nccl(store: dist.Store, me: int, size: int, deadline: timedelta) -> Backend:  # type: ignore[name-defined]  # as above
    """NCCL ends the process when its own timeout strikes, so ours must come first."""
    options = dist.ProcessGroupNCCL.Options()
    set_timeout(options, 2 * deadline)
    return dist.ProcessGroupNCCL(store, me, size, options)


def exchange_rows(table: Tensor, me: int, talk: Conversation) -> None:
    """Send row `me` of `table` to every member, and receive theirs."""
    others = [member for member in range(len(table)) if member != me]
    under_way = [talk.receive(table[member], member, Phase.REDUCE) for member in others]
    under_way += [talk.send(table[me], member, Phase.REDUCE) for member in others]
    for transfer in under_way:
        talk.wait(transfer)


def _close_backend(backend: Backend) -> None:
    if isinstance(backend, dist.ProcessGroupGloo):
        GlooConnections(backend).close()
    else:
        backend.abort()
