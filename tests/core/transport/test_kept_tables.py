"""Tables of operations are made once for a shape, however many shapes a training needs by turns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from shoal.transport.endpoint import Endpoint, TransportConfig
from shoal.transport.forms import FLOAT32
from shoal.wire import group as groups
from shoal.wire.group import Memory, TransportGroup

if TYPE_CHECKING:
    import pytest

    from shoal.errors import ShoalError
    from shoal.transport.messages import MessageTables
    from shoal.wire.stats import TransportStats
    from shoal.wire.transfer import Transfer

WORKERS = 64
MESSAGES = (("request", 20), ("gradients", 1000), ("answer", 2), ("weights", 1001))


@dataclass
class ImmediateCarrier:
    """Carries out what it is asked for at once, as far as tables can tell."""

    endpoint: Endpoint
    deadline_s: float = 1.0
    lane_count: int = 1
    hosts: tuple[str, ...] = ("a",) * WORKERS
    shares_memory: bool = False
    used: list[MessageTables] = field(default_factory=list)

    def submit(self, transfer: Transfer) -> Transfer:
        (part,) = transfer.parts
        self.used.append(part.tables)
        part.give_back()
        transfer.finish()
        return transfer

    def stats(self) -> TransportStats:
        raise NotImplementedError

    def abort(self, error: ShoalError) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def make_a_step(carrier: ImmediateCarrier, group: TransportGroup) -> list[MessageTables]:
    """Be a parameter server and its worker for one step; return the tables used, in order."""
    carrier.used = []
    for peer in range(1, WORKERS):
        for name, count in MESSAGES:
            array = np.zeros(count, np.float32)
            memory = Memory(array.ctypes.data, count, FLOAT32, array)
            group.send(memory, peer, tag=len(name))
            group.receive(memory, peer, tag=len(name))
    return carrier.used


def test_a_parameter_server_among_64_workers_makes_no_tables_after_its_first_step() -> None:
    carrier = ImmediateCarrier(Endpoint(0, WORKERS, TransportConfig()))
    group = TransportGroup(carrier, tuple(range(WORKERS)), stream=1)
    first = make_a_step(carrier, group)
    assert len({id(tables) for tables in first}) == 2 * len(MESSAGES) * (WORKERS - 1)
    again = make_a_step(carrier, group)
    assert all(mine is before for mine, before in zip(again, first, strict=True))


def test_shapes_that_are_used_outlive_those_that_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "KEPT_SHAPES", 8)
    carrier = ImmediateCarrier(Endpoint(0, 2, TransportConfig()))
    group = TransportGroup(carrier, (0, 1), stream=1)

    def send(count: int) -> MessageTables:
        array = np.zeros(count, np.float32)
        group.send(Memory(array.ctypes.data, count, FLOAT32, array), 1)
        return carrier.used[-1]

    first, second = send(100), send(101)
    for other in range(1, 30):
        send(other)
        assert send(100) is first
    assert send(101) is not second
    assert len(group._tables) == 8
