"""Opening Shoal's own transport among ranks that can exchange cards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from shoal.carriers import TransportCommunicator
from shoal.watch import serve_if_asked
from shoal.wire import Shown, check_alike, from_environment, new_engine, shown_by

if TYPE_CHECKING:
    from shoal.session.card_exchange import Exchange
    from shoal.wire import Settings, UdpEngine


def open_engine(
    rank: int,
    world_size: int,
    exchange: Exchange,
    *,
    deadline_s: float,
    settings: Settings | None = None,
    is_watched: bool = True,
) -> UdpEngine:
    """Open this rank's transport and join the others; collective.

    `settings` are the environment's, unless others are given. The engine's metrics are served if
    the environment asks for them and it `is_watched`.

    Raises `UsageError` for meaningless settings, `ResourceError` if sockets cannot be opened or
    ranks not reached, `MismatchError` if the ranks' settings differ.
    """
    settings = settings or from_environment()
    engine = new_engine(rank, world_size, settings, deadline_s=deadline_s)
    try:
        cards = exchange(msgspec.msgpack.encode(Shown.by(engine, settings.sums)))
        every = shown_by(cards)
        check_alike(every)
        engine.start([None if each is None else each.card for each in every])
        if is_watched:
            serve_if_asked(engine)
    except BaseException:
        engine.close()
        raise
    return engine


def open_transport(
    rank: int,
    world_size: int,
    exchange: Exchange,
    *,
    deadline_s: float,
    settings: Settings | None = None,
) -> TransportCommunicator:
    """Open a transport of its own as a communicator; collective. See `open_engine`."""
    engine = open_engine(rank, world_size, exchange, deadline_s=deadline_s, settings=settings)
    return TransportCommunicator(engine, algorithm=from_environment().sums.algorithm)
