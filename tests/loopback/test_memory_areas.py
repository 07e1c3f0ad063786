"""Ranks of a host exchange messages through memory, over real descriptors; or none of them does."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.errors import DeadlineExceeded, ResourceError, WorkerLost
from shoal.transport.endpoint import TransportConfig
from shoal.transport.forms import FLOAT32
from shoal.transport.tables import IN_MEMORY, NEAR, Counter
from shoal.wire import memory_areas
from shoal.wire.engine import UdpEngine
from shoal.wire.group import Memory, TransportGroup
from shoal.wire.memory_areas import Handover
from shoal.wire.sum_options import SumOptions

LENGTH = 300_000


def engine(
    rank: int,
    size: int,
    host: int = 1,
    *,
    shares: bool = True,
    lanes: int = 1,
    deadline_s: float = 5,
) -> UdpEngine:
    return UdpEngine(
        rank,
        size,
        TransportConfig(),
        deadline_s=deadline_s,
        bind=f"127.0.0.{host}",
        lane_count=lanes,
        shares_memory=shares,
    )


@contextlib.contextmanager
def started(made: Sequence[UdpEngine]) -> Iterator[Sequence[UdpEngine]]:
    """Yield engines of this process that have met."""
    with ThreadPoolExecutor(len(made)) as threads:  # each waits for the others
        try:
            cards = [each.card for each in made]
            list(threads.map(lambda each: each.start(cards), made))
            yield made
        finally:
            list(threads.map(lambda each: each.close(), made))


def sum_up(made: Sequence[UdpEngine], **options: Any) -> list[Any]:
    """Return each rank's sum of all arrays."""
    size = len(made)
    arrays = [np.arange(LENGTH, dtype=np.float32) % 97 * (rank + 1) for rank in range(size)]
    groups = [TransportGroup(each, tuple(range(size)), 3) for each in made]
    transfers = [
        group.all_reduce(
            Memory(array.ctypes.data, LENGTH, FLOAT32, array), SumOptions(**options), iteration=1
        )
        for group, array in zip(groups, arrays, strict=True)
    ]
    for each in transfers:
        each.wait()
    return arrays


def share_by_memory(made: UdpEngine) -> float:
    counts = made.counts()
    return counts[Counter.BY_MEMORY_BYTES] / counts[Counter.SENT_BYTES]


@pytest.mark.parametrize("algorithm", ["auto", "direct", "ring"])
@pytest.mark.parametrize("lanes", [1, 2])
def test_a_sum_inside_a_host_goes_through_memory_alone(algorithm: str, lanes: int) -> None:
    with started([engine(rank, 3, lanes=lanes) for rank in range(3)]) as made:
        expected = np.arange(LENGTH, dtype=np.float32) % 97 * 6
        assert all((each == expected).all() for each in sum_up(made, algorithm=algorithm))
        for each in made:
            assert each.shares_memory
            assert share_by_memory(each) == 1
            assert each.stats().loop.send_calls == 0


def test_ranks_of_other_hosts_get_datagrams() -> None:
    hosts = [1, 1, 2, 2]
    with started([engine(rank, 4, host) for rank, host in enumerate(hosts)]) as made:
        expected = np.arange(LENGTH, dtype=np.float32) % 97 * 10
        assert all((each == expected).all() for each in sum_up(made, algorithm="direct"))
        known = made[0].endpoint.state.peers["known"]
        assert known.tolist() == [0, IN_MEMORY, 1, 1]
        assert 0 < share_by_memory(made[0]) < 1


def test_if_one_does_not_want_it_none_of_its_host_does() -> None:
    made = [engine(0, 4), engine(1, 4, shares=False), engine(2, 4, 2), engine(3, 4, 2)]
    with started(made):
        expected = np.arange(LENGTH, dtype=np.float32) % 97 * 10
        assert all((each == expected).all() for each in sum_up(made))
        assert [each.shares_memory for each in made] == [False, False, True, True]
        assert made[0].endpoint.state.peers["known"].tolist() == [0, NEAR, 1, 1]


@pytest.mark.parametrize("what", ["memory", "socket", "mapping"])
def test_if_one_cannot_none_does(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [engine(rank, 3) for rank in range(3)]
    failed = []

    def fail(*_: object) -> Any:
        failed.append(threading.current_thread())
        raise OSError

    if what == "memory":
        monkeypatch.setattr(made[1].lanes[0], "make_area", lambda _: failed.append(None))
    elif what == "socket":
        assert made[0]._handover is not None
        made[0]._handover._socket.close()  # as in another network namespace
        made[0]._handover._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        made[0]._handover._socket.setblocking(False)
        failed.append(None)
    else:
        monkeypatch.setattr(memory_areas.mmap, "mmap", fail)
    with started(made):
        monkeypatch.undo()
        expected = np.arange(LENGTH, dtype=np.float32) % 97 * 6
        assert all((each == expected).all() for each in sum_up(made))
        assert failed
        assert not any(each.shares_memory for each in made)


def test_a_stranger_gets_no_memory() -> None:
    hello = struct.pack("<4sHI", b"shm1", 1, 12345)
    made = [engine(rank, 2) for rank in range(2)]
    assert made[0]._handover is not None
    name = b"\0" + made[0]._handover.name.encode()
    with contextlib.ExitStack() as callers:
        for said in (hello, b"x", b""):
            caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            callers.enter_context(caller)
            caller.connect(name)
            if said:
                socket.send_fds(caller, [said], [caller.fileno()] * 2)
        with started(made):
            assert all(each.shares_memory for each in made)
            sum_up(made)
        caller.setblocking(False)
        assert caller.recv(100) == b""  # hung up on


def test_a_rank_that_ends_or_does_not_come_is_named() -> None:
    with started([engine(rank, 3, deadline_s=2) for rank in range(3)]) as made:
        groups = [TransportGroup(each, (0, 1, 2), 3) for each in made]
        arrays = [np.zeros(LENGTH, np.float32) for _ in made]
        first = [
            group.all_reduce(Memory(array.ctypes.data, LENGTH, FLOAT32, array))
            for group, array in zip(groups[:2], arrays, strict=False)
        ]
        with pytest.raises(DeadlineExceeded, match="it waits for rank 1, 2"):
            first[0].wait()
        second = groups[0].all_reduce(Memory(arrays[0].ctypes.data, LENGTH, FLOAT32, arrays[0]))
        for lane in made[0].lanes:
            lane.note_lost(2, "its connection has ended")
        with pytest.raises(WorkerLost, match="Rank 2 is gone"):
            second.wait()


def test_nothing_is_left_open() -> None:
    during: list[int] = []

    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    def maps() -> int:
        lines = Path("/proc/self/maps").read_text().splitlines()
        return sum("memfd:shoal" in line for line in lines)

    sum_up_among_two(lambda: None)  # what is opened once
    before = descriptors(), maps()
    sum_up_among_two(lambda: during.append(maps()))
    assert during == [before[1] + 4]
    assert (descriptors(), maps()) == before


def sum_up_among_two(then: Callable[[], None]) -> None:
    with started([engine(rank, 2) for rank in range(2)]) as made:
        sum_up(made)
        then()


def test_an_answer_that_does_not_come_ends_the_start() -> None:
    near, far = socket.socketpair()
    tags = [0, 0]
    with (
        near,
        far,
        contextlib.closing(Handover(0)) as handover,
        pytest.raises(ResourceError, match="Rank 1, which is on this host, did not answer"),
    ):
        handover.exchange(
            [], {1: ""}, {1: near}, size=1, tags_in=tags, tags_out=tags, deadline_s=0.1
        )
