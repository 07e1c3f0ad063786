"""What ranks show each other before they join: where they are reached, and how they make sums."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import msgspec

from shoal.decoding import decode_msgpack
from shoal.errors import MismatchError
from shoal.wire.engine import Card

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.wire.engine import UdpEngine
    from shoal.wire.sum_options import SumOptions


class Shown(msgspec.Struct, frozen=True):
    """What a rank tells the others."""

    card: Card
    algorithm: str
    per_host: int
    wire: str | None

    @classmethod
    def by(cls, engine: UdpEngine, sums: SumOptions) -> Self:
        """Return what the rank of `engine` shows; `sums` is what its environment says of them."""
        return cls(engine.card, sums.algorithm, sums.per_host, sums.wire)

    @property
    def manner(self) -> str:
        """How the rank makes sums, as its environment says it."""
        hosts = f", LOCAL_WORLD_SIZE={self.per_host or '(none)'}"
        hosts = hosts if self.algorithm == "hierarchical" else ""
        return f"SHOAL_ALL_REDUCE={self.algorithm}{hosts} and SHOAL_WIRE={self.wire or '(none)'}"


def shown_by(cards: Sequence[bytes]) -> list[Shown | None]:
    """Return what ranks show by their `cards`; raise `MismatchError` for one not understood.

    Nothing is the card of a rank that is not there.
    """
    advice = "install the same version of Shoal everywhere"
    return [
        decode_msgpack(
            card, Shown, f"The card of rank {rank} is not understood", advice, MismatchError
        )
        if card
        else None
        for rank, card in enumerate(cards)
    ]


def check_alike(every: Sequence[Shown | None]) -> None:
    """Raise `MismatchError` unless all ranks make sums alike: else they wait for each other."""
    first, *others = [(rank, shown.manner) for rank, shown in enumerate(every) if shown is not None]
    for rank, manner in others:
        if manner != first[1]:
            message = (
                f"Rank {rank} has {manner} but rank {first[0]} has {first[1]}: set them alike on"
                " every rank."
            )
            raise MismatchError(message)
