"""torchft's replicas over Shoal's transport: a process group for its `Manager`.

    manager = torchft.Manager(pg=ProcessGroupShoal(timeout=timedelta(seconds=5)), ...)

It stands in the place of `torchft.ProcessGroupGloo`; all else of a script stays. Owns how a group
is formed for each quorum, and how torchft hears of errors. Who takes part, who hands its state on
and which step counts is torchft's to decide.
"""

from __future__ import annotations

import logging
import os
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from shoal.adapters.torch_process_group import ShoalProcessGroup
from shoal.adapters.torch_work import TransportWork, leave_beside
from shoal.errors import ShoalError, UsageError
from shoal.extras import install
from shoal.session import group_alone, over_store
from shoal.wire import from_environment

try:
    from torchft.process_group import ProcessGroupWrapper
except ModuleNotFoundError as missing:
    if missing.name is None or missing.name.partition(".")[0] != "torchft":
        raise
    sentence = f"shoal.adapters.torchft needs torchft: {install('torchft')}."
    raise ImportError(sentence) from None

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import Store  # type: ignore[attr-defined]  # torch's own omission

    from shoal.wire import Settings

_log = logging.getLogger(__name__)

_USUAL: Final = timedelta(seconds=60)


class ProcessGroupShoal(ProcessGroupWrapper):
    """A group of torchft's replicas over Shoal's transport, formed anew for each quorum.

    `timeout` bounds the forming of a group and every operation, as that of `ProcessGroupGloo`.
    What SHOAL_LOSS_BOUND, SHOAL_WIRE and the transport's other variables say holds for sums, as for
    the backend "shoal".

    A sum that fails raises nothing: it is over, and `errored` says why, so that torchft does not
    count the step and forms another group. Other operations raise what has ended them. Raises
    `UsageError` for variables that mean nothing.
    """

    _pg: ShoalProcessGroup | None

    def __init__(self, timeout: timedelta = _USUAL) -> None:
        super().__init__(timeout)
        from_environment()  # a mistake is told here, and not in every quorum
        self._error: Exception | None = None
        self._meeting_host = ""

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Return the name that torchft registers the group under."""
        return "torchft-shoal"

    def configure(self, store_addr: str, *arguments: Any, **named: Any) -> None:
        """Leave the present group and form another; collective among its members.

        `store_addr` is where they meet, as host:port/prefix, new in each call; the rest is
        torchft's: `replica_id`, `rank`, `world_size` and so on. A group that does not come about
        raises nothing: `errored` says why, and torchft tries again with its next quorum.
        """
        self.abort(errored=False)
        self._error = None
        self._meeting_host = store_addr.partition("/")[0].rpartition(":")[0].strip("[]")
        try:
            super().configure(store_addr, *arguments, **named)
        except (ShoalError, RuntimeError, OSError) as error:
            self._fail(f"No group was formed: {error}", error)

    def _create_pg(self, store: Store, rank: int, world_size: int) -> ShoalProcessGroup:
        deadline_s = self._timeout.total_seconds()
        settings = _settings(self._meeting_host)
        exchange = over_store(store, rank, world_size, deadline_s, settings=settings)
        group = group_alone(rank, world_size, exchange, deadline_s=deadline_s, settings=settings)
        return ShoalProcessGroup.over(group, sums=settings.sums)

    def allreduce(self, tensors: list[Tensor], opts: Any) -> TransportWork:
        """Reduce over all replicas, in place; over at once if the group has failed."""
        if self._error is not None:
            return TransportWork(tensors).seal()
        work: TransportWork = super().allreduce(tensors, opts)
        return work.forgiving()

    def _wrap_work(self, work: TransportWork, opts: object) -> TransportWork:
        work.tell(partial(self._note, self._pg))
        return work

    def _note(self, group: ShoalProcessGroup | None, error: BaseException | None) -> None:
        """Take note of how an operation has ended, unless its group has been left meanwhile."""
        if isinstance(error, Exception) and group is self._pg and self._error is None:
            self._fail(f"An operation failed, so this step does not count: {error}", error)

    def _fail(self, message: str, error: Exception) -> None:
        self._error = error
        _log.warning("%s", message)

    def errored(self) -> Exception | None:
        """Return what has ended the present group; None while it goes on."""
        return self._error

    @property
    def parent(self) -> ShoalProcessGroup:
        """The present group. Raises what has ended it, or `UsageError` if there was none yet."""
        if self._pg is None:
            raise self._error or UsageError("This process group has no members: configure() first.")
        return self._pg

    def set_timeout(self, timeout: timedelta) -> None:
        """Bound what begins from now on by `timeout`."""
        super().set_timeout(timeout)
        if self._pg is not None:
            self._pg.engine.deadline_s = timeout.total_seconds()

    def abort(self, errored: bool = True) -> None:
        """Make every operation under way fail, and leave, without waiting for anybody.

        Unless told that nothing has `errored`, the group has failed from then on.
        """
        group, self._pg = self._pg, None
        super().abort(errored)  # there is no group left for it, but a line in torchft's log
        aborted = UsageError("The process group was aborted.")
        if errored and self._error is None:
            self._error = aborted
        if group is not None:
            leave_beside(group.engine, aborted)

    def shutdown(self) -> None:
        """Leave the group, and close the transport."""
        group, self._pg = self._pg, None
        if group is not None:
            group.shutdown()


def _settings(meeting_host: str) -> Settings:
    """Return what the environment says of the transport of replicas that meet at a host.

    MASTER_ADDR and LOCAL_WORLD_SIZE are of the ranks within this replica: others reach it by the
    address from which it reaches the host where all meet, and are on hosts of their own.
    """
    given = {**os.environ, "MASTER_ADDR": meeting_host}
    given.pop("LOCAL_WORLD_SIZE", None)
    return from_environment(given)
