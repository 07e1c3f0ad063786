"""What the workers of the network sections do: rounds of a collective, the contenders in turns.

Every worker enters its emulated host, opens Shoal's transport and a gloo group there, and leaves it
again. Workers agree on the instant at which a round begins over the pool's own group, which does
not pass the emulated network; a round is over when its slowest worker is done.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

import torch
import torch.distributed as dist

from shoal.carriers import LossOptions, TransportCommunicator
from shoal.compiled.libc import UDP_SEGMENT
from shoal.lab import INTERFACE, inside, received_here
from shoal.session import open_engine
from shoal_bench.emulated_network import UDP_BYTES, Host
from shoal_bench.loopback import DEADLINE_S, cards_of

if TYPE_CHECKING:
    from shoal.jobs import WorkerContext
    from shoal.wire import UdpEngine

GLOO: Final = "gloo"
"""Name of the contender that is not ours."""

_LEAD_NS: Final = 10_000_000
"""The nanoseconds from agreeing on the beginning of a round to it: meanwhile queues of the last one
run empty."""

_WARM_UP: Final = 3
_NOBODYS_PORT: Final = 9
_BLAST_PACKETS: Final = 16
"""The packets that are handed over at once."""
_BLAST_BUFFER_BYTES: Final = 256 << 10
_SETTLE_NS: Final = 100_000_000
"""The nanoseconds after which the buckets are empty and the queues are not."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One way of doing a round."""

    name: str
    rounds: int
    loss_bound: float = 0.0
    algorithm: str = "direct"
    limit_s: float = float("inf")
    """Seconds of rounds after which it gets no more."""


@dataclass(slots=True)
class Turns:
    """What one worker has seen of one contender."""

    seconds: list[float] = field(default_factory=list)
    """The seconds from the agreed beginning of each round to the end of this worker's part."""
    missing: float = 0.0
    """Largest share of the contributions of others that did not get into the sums of a round."""
    counts: dict[str, int] = field(default_factory=dict)
    """The transport's counts, over all rounds; none for gloo."""


class EmulatedWorker:
    """A worker on its emulated host, with both ways to the others."""

    def __init__(self, context: WorkerContext, engine: UdpEngine, gloo: dist.ProcessGroup) -> None:
        self.rank, self.world_size = context.session.rank, context.session.world_size
        self.engine, self.gloo = engine, gloo
        self.transport = TransportCommunicator(engine)


@contextlib.contextmanager
def on_host(
    context: WorkerContext, hosts: list[Host], settings: Mapping[str, str] | None = None
) -> Iterator[EmulatedWorker]:
    """Be on this rank's host, with these settings of the transport. Collective."""
    session = context.session
    host = hosts[session.rank]
    variables = {"GLOO_SOCKET_IFNAME": INTERFACE, "SHOAL_BIND": host.address, **(settings or {})}
    with inside(host.path), patch.dict(os.environ, variables):
        gloo = dist.new_group(backend="gloo", timeout=timedelta(seconds=DEADLINE_S))
        assert isinstance(gloo, dist.ProcessGroup)
        try:
            engine = open_engine(
                session.rank, session.world_size, cards_of(session), deadline_s=DEADLINE_S
            )
            try:
                yield EmulatedWorker(context, engine, gloo)
                dist.barrier()  # others may still need this process to answer
            finally:
                engine.close()
        finally:
            dist.destroy_process_group(gloo)


def all_reduce_rounds(
    context: WorkerContext,
    hosts: list[Host],
    num_bytes: int,
    contenders: list[Contender],
    settings: Mapping[str, str] | None = None,
) -> list[Turns]:
    """Sum a buffer of `num_bytes` again and again; return this rank's times. A task for the pool.

    `settings` are variables that the transport reads.
    Raises `AssertionError` if a sum is wrong or more is missing than the bound allows.
    """
    buffer = torch.empty(num_bytes // 4)
    with on_host(context, hosts, settings) as worker:

        def once(contender: Contender) -> None:
            if contender.name == GLOO:
                dist.all_reduce(buffer, group=worker.gloo)
            else:
                worker.transport.loss = LossOptions(contender.loss_bound)
                worker.transport.algorithm = contender.algorithm
                worker.transport.all_reduce(buffer).wait()

        def check(contender: Contender) -> float:
            others = worker.world_size - 1
            missing = 1 - (float(buffer.double().mean()) - 1) / others
            if not 0 <= missing <= contender.loss_bound or float(buffer.max()) > others + 1:
                raise AssertionError(f"{contender.name}: {missing:.3%} of the sum is missing")
            return missing

        return _take_turns(worker, contenders, lambda: buffer.fill_(1.0), once, check)


def push_rounds(
    context: WorkerContext, hosts: list[Host], num_bytes: int, contenders: list[Contender]
) -> list[Turns]:
    """Have all ranks but 0 send `num_bytes` to rank 0 at once, again and again.

    As workers push their gradients to a parameter server. A task for the pool. Raises
    `AssertionError` if something wrong arrives.
    """
    with on_host(context, hosts) as worker:
        senders = range(1, worker.world_size)
        mine = torch.full((num_bytes // 4,), float(worker.rank))
        places = [torch.empty_like(mine) for _ in senders] if worker.rank == 0 else []

        def once(contender: Contender) -> None:
            is_gloo = contender.name == GLOO
            if worker.rank != 0:
                if is_gloo:
                    dist.send(mine, 0, group=worker.gloo)
                else:
                    worker.transport.send(mine, 0, channel=0).wait()
                return
            works = [
                dist.irecv(place, sender, group=worker.gloo)
                if is_gloo
                else worker.transport.receive(place, sender, channel=0)
                for sender, place in zip(senders, places, strict=True)
            ]
            for work in works:
                assert work is not None
                work.wait()

        def check(contender: Contender) -> float:
            for sender, place in zip(senders, places, strict=False):
                if not bool((place == sender).all()):
                    raise AssertionError(f"{contender.name}: rank {sender} sent something else")
            return 0.0

        def prepare() -> None:
            for place in places:
                place.zero_()

        return _take_turns(worker, contenders, prepare, once, check)


def _take_turns(
    worker: EmulatedWorker,
    contenders: list[Contender],
    prepare: Callable[[], object],
    once: Callable[[Contender], None],
    check: Callable[[Contender], float],
) -> list[Turns]:
    """Return a worker's times of all contenders, which go one after the other in each round."""
    results = [Turns() for _ in contenders]
    spent_s = [0.0 for _ in contenders]
    for number in range(-_WARM_UP, max(each.rounds for each in contenders)):
        order = list(range(len(contenders)))
        for which in order if number % 2 else reversed(order):
            contender, result = contenders[which], results[which]
            if number >= contender.rounds or spent_s[which] > contender.limit_s:
                continue
            prepare()
            before = _counts(worker, contender)
            begin_ns = _agree_on_beginning()
            once(contender)
            elapsed = (time.monotonic_ns() - begin_ns) / 1e9
            spent_s[which] += _largest(elapsed)
            missing = check(contender)
            if number >= 0:
                result.seconds.append(elapsed)
                result.missing = max(result.missing, missing)
                for name, count in _counts(worker, contender).items():
                    result.counts[name] = result.counts.get(name, 0) + count - before[name]
    return results


def _counts(worker: EmulatedWorker, contender: Contender) -> dict[str, int]:
    if contender.name == GLOO:
        return {}
    return {counter.name: count for counter, count in worker.engine.counts().items()}


def _agree_on_beginning() -> int:
    """Sleep until an instant that all workers agree on, and return it; collective."""
    latest = torch.tensor([time.monotonic_ns()])
    dist.all_reduce(latest, op=dist.ReduceOp.MAX)
    begin_ns = int(latest[0]) + _LEAD_NS
    time.sleep(max(0, begin_ns - time.monotonic_ns()) / 1e9)
    return begin_ns


def _largest(value: float) -> float:
    """Return the largest of all workers' values; collective."""
    largest = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return float(largest[0])


def blast(
    context: WorkerContext, hosts: list[Host], seconds: float, receivers: Sequence[int]
) -> float:
    """Have `receivers` sent full packets as fast as it goes, for `seconds`, each by the one before.

    Returns the bits of Ethernet frames per second that came in here, by the count of this host's
    interface, so that what is measured are the ports and not a reader. A task for the pool.
    """
    session = context.session
    next_rank = (session.rank + 1) % session.world_size
    host, following = hosts[session.rank], hosts[next_rank]
    sends = next_rank in receivers
    with inside(host.path), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BLAST_BUFFER_BYTES)
        sender.setsockopt(socket.SOL_UDP, UDP_SEGMENT, UDP_BYTES)
        payload = bytes(_BLAST_PACKETS * UDP_BYTES)

        def send_until(end_ns: int) -> None:
            while (now_ns := time.monotonic_ns()) < end_ns:
                if sends:
                    sender.sendto(payload, (following.address, _NOBODYS_PORT))
                else:
                    time.sleep((end_ns - now_ns) / 1e9)

        settled_ns = _agree_on_beginning() + _SETTLE_NS
        send_until(settled_ns)
        begin_ns, at_begin = time.monotonic_ns(), received_here()[0]
        send_until(begin_ns + round(seconds * 1e9))
        rate = (received_here()[0] - at_begin) * 8 / ((time.monotonic_ns() - begin_ns) / 1e9)
        send_until(time.monotonic_ns() + _SETTLE_NS)  # others are still measuring
        dist.barrier()
    return rate
