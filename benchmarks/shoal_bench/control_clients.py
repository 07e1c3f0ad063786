"""The clients of section `generator-service`: several to a process, real messages, real sockets.

Owns what one client process does: join as many workers, ask for groups at a given rate, note when.
All processes read one clock.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import zmq

from shoal.control import Assigned, Done, GroupRequest, JobKey, Join, decode_reply, encode

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from shoal.groups import GeneratorConfig

SESSION = "benchmark"
WORKERS_PER_HOST = 8
CATCH_UP_NS = 100_000_000
"""A client that is later than this forgets the requests it has not made."""


def drive(
    pipe: Connection, endpoint: str, key_text: str, config: GeneratorConfig, ranks: range
) -> None:
    """Be the workers `ranks`: say "ready", receive (start, seconds, period), send the answers.

    `start` and `period` are in nanoseconds; a period of 0 asks again as soon as there is an answer.
    """
    context = zmq.Context()
    sockets = {rank: _connect(context, endpoint, JobKey(key_text)) for rank in ranks}
    for rank, socket in sockets.items():
        socket.send(encode(Join(SESSION, rank, rank // WORKERS_PER_HOST, config, 0)))
        assert isinstance(decode_reply(socket.recv()), Done)
    pipe.send("ready")
    pipe.send(_ask(sockets, *pipe.recv()))
    for socket in sockets.values():
        socket.close(0)
    context.term()


def _connect(context: zmq.Context[Any], endpoint: str, key: JobKey) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.DEALER)
    pair = key.client_pair()
    socket.curve_serverkey = key.server_pair().public
    socket.curve_publickey, socket.curve_secretkey = pair.public, pair.secret
    socket.connect(endpoint)
    return socket


def _ask(
    sockets: dict[int, zmq.Socket[bytes]], start_ns: int, seconds: float, period_ns: int
) -> list[tuple[int, int, int]]:
    """Ask for groups until the time is over; return (group, asked, answered), in nanoseconds."""
    poller = zmq.Poller()
    rank_of = {}
    for rank, socket in sockets.items():
        poller.register(socket, zmq.POLLIN)
        rank_of[socket] = rank
    end_ns = start_ns + round(seconds * 1e9)
    # Spread over a period, so that a given rate is a steady stream and not a volley.
    due_ns = {r: start_ns + period_ns * n // len(sockets) for n, r in enumerate(sockets)}
    asked_ns: dict[int, int] = {}
    next_ns: dict[int, int] = {}
    answers = []
    while (now_ns := time.monotonic_ns()) < end_ns:
        for rank in [rank for rank, at_ns in due_ns.items() if at_ns <= now_ns]:
            asked_ns[rank] = time.monotonic_ns()
            sockets[rank].send(encode(GroupRequest(SESSION, rank, 0)))
            next_ns[rank] = due_ns.pop(rank) + period_ns  # late ones catch up
        wait_ms = -((now_ns - min(due_ns.values(), default=end_ns)) // 1_000_000)  # rounded up
        for socket, _ in poller.poll(max(0, min(wait_ms, 10))):
            reply = decode_reply(socket.recv())
            answered_ns = time.monotonic_ns()
            assert isinstance(reply, Assigned), reply
            rank = rank_of[socket]
            answers.append((reply.group_id, asked_ns[rank], answered_ns))
            due_ns[rank] = max(next_ns[rank], answered_ns - CATCH_UP_NS)
    return answers
