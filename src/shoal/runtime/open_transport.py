"""Opening Shoal's own transport among the workers of a job that have torch's store in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from shoal.runtime.metrics import serve_if_asked
from shoal.runtime.transport_communicator import TransportCommunicator
from shoal.runtime.udp.engine import Card, UdpEngine
from shoal.runtime.udp.settings import from_environment

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.runtime.facts import StoreFacts


def open_engine(
    rank: int,
    world_size: int,
    facts: StoreFacts,
    *,
    name: str,
    deadline_s: float,
) -> UdpEngine:
    """Open this rank's transport and join the others; collective. `name` is new for each opening.

    Raises `UsageError` for settings that mean nothing, `ResourceError` if sockets or ranks cannot
    be had, `MismatchError` if the ranks' settings differ.
    """
    settings = from_environment()
    engine = UdpEngine(
        rank,
        world_size,
        settings.transport,
        deadline_s=deadline_s,
        bind=settings.bind,
        advertise=settings.advertise,
        ports=settings.ports,
    )
    try:
        facts.set(f"{name}/card/{rank}", msgspec.json.encode(engine.card).decode())
        cards = [facts.get(f"{name}/card/{other}", deadline_s) for other in range(world_size)]
        engine.start([msgspec.json.decode(card, type=Card) for card in cards])
        serve_if_asked(engine)
    except BaseException:
        engine.close()
        raise
    return engine


def open_transport(
    rank: int,
    world_size: int,
    facts: StoreFacts,
    *,
    name: str,
    deadline_s: float,
    on_peer_error: Callable[[int | None, str], None] | None = None,
) -> TransportCommunicator:
    """Open the transport as a communicator for strategies; collective. See `open_engine`."""
    engine = open_engine(rank, world_size, facts, name=name, deadline_s=deadline_s)
    algorithm = from_environment().sums.algorithm
    return TransportCommunicator(engine, algorithm=algorithm, on_peer_error=on_peer_error)
