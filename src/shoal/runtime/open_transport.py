"""Opening Shoal's own transport among the workers of a job that have torch's store in common."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from shoal.errors import DeadlineExceeded, ResourceError
from shoal.runtime.metrics import serve_if_asked
from shoal.runtime.shown import Shown, check_alike
from shoal.runtime.transport_communicator import TransportCommunicator
from shoal.runtime.udp.opening import new_engine
from shoal.runtime.udp.settings import from_environment

if TYPE_CHECKING:
    from shoal.runtime.facts import StoreFacts
    from shoal.runtime.udp.engine import UdpEngine


def open_engine(
    rank: int,
    world_size: int,
    facts: StoreFacts,
    *,
    name: str,
    deadline_s: float,
    lane_count: int | None = None,
) -> UdpEngine:
    """Open this rank's transport and join the others; collective. `name` is new for each opening.

    `lane_count` is how many lanes it opens, if that is not for the environment to say.

    Raises `UsageError` for settings that mean nothing, `ResourceError` if sockets or ranks cannot
    be had, `MismatchError` if the ranks' settings differ.
    """
    settings = from_environment()
    if lane_count is not None:
        settings = replace(settings, lane_count=lane_count)
    engine = new_engine(rank, world_size, settings, deadline_s=deadline_s)
    try:
        shown = Shown.by(engine, settings.sums)
        facts.set(f"{name}/card/{rank}", msgspec.json.encode(shown).decode())
        every = [_shown(facts, name, other, deadline_s) for other in range(world_size)]
        check_alike(every)
        engine.start([each.card for each in every])
        serve_if_asked(engine)
    except BaseException:
        engine.close()
        raise
    return engine


def _shown(facts: StoreFacts, name: str, rank: int, deadline_s: float) -> Shown:
    try:
        text = facts.get(f"{name}/card/{rank}", deadline_s)
    except DeadlineExceeded as error:
        message = f"Rank {rank} did not open its transport within {deadline_s:g} s."
        raise ResourceError(message) from error
    return msgspec.json.decode(text, type=Shown)


def open_transport(
    rank: int,
    world_size: int,
    facts: StoreFacts,
    *,
    name: str,
    deadline_s: float,
    lane_count: int | None = None,
) -> TransportCommunicator:
    """Open a transport of its own as a communicator; collective. See `open_engine`."""
    engine = open_engine(
        rank, world_size, facts, name=name, deadline_s=deadline_s, lane_count=lane_count
    )
    return TransportCommunicator(engine, algorithm=from_environment().sums.algorithm)
