"""How many group requests per second the control plane serves, and how long an answer takes.

Starts the real service as a child process and connects real clients to it, several to a process,
with the library's own messages over authenticated connections. An answer has to wait for the last
member of its group, which is not the service's doing; so the latency counted is from the moment the
last member of a group asked to the moment a member has its answer. All processes read one clock.

    python benchmarks/micro/control_service.py --rate 10000
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zmq

from shoal.groups import GeneratorConfig
from shoal.runtime.control import Assigned, ControlProcess, JobKey
from shoal.runtime.control.messages import Done, GroupRequest, Join, decode_reply, encode

if TYPE_CHECKING:
    from collections.abc import Iterable
    from multiprocessing.connection import Connection

SESSION = "benchmark"
WARM_UP_S = 0.5
WORKERS_PER_HOST = 8
CATCH_UP_NS = 100_000_000


def measure(
    *,
    clients: int = 64,
    processes: int = 2,
    seconds: float = 3.0,
    rate: float | None = None,
    config: GeneratorConfig | None = None,
) -> dict[str, Any]:
    """Run `clients` for `seconds` at `rate` requests per second in all (None: the most they can).

    Returns requests answered per second, percentiles of the latency in milliseconds and the
    service's processor time per request in microseconds.
    """
    key = JobKey.generate()
    config = config or GeneratorConfig()
    context = multiprocessing.get_context("spawn")
    drivers, pipes = [], []
    with ControlProcess.start(key=key, world_size=clients, liveness_timeout_s=60.0) as service:
        for number in range(processes):
            ranks = range(number, clients, processes)
            here, there = context.Pipe()
            arguments = (there, service.endpoint, key.reveal(), config, ranks)
            drivers.append(context.Process(target=_drive, args=arguments))
            pipes.append(here)
            drivers[-1].start()
        for pipe in pipes:
            pipe.recv()  # all have joined before the first one asks
        start_ns = time.monotonic_ns() + 100_000_000
        period_ns = 0 if rate is None else round(clients / rate * 1e9)
        for pipe in pipes:
            pipe.send((start_ns, seconds, period_ns))
        before_s = _cpu_seconds(service.pid)
        answers = [answer for pipe in pipes for answer in pipe.recv()]
        spent_s = _cpu_seconds(service.pid) - before_s
        for driver in drivers:
            driver.join()
    return {
        "clients": clients,
        "processes": processes,
        "wanted_per_s": rate,
        "cpu_count": multiprocessing.cpu_count(),
        "service_cpu_us_per_request": round(spent_s / max(1, len(answers)) * 1e6, 1),
        **_summarize(answers, start_ns + round(WARM_UP_S * 1e9), seconds - WARM_UP_S),
    }


def _summarize(
    answers: Iterable[tuple[int, int, int]], since_ns: int, seconds: float
) -> dict[str, Any]:
    """Turn (group, asked, answered) of every member into rate and latency."""
    groups: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for group, asked_ns, answered_ns in answers:
        groups[group].append((asked_ns, answered_ns))
    latencies_ns, waits_ns = [], []
    for members in groups.values():
        complete_ns = max(asked_ns for asked_ns, _ in members)
        if complete_ns >= since_ns:
            latencies_ns += [answered_ns - complete_ns for _, answered_ns in members]
            waits_ns += [answered_ns - asked_ns for asked_ns, answered_ns in members]
    return {
        "rate_per_s": round(len(latencies_ns) / seconds),
        **{f"p{p}_ms": _percentile_ms(latencies_ns, p) for p in (50, 99)},
        "max_ms": _percentile_ms(latencies_ns, 100),
        "wait_with_partners_p50_ms": _percentile_ms(waits_ns, 50),
        "wait_with_partners_p99_ms": _percentile_ms(waits_ns, 99),
        "mean_group_size": round(len(latencies_ns) / max(1, len(groups)), 2),
    }


def _cpu_seconds(pid: int) -> float:
    """Return the processor time that process `pid` has used so far, over all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _percentile_ms(values_ns: list[int], percent: int) -> float:
    ordered = sorted(values_ns)
    return round(ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] / 1e6, 3)


def _drive(
    pipe: Connection, endpoint: str, key_text: str, config: GeneratorConfig, ranks: range
) -> None:
    """Be the workers `ranks`: what one client process does."""
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
        wait_ms = (min(due_ns.values(), default=end_ns) - now_ns) // 1_000_000
        for socket, _ in poller.poll(max(0, min(wait_ms, 10))):
            reply = decode_reply(socket.recv())
            answered_ns = time.monotonic_ns()
            assert isinstance(reply, Assigned), reply
            rank = rank_of[socket]
            answers.append((reply.group_id, asked_ns[rank], answered_ns))
            due_ns[rank] = max(next_ns[rank], answered_ns - CATCH_UP_NS)
    return answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rate", type=float, help="requests per second in all (default: maximum)")
    options = parser.parse_args()
    print(json.dumps(measure(**vars(options)), indent=2))


if __name__ == "__main__":
    main()
