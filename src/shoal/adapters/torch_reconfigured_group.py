"""Process groups whose members change: what torch calls reconfiguring, from 2.14 on.

    torch.distributed.init_process_group("shoal", enable_reconfigure=True)
    handle = torch.distributed._get_reconfigure_handle()  # to be shown to the others, in any way
    torch.distributed._reconfigure(uuid, handles).wait()

torch calls it experimental. Owns handles, the numbers of reconfigurations, and what becomes of the
members before. Whoever calls decides who is a member; all members give the same.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final

import torch.distributed as dist

from shoal.adapters.torch_process_group import ShoalProcessGroup
from shoal.adapters.torch_work import TransportWork, leave_beside
from shoal.carriers import is_in_backward
from shoal.errors import UsageError
from shoal.session import group_alone, over_store

if TYPE_CHECKING:
    from datetime import timedelta

    from torch import Tensor
    from torch.distributed import Store  # type: ignore[attr-defined]  # torch's own omission

    from shoal.adapters.torch_future import Order
    from shoal.wire import SumOptions

_KIND: Final = "shoal"


class ReconfiguredGroup(ShoalProcessGroup):
    """A process group that has members from its first `reconfigure` on.

    Until then it is rank `me` of `size`, as torch was told, and its operations raise `UsageError`.
    All who may become members share `store`. `deadline_s` bounds operations, and the forming of a
    group that is given no other time.
    """

    supports_reconfigure = True

    def __init__(
        self, store: Store, me: int, size: int, *, deadline_s: float, sums: SumOptions
    ) -> None:
        super().__init__(me, size, sums=sums)
        self._store, self._me, self._size, self._deadline_s = store, me, size, deadline_s
        self._handle = f"{_KIND}:{me}:{secrets.token_hex(8)}"
        self._has_members = False

    def rank(self) -> int:
        """Return this process's place among the present members."""
        return self._me

    def size(self) -> int:
        """Return the number of the present members."""
        return self._size

    def get_reconfigure_handle(self) -> str:
        """Return the handle by which the others name this process; it stays the same."""
        return self._handle

    def reconfigure(self, opts: Any) -> TransportWork:
        """Form the group of those whose handles are in `opts`; collective among them.

        Ranks follow the order of a list, and the alphabet if it is a set. `opts.uuid` has not been
        used before. What was under way among the members before fails with `UsageError`; if the
        others do not come within `opts.timeout`, those members stay.

        Raises `UsageError` for handles or numbers that cannot be, and what `open_engine` does.
        """
        given = opts.handles
        handles = list(given) if isinstance(given, list) else sorted(given)
        me, size = self._place_among(handles), len(handles)
        limit_s = self._deadline_s if opts.timeout is None else opts.timeout.total_seconds()
        part = dist.PrefixStore(f"shoal-reconfigure/{opts.uuid}", self._store)  # type: ignore[attr-defined]  # documented by torch, but missing from its __all__
        if me == 0:
            _claim(part, opts.uuid)
        group = group_alone(me, size, over_store(part, me, size, limit_s), deadline_s=limit_s)
        group.engine.deadline_s = self._deadline_s
        self._leave()
        self._me, self._size, self._has_members = me, size, True
        self.stand_on(group)
        return TransportWork([]).seal()

    def allreduce(self, tensors: list[Tensor], opts: Any = None, *more: Any, **named: Any) -> Any:
        """Reduce over the present members, in place.

        Raises `UsageError` where DistributedDataParallel would divide the sum by another number: in
        C++ a group that is written in Python has as many members as when it was made.
        """
        if is_in_backward() and dist.ProcessGroup.size(self) != self._size:
            message = (
                f"DistributedDataParallel divides by {dist.ProcessGroup.size(self)}, and the group"
                f" has {self._size} members: call shoal.adapters.ddp.register(model) for its means."
            )
            raise UsageError(message)
        return super().allreduce(tensors, opts, *more, **named)

    def _place_among(self, handles: list[str]) -> int:
        """Return this process's place among `handles`; raise `UsageError` if they cannot be."""
        for each in handles:
            if each.partition(":")[0] != _KIND:
                message = f"{each!r} is no handle of a process group of the backend {_KIND!r}."
                raise UsageError(message)
        if len(set(handles)) < len(handles):
            raise UsageError("A handle is given twice: give that of each member once.")
        if self._handle not in handles:
            message = f"This process is not among the members: its handle is {self._handle!r}."
            raise UsageError(message)
        return handles.index(self._handle)

    def _leave(self) -> None:
        if self._has_members:
            leave_beside(self.engine, UsageError("The process group has other members now."))

    def _here(self) -> Order:
        if not self._has_members:
            raise UsageError("This process group has no members yet: call _reconfigure() first.")
        return super()._here()

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self._deadline_s = timeout.total_seconds()
        if self._has_members:
            super()._set_default_timeout(timeout)

    set_timeout = _set_default_timeout

    def shutdown(self) -> None:
        """Leave the present members."""
        if self._has_members:
            super().shutdown()

    def abort(self) -> None:
        """Make every operation under way fail, and leave; `reconfigure` forms another group."""
        if self._has_members:
            leave_beside(self.engine, UsageError("The process group was aborted."))


def _claim(store: Store, uuid: int) -> None:
    """Let a reconfiguration have its number, for all members; raise `UsageError` if it is taken."""
    claim = secrets.token_hex(8)
    if store.compare_set("claim", "", claim) != claim.encode():
        message = f"The uuid {uuid} was already used: each reconfiguration needs a new one."
        raise UsageError(message)
