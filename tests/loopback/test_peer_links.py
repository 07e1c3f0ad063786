"""Connections between ranks: a stranger, who knows no tag, is hung up on and not counted."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from shoal.errors import ResourceError
from shoal.wire.links import LinkListener, PeerLinks

TAGS = ([0, 11], [22, 0])
"""By rank: the tag that each other one has to bring."""
STRANGERS = {
    "another tag": struct.pack("<4sHI", b"shl1", 0, 23),
    "another protocol": struct.pack("<4sHI", b"GET ", 0, 22),
    "a rank that dials nobody": struct.pack("<4sHI", b"shl1", 1, 22),
    "a rank that does not exist": struct.pack("<4sHI", b"shl1", 65_535, 22),
    "half a word": b"shl1",
}


@contextlib.contextmanager
def listeners() -> Iterator[list[LinkListener]]:
    opened = [LinkListener(socket.AF_INET, "127.0.0.1", None) for _ in range(2)]
    try:
        yield opened
    finally:
        for each in opened:
            each.close()


def join(
    me: int,
    all_of: list[LinkListener],
    lost: list[int],
    deadline_s: float,
    silence_s: float = 60.0,
) -> PeerLinks:
    return PeerLinks.join(
        me,
        [("127.0.0.1", each.port) for each in all_of],
        tags_in=TAGS[me],
        tags_out=[tags[me] for tags in TAGS],
        listener=all_of[me],
        deadline_s=deadline_s,
        silence_s=silence_s,
        on_lost=lambda rank, _why: lost.append(rank),
    )


@pytest.mark.parametrize("hello", STRANGERS.values(), ids=STRANGERS)
def test_a_stranger_is_hung_up_on_and_the_rank_is_still_met(hello: bytes) -> None:
    with listeners() as opened, socket.socket() as stranger, ThreadPoolExecutor(1) as threads:
        stranger.settimeout(20)
        stranger.connect(("127.0.0.1", opened[1].port))
        stranger.sendall(hello)
        if len(hello) < 10:
            stranger.shutdown(socket.SHUT_WR)
        called = threads.submit(join, 1, opened, [], 20.0)
        assert stranger.recv(1) == b"", "it is hung up on"
        caller = join(0, opened, [], 20.0)
        links = called.result()
        links.close()
        caller.close()


def test_nobody_but_strangers_is_a_missing_rank() -> None:
    with listeners() as opened, socket.socket() as stranger:
        stranger.connect(("127.0.0.1", opened[1].port))
        stranger.sendall(STRANGERS["another tag"])
        with pytest.raises(ResourceError, match=r"Ranks \[0\] did not connect within 0\.5 s"):
            join(1, opened, [], 0.5)


def test_the_end_of_a_connection_is_told_by_its_rank() -> None:
    lost: list[int] = []
    told = threading.Event()

    class Lost(list[int]):
        def append(self, rank: int) -> None:
            lost.append(rank)
            told.set()

    with listeners() as opened, ThreadPoolExecutor(1) as threads:
        called = threads.submit(join, 1, opened, Lost(), 20.0)
        caller = join(0, opened, [], 20.0)
        links = called.result()
        caller.close()
        assert told.wait(20)
        links.close()
    assert lost == [0]


def test_callers_that_say_nothing_keep_nobody_waiting() -> None:
    with contextlib.ExitStack() as opened_for_it:
        opened = opened_for_it.enter_context(listeners())
        for _ in range(100):
            silent = opened_for_it.enter_context(socket.socket())
            silent.connect(("127.0.0.1", opened[1].port))
        with ThreadPoolExecutor(1) as threads:
            called = threads.submit(join, 1, opened, [], 20.0)
            join(0, opened, [], 20.0).close()
            called.result().close()


def test_ports_that_connections_linger_at_can_be_listened_on_again() -> None:
    with listeners() as opened, ThreadPoolExecutor(1) as threads:
        port = opened[1].port
        called = threads.submit(join, 1, opened, [], 20.0)
        caller = join(0, opened, [], 20.0)
        called.result().close()  # who ends a connection first is left with its port
        caller.close()
    LinkListener(socket.AF_INET, "127.0.0.1", range(port, port + 1)).close()


def test_a_forked_process_does_not_hide_the_end_of_its_parent_s_connections() -> None:
    told = threading.Event()

    class Lost(list[int]):
        def append(self, rank: int) -> None:
            told.set()

    with listeners() as opened, ThreadPoolExecutor(1) as threads:
        called = threads.submit(join, 1, opened, Lost(), 20.0)
        caller = join(0, opened, [], 20.0)
        links = called.result()
        ready, going = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            os.write(ready[1], b".")
            os.read(going[0], 1)
            os._exit(0)
        try:
            os.read(ready[0], 1)
            caller.close()
            assert told.wait(20)
        finally:
            os.write(going[1], b".")
            os.waitpid(child, 0)
            for each in (*ready, *going):
                os.close(each)
        links.close()


def test_a_rank_that_is_silent_is_lost_and_one_that_beats_is_not() -> None:
    heard, told = [], threading.Event()

    def note(rank: int, why: str) -> None:
        heard.append((rank, why))
        told.set()

    beating, other = socket.socketpair()
    silent, stopped = socket.socketpair()
    with stopped:
        links = PeerLinks({0: beating, 2: silent}, note, silence_s=0.5)
        peer = PeerLinks({1: other}, lambda _rank, _why: None, silence_s=0.5)
        assert told.wait(20)
        assert heard == [(2, "it was silent for more than 0.5 s")]
        links.close()
        peer.close()


def test_a_rank_that_has_said_goodbye_may_be_silent() -> None:
    here, there = socket.socketpair()
    heard: list[int] = []
    links = PeerLinks({1: here}, lambda rank, _why: heard.append(rank), silence_s=0.2)
    peer = PeerLinks({0: there}, lambda rank, _why: None, silence_s=60.0)
    peer.say_goodbye()
    assert links.wait_for_all(20)
    time.sleep(1.0)  # several times its silence
    assert heard == []
    links.close()
    peer.close()
