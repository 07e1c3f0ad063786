"""Members hand a newcomer its state: the model, the optimizer's state and the course's.

A view with a newcomer begins like any other. Before its members do anything together in it, one of
the members that are furthest hands its state on at a border, where all changes of one step are made
and none of the next. Where all have the same state, all of the furthest give parts of it at once.
The decision names the newcomers (`membership.Decision.newcomers`), so if either end is lost on the
way, the next view's members begin again, with another donor if need be.

Names, shapes and plain values go over the control plane, which is authenticated, with digests; the
tensors' bytes go over the transport, and are checked against the digests. Large parameters that are
not trained do not travel to a newcomer that has them already: a script that is started again has
made them as it did before, out of a pretrained model's file say.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import msgspec
import torch

from shoal.carriers import HOST, STATE_CHANNEL, digest_of, load_checksums
from shoal.control import name_ranks
from shoal.decoding import decode_msgpack
from shoal.errors import DeadlineExceeded, MismatchError, ShoalError, ViewChanging, WorkerLost
from shoal.train.flat_parameters import bytes_of
from shoal.train.state_memory import (
    copied,
    dealt,
    is_large,
    memory_for,
    put_together,
    taken_apart,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

    from shoal.membership import Decision
    from shoal.train.executor import AbstractExecutor
    from shoal.train.replica import Replica

_POLL_S: Final = 0.002
_NOT_UNDERSTOOD: Final = "What a worker says of its state is not understood"
_NOBODY: Final = "All who had a model were lost before one handed it on to this newcomer."
_GIVEN, _HAS, _DIGESTS = "given", "has", "digests"


class _Digests(msgspec.Struct, frozen=True):
    """Digests that two workers compare to see whether they have the same bytes."""

    trained: bytes
    buffers: bytes


class Donor:
    """One replica's state, handed on once in every view with newcomers.

    Where a strategy is exact (`is_exact`) all members should have the same state: each publishes
    digests of its own, and a newcomer does not begin if they differ.
    """

    def __init__(self, replica: Replica, *, is_exact: bool) -> None:
        self._replica, self._is_exact = replica, is_exact
        self._epoch = replica.view.epoch
        self._sent: list[object] = []
        """The sends under way, with the memory that they send from."""
        if not replica.member.is_fixed:
            load_checksums()
            torch.save({}, io.BytesIO())  # the first one loads modules: nobody waits for that now

    def hand_on(self, executor: AbstractExecutor, buffers: Sequence[Tensor] | None = None) -> None:
        """Give newcomers of the view the state they lack, at a border, in the training thread.

        `buffers` are the model's buffers as they were at the border, if they have changed since.
        """
        decision, own = self._replica.member.decision, self._replica.communicator.rank
        if decision.view.epoch == self._epoch:
            return
        self._epoch = decision.view.epoch
        if own not in decision.reports:  # it is new itself
            return
        donors = _donors(decision, self._replica.session, share=self._is_exact)
        takers = {taker: givers for taker, givers in donors.items() if own in givers}
        if takers or (donors and self._is_exact):
            state = _state_of(self._replica, executor, buffers)
            skeleton, tensors = taken_apart(state)
            memory: list[Tensor] = []
            if takers:
                memory, tensors = copied(tensors, all_of_them=not self._is_exact)
            parts = decision, skeleton, tensors, len(state["buffers"]), memory, takers
            threading.Thread(target=self._send, args=parts, daemon=True).start()

    def _send(
        self,
        decision: Decision,
        skeleton: dict[str, Any],
        tensors: Sequence[Tensor],
        num_buffers: int,
        memory: Sequence[Tensor],
        takers: Mapping[int, Sequence[int]],
    ) -> None:
        replica, member = self._replica, self._replica.member
        own = replica.communicator.rank
        with suppress(ShoalError):  # of a view that is over, or a job: others hear of that
            frozen: dict[int, bytes] = {}
            if any(own == givers[0] for givers in takers.values()):
                frozen = frozen_digests(replica)
                file = io.BytesIO()
                torch.save((skeleton, {n: each.hex() for n, each in frozen.items()}), file)
                _say(replica, _GIVEN, decision, file.getvalue())
            said = _await(replica, _HAS, decision, list(takers))
            has = {
                taker: decode_msgpack(each, set[int], _NOT_UNDERSTOOD)
                for taker, each in zip(takers, said, strict=True)
            }
            with member.changed:
                if not member.is_in(decision.view):
                    return
                send = replica.communicator.send
                self._sent = [
                    send(piece, taker, channel=STATE_CHANNEL)
                    for taker, givers in takers.items()
                    for giver, piece in _dealt(memory, tensors, num_buffers, givers, has[taker])
                    if giver == own
                ]
            digests = _digests_of(tensors, num_buffers, frozen)
            _say(replica, _DIGESTS, decision, msgspec.msgpack.encode(digests))


def take_over(replica: Replica, executor: AbstractExecutor, frozen: dict[int, bytes]) -> int:
    """Give a newcomer's `replica` and `executor` the state that they go on from.

    `frozen` are the `frozen_digests` of what it has. Return how many steps led to the state. Raises
    `MismatchError` if the received state does not fit, is damaged or is one of several models, and
    `DeadlineExceeded`.
    """
    member = replica.member
    while True:
        with suppress(ViewChanging):
            decision = executor.come_in()
            if not decision.reports:
                raise WorkerLost(_NOBODY)
            with member.acting_in(decision.view):
                donors = _donors(decision, replica.session, share=executor.is_exact)
                givers = donors[replica.communicator.rank]
                skeleton, tensors = _receive(replica, decision, givers, frozen)
                num_buffers = len(skeleton["buffers"])
                digests = _digests_of(tensors, num_buffers, frozen)
                _check(replica, decision, digests, givers[0], is_exact=executor.is_exact)
            steps = _load(replica, executor, put_together(skeleton, tensors))
            with member.changed:
                if member.is_in(decision.view):
                    member.is_newcomer = False
                    return steps


def _donors(decision: Decision, training: str, *, share: bool) -> dict[int, tuple[int, ...]]:
    """Return the donors of each newcomer: all of them if they `share` it, else the first."""
    donors = decision.donors(training)
    return {rank: givers if share else givers[:1] for rank, givers in donors.items()}


def _dealt(
    memory: Sequence[Tensor],
    tensors: Sequence[Tensor],
    num_buffers: int,
    givers: Sequence[int],
    has: Collection[int],
) -> Iterator[tuple[int, Tensor]]:
    """Yield the pieces of `memory`, which is for `tensors`, each with the rank that gives it.

    The large parameters and states, which all `givers` have alike, are dealt among them, but for
    those whose numbers the newcomer `has`; the first gives buffers, and the small tensors that lie
    together with some of them.
    """
    large = [number for number, tensor in enumerate(tensors) if is_large(tensor)]
    first, end = len(memory) - len(large), len(tensors) - num_buffers
    places = list(zip(large, memory[first:], strict=True))
    for each in (*memory[:first], *(place for number, place in places if number >= end)):
        yield givers[0], each
    shared = [place for number, place in places if number < end and number not in has]
    yield from dealt(shared, givers)


def _receive(
    replica: Replica, decision: Decision, givers: Sequence[int], frozen: dict[int, bytes]
) -> tuple[dict[str, Any], list[Tensor]]:
    """Return the state without values, and the tensors with the values, as the donors give them.

    Large parameters come right into the model, but for those that this newcomer has. Only their
    digests stay in `frozen`, for the model has lost the others.
    """
    (said,) = _await(replica, _GIVEN, decision, givers[:1])
    skeleton, theirs = torch.load(io.BytesIO(said), weights_only=True)
    for number in [n for n, each in frozen.items() if theirs.get(n) != each.hex()]:
        del frozen[number]
    _say(replica, _HAS, decision, msgspec.msgpack.encode(list(frozen)))
    _, empty = taken_apart(skeleton)
    places = _places_in(replica.model, empty)
    memory, tensors = memory_for(empty, places)
    own = held(replica.model.parameters())
    with torch.no_grad():
        for number in frozen.keys() - places.keys():
            tensors[number].copy_(own[number])
    receive = replica.communicator.receive
    pieces = _dealt(memory, tensors, len(skeleton["buffers"]), givers, frozen)
    for work in [receive(piece, giver, channel=STATE_CHANNEL) for giver, piece in pieces]:
        work.wait()
    return skeleton, tensors


def _places_in(model: nn.Module, tensors: Sequence[Tensor]) -> dict[int, Tensor]:
    """Return the memory, as bytes, of the large parameters of `model` that are in host memory.

    They are the first of `tensors`, which have the types and shapes of a donor's.
    """
    return {
        number: bytes_of(own)
        for number, (own, given) in enumerate(zip(held(model.parameters()), tensors, strict=False))
        if is_large(own)
        and own.device == HOST
        and own.is_contiguous()
        and (own.shape, own.dtype) == (given.shape, given.dtype)
    }


def _check(
    replica: Replica, decision: Decision, digests: _Digests, donor: int, *, is_exact: bool
) -> None:
    """Raise `MismatchError` unless the state that came is `donor`'s, and if exact everyone's."""
    ranks = sorted(decision.reports) if is_exact else [donor]
    said = {
        rank: decode_msgpack(each, _Digests, _NOT_UNDERSTOOD)
        for rank, each in zip(ranks, _await(replica, _DIGESTS, decision, ranks), strict=True)
    }
    if said[donor] != digests:
        message = f"The state that rank {donor} gave to this newcomer was damaged on its way."
        raise MismatchError(message)
    if others := [rank for rank in ranks if said[rank].trained != said[donor].trained]:
        message = (
            f"{name_ranks(others)} and rank {donor} differ in the model or the optimizer's state,"
            " though this strategy keeps all alike: nobody can say which one to go on from. Look"
            " for what changes weights outside of optimizer.step() there, and start again from a"
            " checkpoint."
        )
        raise MismatchError(message)


def _await(replica: Replica, what: str, decision: Decision, ranks: Sequence[int]) -> list[bytes]:
    """Return what each of `ranks` has published about its state in a view.

    Raises `ViewChanging` once the view is over, and `DeadlineExceeded`.
    """
    names = [_named(replica, what, decision, rank) for rank in ranks]
    end = time.monotonic() + replica.deadline_s
    while True:
        said = replica.facts.read(names)
        there = [each for each in said if each is not None]
        if len(there) == len(said):
            return there
        replica.communicator.check()
        with replica.member.changed:
            if not replica.member.is_in(decision.view):
                raise ViewChanging
        if time.monotonic() > end:
            late = [rank for rank, each in zip(ranks, said, strict=True) if each is None]
            message = (
                f"{name_ranks(late)} did not hand its state on to this newcomer within"
                f" {replica.deadline_s:g} s."
            )
            raise DeadlineExceeded(message)
        time.sleep(_POLL_S)


def _say(replica: Replica, what: str, decision: Decision, value: bytes) -> None:
    replica.facts.set(_named(replica, what, decision, replica.communicator.rank), value)


def _named(replica: Replica, what: str, decision: Decision, rank: int) -> str:
    return f"{replica.session}/{what}/{decision.view.epoch}/{rank}"


def _state_of(
    replica: Replica, executor: AbstractExecutor, buffers: Sequence[Tensor] | None
) -> dict[str, Any]:
    """Return the state that a newcomer lacks, buffers last."""
    return {
        "parameters": held(replica.model.parameters()),
        "optimizer": replica.optimizer.state_dict(),
        "course": executor.handed_on(),
        "steps": replica.stopwatch.step,
        "samples": None if replica.samples is None else replica.samples.handed_on(),
        "buffers": held(replica.model.buffers()) if buffers is None else list(buffers),
    }


def _load(replica: Replica, executor: AbstractExecutor, state: dict[str, Any]) -> int:
    """Load a donor's state into a newcomer; return the number of steps made."""
    own = [*held(replica.model.parameters()), *held(replica.model.buffers())]
    with torch.no_grad():
        for mine, given in zip(own, [*state["parameters"], *state["buffers"]], strict=True):
            if given.data_ptr() != mine.data_ptr():
                mine.copy_(given)
    replica.optimizer.load_state_dict(state["optimizer"])
    executor.take_over(state["course"])
    if replica.samples is not None:
        replica.samples.take_over(state["samples"])
    return int(state["steps"])


def held(tensors: Iterator[Tensor]) -> list[Tensor]:
    """Return those of a model's tensors that hold values of their own."""
    return [each for each in tensors if each.layout == torch.strided and each.numel()]


def frozen_digests(replica: Replica) -> dict[int, bytes]:
    """Return the digest of each large parameter that is not trained, by its number."""
    found = frozen_parameters(replica)
    return {number: digest_of(bytes_of(each)) for number, each in found.items()}


def frozen_parameters(replica: Replica) -> dict[int, Tensor]:
    """Return the large parameters that are not trained, by their numbers."""
    return {
        number: each
        for number, each in enumerate(held(replica.model.parameters()))
        if not each.requires_grad and is_large(each)
    }


def _digests_of(
    tensors: Sequence[Tensor], num_buffers: int, known: Mapping[int, bytes]
) -> _Digests:
    """Return the digests of a state; `known` are those of some of its tensors, by number."""
    found = [known.get(n) or digest_of(bytes_of(each)) for n, each in enumerate(tensors)]
    num_trained = len(tensors) - num_buffers
    parts = (found[:num_trained], found[num_trained:])
    return _Digests(*(blake2b(b"".join(part), digest_size=16).digest() for part in parts))
