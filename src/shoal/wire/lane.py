"""A lane: an endpoint of the transport, its sockets, and the thread that moves its datagrams.

Owns the hand-over between Python threads and the compiled loop: whoever wants something moved
leaves it in a queue and wakes the loop; the lane's thread posts it, tells the transfer when it is
done, and gives it up at its deadline. Only that thread touches the endpoint's tables.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from shoal.errors import (
    DeadlineExceeded,
    MismatchError,
    ResourceError,
    ShoalError,
    UsageError,
    WorkerLost,
)
from shoal.transport import Counter, Endpoint, PostOffice, TransportConfig
from shoal.wire.memory_areas import OwnArea, area_at, blocks_of_each
from shoal.wire.paths import Interface, plan_paths
from shoal.wire.pump import EVENTS, FAILED, Sockets, new_sockets, pump
from shoal.wire.recent_traffic import RecentTraffic
from shoal.wire.sockets import address_tables, open_sockets
from shoal.wire.stats import LoopStats, loop_stats

if TYPE_CHECKING:
    from mmap import mmap

    from shoal.wire.operation_log import OperationLog
    from shoal.wire.transfer import Part, Transfer

_log = logging.getLogger(__name__)

TICK_US: Final = 200_000
"""How long the loop stays in compiled code at most, and so how late a deadline may be noticed."""


class LaneCard(msgspec.Struct, frozen=True):
    """What a rank must know of a lane of another before it can send to it."""

    addresses: list[tuple[str, int]]
    """The address and port of each of its interfaces, to which its datagrams go."""
    tags: list[int]
    """The tag that each rank has to put into its packets to this one."""


class _Task(NamedTuple):
    """A part of a transfer, in a lane's queue or under way there."""

    transfer: Transfer
    part: Part


def _misfit(transfer: Transfer, rank: int) -> MismatchError:
    message = (
        f"{transfer.what} is not what rank {rank} takes part in at this point: the collective, the"
        " number of elements, their type or the sum's options differ. All members call the same"
        " ones in the same order."
    )
    return MismatchError(message)


class Lane:
    """One of the lanes of a rank among `num_ranks`.

    `open_paths` and `load` it, then `start` it. `log` hears of what has ended, `on_failure` of what
    ends everything: an error of the receive socket.
    """

    def __init__(
        self,
        rank: int,
        num_ranks: int,
        config: TransportConfig,
        interfaces: Sequence[Interface],
        *,
        ports: range | None,
        log: OperationLog,
        on_failure: Callable[[ShoalError], None],
    ) -> None:
        self.sockets = open_sockets(interfaces, ports=ports, source_ports=config.paths)
        budget = min(config.budget_packets, self.sockets.budget_packets)
        try:
            self.endpoint = Endpoint(rank, num_ranks, replace(config, budget_packets=budget))
        except BaseException:
            self.sockets.close()
            raise
        self.tags = [secrets.randbits(32) for _ in range(num_ranks)]
        self._interfaces = interfaces
        self._log, self._on_failure = log, on_failure
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._submitted: deque[_Task] = deque()
        self._waiting: deque[_Task] = deque()
        self._running: dict[int, _Task] = {}
        self._lost: dict[int, ShoalError] = {}
        self._newly_lost: deque[tuple[int, str]] = deque()
        self._ended_owners: deque[tuple[object, ShoalError, float]] = deque()
        self._traffic = RecentTraffic()
        self._times_avoided = 0
        self._avoided: dict[tuple[int, int], int] = {}
        self._stopping = False
        self._error: ShoalError | None = None
        self._thread: threading.Thread | None = None
        self._io: Sockets | None = None
        self._area: OwnArea | None = None
        self._peers_wake_fds: list[int] = []

    @property
    def card(self) -> LaneCard:
        """What the other ranks need in order to send to this lane."""
        return LaneCard(self.sockets.addresses, self.tags)

    def open_paths(self, cards: Sequence[LaneCard | None]) -> None:
        """Lay the paths to the same lane of all ranks, whose cards are given in order.

        A rank without a card is not there: nothing is sent to it, or heard from it.
        """
        config, sockets, me = self.endpoint.config, self.sockets, self.endpoint.rank
        for rank, card in enumerate(cards):
            if card is not None and rank != me:
                self.endpoint.connect(rank, tag_in=self.tags[rank], tag_out=card.tags[me])
        own = self.card  # a row of the table for each rank, whether it is there or not
        addresses = [(card or own).addresses for card in cards]
        plan = plan_paths(len(self._interfaces), config.paths, [len(each) for each in addresses])
        first_of = sockets.senders[:: sockets.send_fds.shape[1]]
        self._source_ports = [first_of[place].getsockname()[1] for place in plan.senders]
        self._interface_of = [place % len(self._interfaces) for place in plan.senders]
        self.endpoint.lay_paths(len(plan.senders))
        fds = [receiver.fileno() for receiver in sockets.receivers]
        table, lengths = address_tables(sockets.family, addresses, plan.peers)
        self._io = new_sockets(fds, sockets.send_fds[plan.senders], table, lengths)
        row = self._io.row
        row["wake_fd"] = self._wake_fd
        row["uses_segmentation"] = sockets.segmentation
        row["uses_coalescing"] = sockets.coalescing

    def make_area(self, size: int) -> tuple[int, int] | None:
        """Make an area of memory of `size` bytes for this host's ranks; return its descriptors.

        Another rank needs them to `share` it. None if the system has no memory for it.
        """
        with suppress(OSError):
            self._area = OwnArea(size)
            return self._area.descriptors(self._wake_fd)
        return None

    def share(self, others: Mapping[int, tuple[mmap, int]]) -> None:
        """Exchange messages with ranks of this host through their areas and this lane's own.

        Each is mapped, with the eventfd that wakes its owner. Without any, the own one goes.
        """
        area, self._area = self._area, None
        if area is None:
            return
        if others:
            self._peers_wake_fds = [wake_fd for _, wake_fd in others.values()]
            mine = area_at(self.endpoint.rank, area.memory)
            theirs = [area_at(rank, *each) for rank, each in others.items()]
            share = blocks_of_each(len(others) + 1)
            self.endpoint.open_post(PostOffice(mine, theirs, self.endpoint.num_ranks, share))
        area.close()

    def load(self) -> None:
        """Load or compile what the loop calls."""
        self._pump = pump.given(self.endpoint.state, self._moving)
        self._pump(0)

    def start(self, name: str) -> None:
        """Start moving datagrams, in a thread of this name."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, transfer: Transfer, part: Part) -> None:
        """Start a part of a transfer as soon as the loop gets to it. Callable from any thread."""
        self._submitted.append(_Task(transfer, part))
        self._wake()

    def abort(self, error: ShoalError) -> None:
        """Make every running and later transfer fail with `error`. The first error stands."""
        self._error = self._error or error
        self._wake()

    def end_transfers(self, owner: object, error: ShoalError) -> None:
        """Make every transfer of `owner` fail with `error` that has been submitted so far."""
        self._ended_owners.append((owner, error, time.monotonic()))
        self._wake()

    def note_lost(self, rank: int, why: str) -> None:
        """Let the loop know that `rank` is gone, and `why`. Callable from any thread."""
        self._newly_lost.append((rank, why))
        self._wake()

    def stop(self) -> None:
        """Stop moving datagrams. Safe to call twice."""
        self._stopping = True
        if self._thread is not None:
            self._wake()
            self._thread.join()
            self._thread = None

    def close(self) -> None:
        """Close the sockets, once every lane has stopped: one that fails ends the others.

        Safe to call twice.
        """
        self.stop()
        if self._wake_fd >= 0:
            self.sockets.close()
            self.endpoint.close_post()
            for fd in (self._wake_fd, *self._peers_wake_fds):
                os.close(fd)
            self._wake_fd = -1

    @property
    def told(self) -> int:
        """How often this lane has said that a message is done."""
        return self.endpoint.counts()[Counter.STOPS]

    def transfers(self) -> list[Transfer]:
        """Return the transfers with a part that has not ended here. Callable from any thread."""
        return [task.transfer for task in self._all()]

    def loop_stats(self) -> LoopStats:
        """Return what the loop has done, in bytes of datagrams with their headers."""
        io = self._moving
        names = [each.bind for each in self._interfaces]
        sent = dict.fromkeys(names, 0)
        for interface, size in zip(self._interface_of, io.sent_bytes.tolist(), strict=True):
            sent[names[interface]] += size
        received = dict(zip(names, io.receivers["all_bytes"].tolist(), strict=True))
        return loop_stats(io.row[0], sent=sent, received=received)

    @property
    def _moving(self) -> Sockets:
        assert self._io is not None, "open_paths comes first"
        return self._io

    def _wake(self) -> None:
        if self._thread is not None:
            self._moving.row["wanted"] = 1
            os.eventfd_write(self._wake_fd, 1)

    def _run(self) -> None:
        try:
            self._move()
        except Exception as error:  # noqa: BLE001 - a defect; nobody may wait for what it ended
            what = f"The transport failed ({type(error).__name__}: {error})."
            self._on_failure(ShoalError(what))
            tasks = self._all()
            for each in (self._running, self._waiting, self._submitted):
                each.clear()
            for task in tasks:
                self._end(task, self._error)
        else:
            closed = ShoalError("The transport has been closed.")
            self._give_up(self._all(), self._error or closed)

    def _move(self) -> None:
        """Move datagrams until told to stop, or the receive socket has failed."""
        next_look = 0.0
        while not self._stopping:
            now_us = time.monotonic_ns() // 1_000
            self._post(now_us)
            why = self._pump(now_us + TICK_US)
            self._collect()
            if why == FAILED:
                number = int(self._moving.row["last_error"][0])
                self._on_failure(
                    ResourceError(f"The receive socket failed: {os.strerror(number)}.")
                )
                return
            self._note_losses()
            self._end_owned()
            if self._error is not None:
                self._give_up(self._all(), self._error)
            elif why != EVENTS and time.monotonic() >= next_look:
                self._traffic.note(self.endpoint.state.counters, time.monotonic())
                self._give_up_late()
                self._say_what_is_avoided()
                next_look = time.monotonic() + TICK_US / 1e6

    def _post(self, now_us: int) -> None:
        while self._submitted:
            self._waiting.append(self._submitted.popleft())
        while self._waiting and self.endpoint.has_room:
            task = self._waiting.popleft()
            transfer, tables = task.transfer, task.part.tables
            lost = [rank for rank in tables.peers if rank in self._lost]
            if lost:
                self._end(task, self._lost[lost[0]])
                continue
            key = transfer.stream, transfer.iteration
            try:
                self._running[self.endpoint.post(tables, *key, now_us)] = task
            except UsageError as error:
                task.part.give_back()
                self._end(task, error)
            except BaseException:
                self._waiting.appendleft(task)  # who waits for it has to hear of this
                raise

    def _collect(self) -> None:
        for slot in self.endpoint.finished():
            task = self._running.pop(slot)
            transfer, part = task
            other = self.endpoint.misfit(slot)
            if other is not None:
                self._end(task, _misfit(transfer, other))
                transfer.deadline = 0.0  # of its parts on other lanes, which cannot end either
                continue
            if not transfer.patient:
                # one part tells how long peers were waited for; others would count it again
                since_us = int(transfer.submitted * 1e6) if part is transfer.parts[0] else None
                self._log.note_messages(part.tables, since_us=since_us)
            if part.account is not None:
                self._log.note_sum(part.tables, part.account)
            part.give_back()
            self._end(task, None)

    def _end(self, task: _Task, error: ShoalError | None) -> None:
        """Note that a part has ended, and if it was the last let the waiting caller go on."""
        transfer = task.transfer
        if not transfer.end_part(error):
            return
        if not transfer.patient:
            now_s, failed = time.monotonic(), transfer.error is not None
            wait_s = now_s - transfer.submitted
            self._log.note(transfer.kind, wait_s, failed=failed, ended_s=now_s)
        transfer.finish()

    def _note_losses(self) -> None:
        while self._newly_lost:
            rank, why = self._newly_lost.popleft()
            error = WorkerLost(f"Rank {rank} is gone: {why}.", rank)
            self._lost[rank] = error
            self.endpoint.state.peers[rank]["lost"] = 1
            self._give_up([task for task in self._all() if rank in task.part.tables.peers], error)

    def _end_owned(self) -> None:
        while self._ended_owners:
            owner, error, moment = self._ended_owners.popleft()
            mine = [task for task in self._all() if task.transfer.owner is owner]
            # what has been submitted since is not meant: its owner may have gone on by now
            self._give_up([task for task in mine if task.transfer.submitted <= moment], error)

    def _give_up_late(self) -> None:
        now = time.monotonic()
        for task in [each for each in self._all() if each.transfer.deadline <= now]:
            transfer = task.transfer
            peers = task.part.tables.unfinished_peers()
            ranks = ", ".join(map(str, peers))
            message = (
                f"{transfer.what} was not done within the timeout of {transfer.limit_s:g} s;"
                f" it waits for rank {ranks or 'nobody'}."
                f"{self._traffic.explain(peers, self.endpoint.config.segment_bytes)}"
            )
            self._give_up([task], DeadlineExceeded(message))

    def _say_what_is_avoided(self) -> None:
        """Log the source ports that have been left alone since the last look."""
        times = self.endpoint.counts()[Counter.AVOIDED]
        if times == self._times_avoided:
            return
        self._times_avoided = times
        avoided = self.endpoint.avoided_paths(time.monotonic_ns() // 1_000)
        for rank, path in avoided.keys() - self._avoided.keys():
            _log.info(
                "Packets to rank %d from port %d get lost more often than from other ports: none"
                " is sent from there for %.1f s.",
                rank,
                self._source_ports[path],
                avoided[rank, path] / 1e6,
            )
        self._avoided = avoided

    def _all(self) -> list[_Task]:
        return [*self._running.values(), *self._waiting, *self._submitted]

    def _give_up(self, tasks: Sequence[_Task], error: ShoalError) -> None:
        """Cancel parts of transfers wherever they stand."""
        slots = {id(task): slot for slot, task in self._running.items()}
        for task in tasks:
            slot = slots.get(id(task))
            if slot is not None:
                self.endpoint.cancel(slot)
                del self._running[slot]
            else:
                for queue in (self._waiting, self._submitted):
                    if task in queue:
                        queue.remove(task)
            self._end(task, error)
