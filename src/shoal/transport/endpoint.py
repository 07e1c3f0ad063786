"""One rank's end of the transport, without a socket or a clock: datagrams in, datagrams out.

Owns the state and Python's part in it: opening it to peers, posting operations, hearing of those
that are finished. The compiled functions do the rest; `wire` calls them with real sockets,
the tests and the simulator with virtual ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from shoal.errors import ResourceError, UsageError
from shoal.transport import rates
from shoal.transport.budget import DOUBLING, FIRST_ARRIVALS
from shoal.transport.congestion import LEAST_REORDERING
from shoal.transport.credit import LARGEST_CREDIT
from shoal.transport.operations import cancel_operation, post_operation
from shoal.transport.own_queue import LEAST_BYTES
from shoal.transport.parity import parity_pool
from shoal.transport.spraying import PATH
from shoal.transport.tables import IN_MEMORY, NEAR, NEVER, Counter, State, new_state
from shoal.transport.wire import segment_bytes_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.compiled import Given
    from shoal.transport.mailboxes import PostOffice
    from shoal.transport.messages import MessageTables


@dataclass(frozen=True, slots=True)
class TransportConfig:
    """How an endpoint behaves. Ranks of a job must agree on `segment_bytes`.

    `budget_packets` is the most that all senders together may have under way to this rank; it must
    fit the socket's receive buffer. `delay_target_us` is the queueing delay that rate control aims
    at.
    """

    segment_bytes: int = segment_bytes_for(1500)
    rate_control: str = "credit"
    rate_bytes_per_us: float = 125.0
    budget_packets: int = 2048
    first_budget_packets: int = 64
    delay_target_us: float = 2_000.0
    tolerated_loss: float = 0.2
    stop_early: bool = False
    layer_tags: bool = True
    importance_tags: bool = True
    paths: int = 1
    spray_unit: int = 44
    largest_batch: int = 44
    parity: bool = True


class Endpoint:
    """The state of `rank` among `num_ranks`, and what Python does to it."""

    def __init__(
        self, rank: int, num_ranks: int, config: TransportConfig, state: State | None = None
    ) -> None:
        if config.rate_control not in rates.ALL_RATE_CONTROLS:
            message = (
                f"Unknown rate control {config.rate_control!r}; choose one of"
                f" {', '.join(rates.ALL_RATE_CONTROLS)}."
            )
            raise UsageError(message)
        self.rank, self.num_ranks, self.config = rank, num_ranks, config
        self.state: State = state or new_state(num_ranks)
        core = self.state.core
        core["rank"], core["segment_bytes"] = rank, config.segment_bytes
        core["spray_unit"] = core["path_left"] = config.spray_unit
        core["largest_batch"] = config.largest_batch
        core["layer_tags"], core["importance_tags"] = config.layer_tags, config.importance_tags
        core["rate_control"] = rates.ALL_RATE_CONTROLS[config.rate_control]
        core["stop_early"], core["slow_start"] = config.stop_early, DOUBLING
        core["budget"] = min(config.first_budget_packets, config.budget_packets)
        core["largest_budget"] = config.budget_packets
        core["delay_target"], core["tolerated_loss"] = config.delay_target_us, config.tolerated_loss
        core["interval_delay"], core["timer_at"] = 1 << 40, NEVER
        core["arrivals"] = FIRST_ARRIVALS
        self.state.peers["reordering"] = LEAST_REORDERING
        self.lay_paths(config.paths)
        core["own_limit"], core["held_at"], core["look_at"] = LEAST_BYTES, NEVER, NEVER
        core["paused_at"] = NEVER
        core["parity"], self._parity = config.parity, parity_pool(core, config.segment_bytes)
        rates.start(self.state, config.rate_bytes_per_us)
        self._free = list(range(len(self.state.operations)))
        self._running: dict[int, MessageTables] = {}
        self._office: PostOffice | None = None

    def connect(self, peer: int, *, tag_in: int, tag_out: int) -> None:
        """Talk to `peer`: its packets bear `tag_in`, and it wants `tag_out` in ours."""
        row = self.state.peers[peer]
        row["tag_in"], row["tag_out"], row["known"] = tag_in, tag_out, 1

    def lay_paths(self, count: int) -> None:
        """Send over so many paths to every peer. Before anything is posted."""
        self._paths = np.zeros(self.num_ranks * count if count > 1 else 0, PATH)
        self.state.core["paths"] = count
        self.state.core["paths_at"] = self._paths.ctypes.data

    def avoided_paths(self, now: int) -> dict[tuple[int, int], int]:
        """Return the microseconds for which each path is left alone, by rank and path."""
        until = self._paths["avoided_until"].reshape(self.num_ranks, -1)
        places = np.argwhere(until > now).tolist()
        return {(rank, path): int(until[rank, path]) - now for rank, path in places}

    def note_host(self, near: Sequence[int]) -> None:
        """Give the ranks `near`, which are on this rank's host, half of what fits; others are not.

        Once, before anything is posted.
        """
        core, peers = self.state.core, self.state.peers
        core["largest_budget"] /= 2
        core["budget"] = np.minimum(core["budget"], core["largest_budget"])
        core["near_share"] = np.clip(core["largest_budget"] // len(near), 1, LARGEST_CREDIT)
        peers["known"][list(near)] = NEAR

    def open_post(self, office: PostOffice) -> None:
        """Exchange messages with the ranks of `office` through the memory that they share.

        Once, before anything is posted.
        """
        self._office = office
        self.state.core["post"] = office.row.ctypes.data
        self.state.peers["known"][office.ranks] = IN_MEMORY

    def close_post(self) -> None:
        """Let go of the memory that is shared, if any is. Nothing is moved any more."""
        self._office, self.state.core["post"] = None, 0

    def take_share(self, share: float) -> None:
        """Send at this share of `config`'s rate: other endpoints of this rank send the rest."""
        rates.start(self.state, self.config.rate_bytes_per_us * share)

    @cached_property
    def _post(self) -> Given[bool]:
        return post_operation.given(self.state)

    @property
    def has_room(self) -> bool:
        """Whether another operation can be posted now."""
        return bool(self._free)

    def post(self, tables: MessageTables, stream: int, iteration: int, now: int) -> int:
        """Start an operation; its tables and buffers must stay until it is finished.

        Returns its slot, which `finished` yields when it is done. Raises `UsageError` if an
        operation of this stream and iteration was finished lately.
        """
        if not self._free:
            raise ResourceError("Too many transfers at once.")
        if self._paths.size:
            tables.keep_paths()
        slot = self._free[-1]
        row = self.state.operations[slot : slot + 1]
        row[:] = tables.operation
        row["stream"], row["iteration"] = stream, iteration
        if not self._post(slot, now):
            message = (
                f"Number {iteration} of this conversation has been used; use each number once."
            )
            raise UsageError(message)
        del self._free[-1]
        self._running[slot] = tables
        return slot

    def finished(self) -> list[int]:
        """Return the slots of the operations that have ended since the last call.

        Until its slot is used again, `misfit` says whether one could not be carried out.
        """
        core = self.state.core[0]
        head, tail = int(core["event_head"]), int(core["event_tail"])
        size = len(self.state.events)
        slots = [int(self.state.events[index % size]) for index in range(head, tail)]
        core["event_head"] = tail
        for slot in slots:
            if self.misfit(slot) is not None:
                cancel_operation(self.state, slot)
            del self._running[slot]
            self._free.append(slot)
        return slots

    def misfit(self, slot: int) -> int | None:
        """Return the rank that took an operation for another one, or None if none did."""
        rank = int(self.state.operations[slot]["misfit"]) - 1
        return rank if rank >= 0 else None

    def cancel(self, slot: int) -> None:
        """Forget a running operation: nothing is read or written for it any more."""
        cancel_operation(self.state, slot)
        del self._running[slot]
        self._free.append(slot)

    def counts(self, peer: int | None = None) -> dict[Counter, int]:
        """Return what has been counted for `peer`, or (None) for everyone together."""
        table = self.state.counters.sum(axis=0) if peer is None else self.state.counters[peer]
        return {counter: int(table[counter]) for counter in Counter}
