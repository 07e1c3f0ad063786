"""One engine for all users of a process's transport, each with a share of its own.

torch's process groups, strategies and other users of the transport among the same ranks use one
set of sockets. Owns the users of an engine: the first opens it, the last one to leave closes it.
An abort or deadline of one user touches its transfers only. Names of conversations are made of the
kind of user and of how many asked before, so no two users share a stream.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from shoal.carriers import TransportCommunicator
from shoal.errors import ShoalError
from shoal.membership import View
from shoal.session.transport_alone import open_engine
from shoal.wire import TransportGroup, from_environment, stream_of

if TYPE_CHECKING:
    from shoal.carriers import LossOptions
    from shoal.membership import Preparation
    from shoal.session.card_exchange import Exchange
    from shoal.transport import Endpoint
    from shoal.wire import Settings, Transfer, TransportStats, UdpEngine


@dataclass(eq=False)
class _Shared:
    """An open engine and its users."""

    engine: UdpEngine
    ranks: tuple[int, ...]
    users: int = 0
    conversations: Counter[Hashable] = field(default_factory=Counter)
    """How often a stream was asked for, by its meaning."""


class EngineShare:
    """One user's share of an engine: works like an engine, for the user's transfers alone.

    `deadline_s` bounds its transfers, whatever the engine was opened with. Made by `share_engine`.
    """

    def __init__(self, shared: _Shared, deadline_s: float) -> None:
        self._shared = shared
        self.deadline_s = deadline_s
        self._ended: ShoalError | None = None
        self._interrupted: ShoalError | None = None
        self._lock = threading.RLock()
        self._left = False

    @classmethod
    def alone(cls, engine: UdpEngine, deadline_s: float) -> EngineShare:
        """Return the share of the only user of an engine that no one else will ask for."""
        return cls(_Shared(engine, tuple(range(engine.endpoint.num_ranks)), 1), deadline_s)

    def move_to(self, engine: UdpEngine) -> UdpEngine | None:
        """Go on over another engine, of which this is the only user, with the same conversations.

        Return the previous engine, to be closed, if it has no users any more.
        """
        before = self._shared
        ranks = tuple(range(engine.endpoint.num_ranks))
        with _lock:
            self._shared = _Shared(engine, ranks, 1, Counter(before.conversations))
            before.users -= 1
            return None if before.users else before.engine

    @property
    def engine(self) -> UdpEngine:
        """The shared engine."""
        return self._shared.engine

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of the job that the engine joins, in the order in which it numbers them."""
        return self._shared.ranks

    @property
    def endpoint(self) -> Endpoint:
        """The engine's endpoint."""
        return self.engine.endpoint

    @property
    def lane_count(self) -> int:
        """The engine's number of lanes."""
        return self.engine.lane_count

    @property
    def hosts(self) -> Sequence[str]:
        """The engine's hosts."""
        return self.engine.hosts

    @property
    def shares_memory(self) -> bool:
        """Whether the engine's ranks of this host exchange messages through memory."""
        return self.engine.shares_memory

    @property
    def error(self) -> ShoalError | None:
        """The error with which every operation of this user fails at present; None: none fails."""
        return self._ended or self._interrupted

    def new_stream(self, *meaning: Hashable) -> int:
        """Return a stream that has not been used on this engine; the same on all ranks.

        All ranks that take part must ask for streams of this `meaning` in the same order.
        """
        with _lock:
            before = self._shared.conversations[meaning]
            self._shared.conversations[meaning] += 1
        return stream_of(*meaning, before)

    def submit(self, transfer: Transfer) -> Transfer:
        """Start a transfer; see `UdpEngine.submit`."""
        transfer.limit_s = transfer.limit_s or self.deadline_s
        transfer.owner = self
        with self._lock:
            error = self.error
            if error is None:
                return self.engine.submit(transfer)
        transfer.refuse(error)
        return transfer

    def stats(self) -> TransportStats:
        """Return a snapshot of the engine's counts, of all of its users."""
        return replace(self.engine.stats(), deadline_s=self.deadline_s)

    def abort(self, error: ShoalError) -> None:
        """Make every running and later transfer of this user fail. The first error stands."""
        with self._lock:
            self._ended = error = self._ended or error
        self.engine.end_transfers(self, error)

    def interrupt(self, error: ShoalError) -> None:
        """Make every running transfer of this user fail, and later ones until `resume`."""
        with self._lock:
            self._interrupted = error
        self.engine.end_transfers(self, error)

    def resume(self) -> None:
        """Let transfers begin again after `interrupt`."""
        with self._lock:
            self._interrupted = None

    def close(self) -> None:
        """Leave the engine; the last user closes it. Safe to call twice."""
        with _lock:
            if self._left:
                return
            self._left = True
            self._shared.users -= 1
            last = self._shared.users == 0
        if last:
            self.engine.close()
        self.abort(ShoalError("The transport has been closed."))


_lock = threading.RLock()
_open: dict[tuple[int, tuple[int, ...]], _Shared] = {}
"""The open engines by process, for a forked process does not use its parent's, and by the ranks
that they join."""


def open_engines() -> list[UdpEngine]:
    """Return the engines that are open in this process, the one that joins most ranks first."""
    mine = [key for key, shared in _open.items() if _is_open(key, shared)]
    return [_open[key].engine for key in sorted(mine, key=lambda key: -len(key[1]))]


def share_engine(
    rank: int,
    members: tuple[int, ...],
    world_size: int,
    exchange: Exchange,
    *,
    deadline_s: float,
) -> EngineShare:
    """Return a share in this process's engine, and open one if necessary; collective.

    An engine among all ranks of the job serves any `members`; if none is open, one that joins just
    these does, in which they are numbered by their places in `members`: `exchange` is then used.
    All members use the same one. `deadline_s` bounds the opening and the share's transfers.

    Raises the errors of `open_engine`.
    """
    everyone = tuple(range(world_size))
    with _lock:
        for ranks in (everyone, members):
            key = os.getpid(), ranks
            shared = _open.get(key)
            if shared is not None and _is_open(key, shared):
                break
        else:
            me, size = members.index(rank), len(members)
            engine = open_engine(me, size, exchange, deadline_s=deadline_s)
            shared = _open[os.getpid(), members] = _Shared(engine, members)
        shared.users += 1
    return EngineShare(shared, deadline_s)


def group_alone(
    me: int,
    size: int,
    exchange: Exchange,
    *,
    deadline_s: float,
    settings: Settings | None = None,
) -> TransportGroup:
    """Return a group over an engine of its own, whatever others this process has; collective.

    `deadline_s` bounds the opening and the group's transfers, until its engine is given another.
    Raises the errors of `open_engine`.
    """
    engine = open_engine(me, size, exchange, deadline_s=deadline_s, settings=settings)
    share, ranks = EngineShare.alone(engine, deadline_s), tuple(range(size))
    return TransportGroup(share, ranks, share.new_stream("group"))


def communicator_over(
    share: EngineShare,
    loss: LossOptions,
    on_peer_error: Callable[[int | None, str, int], None] | None = None,
    view: View | None = None,
) -> TransportCommunicator:
    """Return a communicator for strategies with conversations of its own; do not close it.

    All members of `view` (by default all that the engine joins) make theirs in the same order.
    """
    return TransportCommunicator(
        share,
        loss=loss,
        algorithm=from_environment().sums.algorithm,
        on_peer_error=on_peer_error,
        stream=share.new_stream("communicator"),
        view=view,
    )


def communicator_ahead(engine: UdpEngine, preparation: Preparation) -> TransportCommunicator:
    """Return a communicator over the engine of a `preparation`, before the view that it is for."""
    ranks = preparation.ranks
    view = View(0, ranks, (0,) * len(ranks))  # messages between two ask for nobody's host
    return TransportCommunicator(engine, stream=stream_of("ahead"), view=view)


def _is_open(key: tuple[int, tuple[int, ...]], shared: _Shared) -> bool:
    return key[0] == os.getpid() and not shared.engine.is_closed and shared.users > 0
