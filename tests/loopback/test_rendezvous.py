"""Meeting without torch: what rank 0 makes of messages that are no arrival."""

from __future__ import annotations

import os
import socket
import threading

import msgspec
import pytest
import zmq

from shoal.runtime.control.key import JobKey
from shoal.runtime.rendezvous import exchange_cards

KEY = "a key that only this test knows"
DEADLINE_S = 20.0


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number = int(probe.getsockname()[1])
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("SHOAL_PORT", str(number))
    monkeypatch.setenv("SHOAL_JOB_KEY", KEY)
    return number


@pytest.mark.parametrize(
    "frames",
    [[b""], [b"\xc1\xff\x00"], [b"hello", b"world"], [msgspec.msgpack.encode({"rank": "two"})]],
)
def test_what_is_no_arrival_is_answered_and_the_others_still_meet(
    port: int, frames: list[bytes]
) -> None:
    cards = {}

    def meet(rank: int) -> None:
        cards[rank] = exchange_cards(rank, 2, f"card {rank}".encode(), deadline_s=DEADLINE_S)

    first = threading.Thread(target=meet, args=(0,))
    first.start()
    key = JobKey(os.environ["SHOAL_JOB_KEY"])
    pair = key.client_pair()
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.curve_serverkey = key.server_pair().public
        stranger.curve_publickey, stranger.curve_secretkey = pair.public, pair.secret
        stranger.linger = 0
        stranger.connect(f"tcp://127.0.0.1:{port}")
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
        key = JobKey(os.environ["SHOAL_JOB_KEY"])
        pair = key.client_pair()
        with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
            stranger.curve_serverkey = key.server_pair().public
            stranger.curve_publickey, stranger.curve_secretkey = pair.public, pair.secret
            stranger.linger = 0
            stranger.connect(f"tcp://127.0.0.1:{port + 1}")
            arrival = {"meeting": port - 1, "rank": 1, "world_size": 2, "version": "", "card": b""}
            stranger.send(msgspec.msgpack.encode(arrival))
            stranger.send(b"")  # answered, so the server has seen what was sent before
            assert stranger.poll(round(1000 * DEADLINE_S))
            assert "install the same version" in msgspec.msgpack.decode(stranger.recv())["error"]
            assert not stranger.poll(0)
        ranks[1].start()
        for thread in ranks:
            thread.join(DEADLINE_S)
    assert cards == {0: [b"card 0", b"card 1"], 1: [b"card 0", b"card 1"]}
