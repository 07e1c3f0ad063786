"""Large parameters that are not trained, sent to newcomers while the others still train.

A view with newcomers is prepared before it begins (`membership.Arrivals`), and what does not change
meanwhile need not be sent when others wait for it. Nothing depends on it: with the rest of the
state (`handing_on`) a newcomer compares digests, and gets again what is not as its donors have it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import msgspec

from shoal.carriers import STATE_CHANNEL, digest_of
from shoal.comm import Layers
from shoal.decoding import decode_msgpack
from shoal.errors import DeadlineExceeded, ViewChanging
from shoal.train.flat_parameters import bytes_of
from shoal.train.handing_on import frozen_digests, frozen_parameters
from shoal.train.state_memory import dealt

if TYPE_CHECKING:
    from torch import Tensor

    from shoal.comm import Communicator
    from shoal.membership import Preparation
    from shoal.train.replica import Replica

Said = TypeVar("Said")
Connect: TypeAlias = Callable[[], "Communicator"]

_POLL_S: Final = 0.01
_HAS, _LACKS = "ahead/has", "ahead/lacks"
_LEAST_URGENT: Final = Layers((0,), (7,), 8)
"""The layers of what is sent ahead: switches let the exchanges of the training go first."""
_NOT_KNOWN: Final = b""
"""The digest of a parameter of which only a part may have come."""
_NOT_UNDERSTOOD: Final = "What a worker says of its parameters is not understood"


def give(replica: Replica, preparation: Preparation, connect: Connect, *, is_exact: bool) -> None:
    """Send newcomers what they lack of this worker's parameters that are not trained.

    Where all members have the same state (`is_exact`) each sends a part, else the first all of it.
    Raises the communicator's errors, `ViewChanging` if the preparation has come to nothing, and
    `DeadlineExceeded`.
    """
    givers, rank = _givers(preparation, share=is_exact), replica.communicator.rank
    if rank not in givers:
        return
    if rank == givers[0]:
        digests = frozen_digests(replica)
        for taker in preparation.newcomers:
            has = _await(replica, preparation, _HAS, taker, dict[int, bytes])
            lacks = [n for n, each in digests.items() if n in has and has[n] != each]
            _say(replica, preparation, f"{_LACKS}/{taker}", lacks)
    pieces = [
        (taker, piece)
        for taker in preparation.newcomers
        for giver, piece in _pieces_for(replica, preparation, taker, givers)
        if giver == rank
    ]
    if not pieces:
        return
    send = connect().send
    works = [
        send(piece, taker, channel=STATE_CHANNEL, layers=_LEAST_URGENT) for taker, piece in pieces
    ]
    for work in works:
        work.wait()


def take(
    replica: Replica,
    frozen: dict[int, bytes],
    preparation: Preparation,
    connect: Connect,
    *,
    is_exact: bool,
) -> None:
    """Receive what this newcomer lacks of the members' parameters that are not trained.

    `frozen` are the digests of its own, and then of what has come. Raises as `give` does.
    """
    own = frozen_parameters(replica)
    givers, rank = _givers(preparation, share=is_exact), replica.communicator.rank
    has = {number: frozen.get(number, _NOT_KNOWN) for number in own}
    _say(replica, preparation, _HAS, has)
    lacks = _lacks(replica, preparation, rank, givers)
    if not lacks:
        return
    memory = [bytes_of(own[number]) for number in lacks]
    for number in lacks:
        frozen.pop(number, None)
    receive = connect().receive
    for work in [
        receive(piece, giver, channel=STATE_CHANNEL) for giver, piece in dealt(memory, givers)
    ]:
        work.wait()
    for number, taken in zip(lacks, memory, strict=True):
        own[number].copy_(taken.view(own[number].dtype).view(own[number].shape))
        frozen[number] = digest_of(taken)


def _givers(preparation: Preparation, *, share: bool) -> tuple[int, ...]:
    members = tuple(rank for rank in preparation.ranks if rank not in preparation.newcomers)
    return members if share else members[:1]


def _lacks(
    replica: Replica, preparation: Preparation, taker: int, givers: Sequence[int]
) -> list[int]:
    """Return the numbers of the parameters that `taker` lacks, as the first giver has found."""
    return _await(replica, preparation, f"{_LACKS}/{taker}", givers[0], list[int])


def _pieces_for(
    replica: Replica, preparation: Preparation, taker: int, givers: Sequence[int]
) -> Iterator[tuple[int, Tensor]]:
    own = frozen_parameters(replica)
    lacks = _lacks(replica, preparation, taker, givers)
    return dealt([bytes_of(own[number]) for number in lacks], givers)


def _await(
    replica: Replica, preparation: Preparation, what: str, rank: int, kind: type[Said]
) -> Said:
    """Return what `rank` has said, as long as the preparation is not over."""
    name = _named(replica, preparation, what, rank)
    end = time.monotonic() + replica.deadline_s
    while (said := replica.facts.read([name])[0]) is None:
        if not replica.member.is_preparing(preparation):
            raise ViewChanging
        if time.monotonic() > end:
            message = f"Rank {rank} said nothing of its parameters within {replica.deadline_s:g} s."
            raise DeadlineExceeded(message)
        time.sleep(_POLL_S)
    return decode_msgpack(said, kind, _NOT_UNDERSTOOD)


def _say(replica: Replica, preparation: Preparation, what: str, value: object) -> None:
    name = _named(replica, preparation, what, replica.communicator.rank)
    replica.facts.set(name, msgspec.msgpack.encode(value))


def _named(replica: Replica, preparation: Preparation, what: str, rank: int) -> str:
    return f"{replica.session}/{what}/{preparation.number}/{rank}"
