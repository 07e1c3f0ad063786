"""How the ranks of a transport show each other their cards, before it can carry anything.

A card holds addresses and the tags that keep strangers' packets out. Owns the ways to exchange
cards: over the control plane, which is authenticated; over torch's store, which is not; and, where
a job key is set, over connections to rank 0 that only holders of the key can make, so that only its
address stands in the store. The caller decides what a card holds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypeAlias

from shoal.control import CardServer, JobKey, given_key, hand_in
from shoal.errors import ResourceError
from shoal.session.bounded import within
from shoal.session.fresh_store import fresh_store
from shoal.wire import from_environment

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]  # torch's own omission

    from shoal.control import CardStore
    from shoal.wire import Settings

Exchange: TypeAlias = Callable[[bytes], list[bytes]]
"""A collective function that takes this rank's card and returns all ranks' cards, in order: empty
bytes for a rank that is not there."""

_BOUNDS: Final = 2.0
"""The deadlines within which an exchange over torch's store ends, even if the store is silent."""


def over_board(
    board: CardStore,
    me: int,
    size: int,
    deadline_s: float,
    *,
    name: str = "transport",
    ranks: Collection[int] | None = None,
) -> Exchange:
    """Return the exchange over `board`, on which each `name` is used once.

    `ranks` are the ranks that take part; by default all.
    """

    def exchange(card: bytes) -> list[bytes]:
        board.set(f"{name}/card/{me}", card)
        return [
            _card(board, f"{name}/card/{rank}", rank, deadline_s)
            if ranks is None or rank in ranks
            else b""
            for rank in range(size)
        ]

    return exchange


def over_store(
    store: Store, me: int, size: int, deadline_s: float, *, settings: Settings | None = None
) -> Exchange:
    """Return the exchange over torch's `store`, by way of rank 0 where SHOAL_JOB_KEY is set.

    Rank 0 then serves at the address of `settings`, by default the environment's.
    """
    key = given_key(os.environ)
    silent = "torch's store does not answer: the process that keeps it hangs, or is cut off."

    def exchange(card: bytes) -> list[bytes]:
        part = fresh_store(store, "transport", me, size, deadline_s=deadline_s)
        if key is None:
            return over_board(part, me, size, deadline_s)(card)
        here = settings or from_environment()
        return _over_rank_0(part, JobKey(key), me, size, deadline_s, here)(card)

    return lambda card: within(_BOUNDS * deadline_s, silent, lambda: exchange(card))


def _over_rank_0(
    board: CardStore, key: JobKey, me: int, size: int, deadline_s: float, settings: Settings
) -> Exchange:
    """Return the exchange with rank 0 of the group, which proves that it has `key`."""

    def exchange(card: bytes) -> list[bytes]:
        here = settings.interfaces[0]
        with ExitStack() as stack:
            if me == 0:
                server = stack.enter_context(CardServer(key, here.bind, range(1), size, deadline_s))
                board.set("meeting", f"{here.advertise} {server.port}".encode())
            host, _, port = _card(board, "meeting", 0, deadline_s).decode().rpartition(" ")
            return hand_in(key, (host, range(int(port), int(port) + 1)), me, size, card, deadline_s)

    return exchange


def _card(board: CardStore, name: str, rank: int, deadline_s: float) -> bytes:
    try:
        board.wait([name], timedelta(seconds=deadline_s))
    except (RuntimeError, TimeoutError) as error:
        message = f"Rank {rank} did not open its transport within {deadline_s:g} s."
        raise ResourceError(message) from error
    return board.get(name)
