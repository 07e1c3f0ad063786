"""Meeting without torch: strangers, those who are late, those who have another key or rank."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import msgspec
import pytest
import zmq

from free_ports import free_ports_in_a_row
from shoal.control.key import JobKey
from shoal.control.rendezvous import exchange_cards
from shoal.errors import DeadlineExceeded, MismatchError, ResourceError

KEY = "a key that only this test knows"
DEADLINE_S = 20.0


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    number = free_ports_in_a_row(3)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("SHOAL_PORT", str(number))
    monkeypatch.setenv("SHOAL_JOB_KEY", KEY)
    return number


@contextmanager
def caller(port: int) -> Iterator[zmq.Socket[bytes]]:
    """Yield a socket that has the job's key and calls whoever serves at `port`."""
    key = JobKey(os.environ["SHOAL_JOB_KEY"])
    pair = key.client_pair()
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.curve_serverkey = key.server_pair().public
        dealer.curve_publickey, dealer.curve_secretkey = pair.public, pair.secret
        dealer.linger = 0
        dealer.connect(f"tcp://127.0.0.1:{port}")
        yield dealer


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"\xc1\xff\x00"],
        [b"hello", b"world"],
        [msgspec.msgpack.encode({"rank": "two"})],
        [b"\x81\xa7version\xa2\xff\xfe"],  # text that is not UTF-8
        [b"\x91" * 5000],  # nested deep
    ],
)
def test_what_is_no_arrival_is_answered_and_the_others_still_meet(
    port: int, frames: list[bytes]
) -> None:
    cards = {}

    def meet(rank: int) -> None:
        cards[rank] = exchange_cards(rank, 2, f"card {rank}".encode(), deadline_s=DEADLINE_S)

    first = threading.Thread(target=meet, args=(0,))
    first.start()
    with caller(port) as stranger:
        stranger.send_multipart(frames)
        assert stranger.poll(round(1000 * DEADLINE_S))
        answer = msgspec.msgpack.decode(stranger.recv())
    assert "install the same version" in answer["error"]
    second = threading.Thread(target=meet, args=(1,))
    second.start()
    for thread in (first, second):
        thread.join(DEADLINE_S)
    assert cards == {0: [b"card 0", b"card 1"], 1: [b"card 0", b"card 1"]}


def test_under_torchrun_a_taken_port_is_passed_over_and_so_is_another_jobs_rank(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ports after torchrun's own are nobody's: whoever dials out may have been given one."""
    monkeypatch.delenv("SHOAL_PORT")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("MASTER_PORT", str(port - 1))
    cards: dict[int, list[bytes]] = {}

    def meet(rank: int) -> None:
        cards[rank] = exchange_cards(rank, 2, f"card {rank}".encode(), deadline_s=DEADLINE_S)

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        ranks = [threading.Thread(target=meet, args=(rank,)) for rank in range(2)]
        ranks[0].start()
        with caller(port + 1) as stranger:
            arrival = {"meeting": port - 1, "rank": 1, "num_ranks": 2, "version": "", "card": b""}
            stranger.send(msgspec.msgpack.encode(arrival))
            stranger.send(b"")  # answered, so the server has seen what was sent before
            assert stranger.poll(round(1000 * DEADLINE_S))
            assert "install the same version" in msgspec.msgpack.decode(stranger.recv())["error"]
            assert not stranger.poll(0)
        ranks[1].start()
        for thread in ranks:
            thread.join(DEADLINE_S)
    assert cards == {0: [b"card 0", b"card 1"], 1: [b"card 0", b"card 1"]}


def meet(rank: int, size: int = 2, deadline_s: float = DEADLINE_S) -> list[bytes]:
    return exchange_cards(rank, size, f"card {rank}".encode(), deadline_s=deadline_s)


def until_served(port: int, meeting: Future[list[bytes]]) -> None:
    """Return once somebody listens at `port`: whoever goes to the `meeting` there as rank 0."""
    while not meeting.done():
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.01)


@pytest.mark.usefixtures("port")
def test_who_does_not_come_is_named_at_the_deadline() -> None:
    with pytest.raises(DeadlineExceeded, match=r"^Rank 1 did not come within 0\.3 s: .*\.$"):
        meet(0, deadline_s=0.3)
    with pytest.raises(DeadlineExceeded, match=r"^Rank 0 did not answer at .* within 0\.3 s: "):
        meet(1, deadline_s=0.3)


@pytest.mark.long
def test_another_job_key_is_noticed_long_before_the_deadline(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor() as ranks:
        first = ranks.submit(meet, 0, deadline_s=3)
        until_served(port, first)
        monkeypatch.setenv("SHOAL_JOB_KEY", "a key that no other rank has")
        with pytest.raises(MismatchError, match="has another job key, or is no rank 0"):
            meet(1, deadline_s=1_000_000)
        with pytest.raises(MismatchError, match=r"Rank 1 did not come .* another job key: start"):
            first.result()


def test_a_service_that_hangs_up_once_or_twice_is_no_other_key(port: int) -> None:
    """The one of a meeting that has just ended does, where the next one is to be."""
    with ThreadPoolExecutor() as ranks:
        with socket.create_server(("127.0.0.1", port)) as last:
            second = ranks.submit(meet, 1)
            for _ in range(2):
                last.accept()[0].close()
        first = ranks.submit(meet, 0)
        assert first.result() == second.result() == [b"card 0", b"card 1"]


def test_another_jobs_key_at_one_of_several_ports_is_passed_over(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor() as ranks:
        other = ranks.submit(meet, 0, deadline_s=3)
        until_served(port, other)
        monkeypatch.setenv("SHOAL_JOB_KEY", "a key that no other rank has")
        monkeypatch.delenv("SHOAL_PORT")
        monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
        monkeypatch.setenv("MASTER_PORT", str(port - 1))
        second = ranks.submit(meet, 1)
        with pytest.raises(MismatchError, match="Rank 1 did not come"):
            other.result()  # whose service has refused the second all the time
        first = ranks.submit(meet, 0)
        assert first.result() == second.result() == [b"card 0", b"card 1"]


def test_two_processes_of_one_rank_both_hear_of_it(port: int) -> None:
    with ThreadPoolExecutor() as ranks:
        first = ranks.submit(meet, 0, 3)
        until_served(port, first)
        with pytest.raises(ResourceError, match="in use: another process may have RANK=0 as well"):
            meet(0, 3)
        for each in [first, *(ranks.submit(meet, 1, 3) for _ in range(2))]:
            with pytest.raises(MismatchError, match="Two processes say that they are rank 1"):
                each.result()
