"""Opening Shoal's own transport among the workers of a job that have torch's store in common."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from shoal.errors import DeadlineExceeded, MismatchError, ResourceError
from shoal.runtime.metrics import serve_if_asked
from shoal.runtime.transport_communicator import TransportCommunicator
from shoal.runtime.udp.engine import Card, UdpEngine
from shoal.runtime.udp.opening import new_engine
from shoal.runtime.udp.settings import from_environment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.runtime.facts import StoreFacts


class _Shown(msgspec.Struct, frozen=True):
    """What a rank tells the others before they join."""

    card: Card
    algorithm: str
    wire: str | None
    """How it makes sums, as its environment says."""


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
        shown = _Shown(engine.card, settings.sums.algorithm, settings.sums.wire)
        facts.set(f"{name}/card/{rank}", msgspec.json.encode(shown).decode())
        every = [_shown(facts, name, other, deadline_s) for other in range(world_size)]
        _check_sums(every)
        engine.start([each.card for each in every])
        serve_if_asked(engine)
    except BaseException:
        engine.close()
        raise
    return engine


def _shown(facts: StoreFacts, name: str, rank: int, deadline_s: float) -> _Shown:
    try:
        text = facts.get(f"{name}/card/{rank}", deadline_s)
    except DeadlineExceeded as error:
        message = f"Rank {rank} did not open its transport within {deadline_s:g} s."
        raise ResourceError(message) from error
    return msgspec.json.decode(text, type=_Shown)


def _check_sums(every: Sequence[_Shown]) -> None:
    """Raise `MismatchError` unless all ranks make sums alike: else they wait for each other."""
    said = [
        f"SHOAL_ALL_REDUCE={each.algorithm} and SHOAL_WIRE={each.wire or '(none)'}"
        for each in every
    ]
    for rank, text in enumerate(said):
        if text != said[0]:
            message = (
                f"Rank {rank} has {text} but rank 0 has {said[0]}: set them alike on every rank."
            )
            raise MismatchError(message)


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
