"""What a newcomer goes on from: the model, the optimizer's state and the course's, from a member.

A view with a newcomer begins like any other. Before its members do anything together in it, one
that is as far as any hands its state on, at a border: what all of a step has changed is there, and
nothing of the next. Who lacks it is known by the decision (`membership.Decision.newcomers`), so if
either end is lost on the way, the next view's members begin again, with another donor if need be.

Names, shapes and plain values go over the control plane, which is authenticated, with digests; the
tensors' bytes go over the transport, and are held against those.
"""

from __future__ import annotations

import io
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import msgspec
import torch

from shoal.carriers import HOST, STATE_CHANNEL
from shoal.control import name_ranks
from shoal.decoding import decode_msgpack
from shoal.errors import DeadlineExceeded, MismatchError, ShoalError, ViewChanging, WorkerLost
from shoal.train.flat_parameters import bytes_of

if TYPE_CHECKING:
    from torch import Tensor

    from shoal.membership import Decision
    from shoal.train.executor import AbstractExecutor
    from shoal.train.replica import Replica

_POLL_S: Final = 0.002
_ALIGNED: Final = 16
"""Tensors begin at multiples of so many bytes, as every type wants it."""
_BLOCK_BYTES: Final = 1 << 20
_NOBODY: Final = "All who had a model were lost before one handed it on to this newcomer."
_GIVEN, _DIGESTS = "given", "digests"


class _Given(msgspec.Struct, frozen=True):
    """What a donor says of the bytes that it sends."""

    num_bytes: int
    num_trained: int
    """The bytes of parameters and optimizer state, which come first."""
    skeleton: bytes
    """The state, with tensors that have shapes and types but no values."""


class _Digests(msgspec.Struct, frozen=True):
    """What two workers compare to see whether they have the same bytes."""

    trained: bytes
    buffers: bytes


class Donor:
    """One replica's state, handed on once in every view with newcomers.

    Where a strategy is exact (`is_exact`) all members are to have the same: each of them says what
    it has, and a newcomer does not begin from a model that is one of several.
    """

    def __init__(self, replica: Replica, *, is_exact: bool) -> None:
        self._replica, self._is_exact = replica, is_exact
        self._epoch = replica.view.epoch
        self._sent: list[object] = []
        """What is under way, with the memory that it is sent from."""

    def hand_on(self, executor: AbstractExecutor, buffers: Sequence[Tensor] | None = None) -> None:
        """Give newcomers of the view what they lack. At a border only, in the training thread.

        `buffers` are the model's as they are at the border, if it has others by now.
        """
        decision, own = self._replica.member.decision, self._replica.communicator.rank
        if decision.view.epoch == self._epoch:
            return
        self._epoch = decision.view.epoch
        if own not in decision.reports:  # it is new itself
            return
        donors = _donors(decision, self._replica.session)
        takers = [taker for taker, donor in donors.items() if donor == own]
        if takers or (donors and self._is_exact):
            given, packed = _packed(_state_of(self._replica, executor, buffers))
            arguments = decision, given, packed, takers
            # Computing need not wait for it: what is sent is a copy.
            threading.Thread(target=self._send, args=arguments, daemon=True).start()

    def _send(
        self, decision: Decision, given: _Given, packed: Tensor, takers: Sequence[int]
    ) -> None:
        replica, member = self._replica, self._replica.member
        with suppress(ShoalError):  # of a view that is over, or a job: others hear of that
            if takers:
                self._say(_GIVEN, decision, given)
            with member.changed:
                if not member.is_in(decision.view):
                    return
                send = replica.communicator.send
                self._sent = [send(packed, each, channel=STATE_CHANNEL) for each in takers]
            self._say(_DIGESTS, decision, _digests_of(packed, given))

    def _say(self, what: str, decision: Decision, value: msgspec.Struct) -> None:
        name = _named(self._replica, what, decision, self._replica.communicator.rank)
        self._replica.facts.set(name, msgspec.msgpack.encode(value))


def take_over(replica: Replica, executor: AbstractExecutor) -> int:
    """Give a newcomer's `replica` and `executor` what they go on from.

    Return how many steps led to that. Raises `MismatchError` if what comes does not fit, is damaged
    or is one of several models, and `DeadlineExceeded`.
    """
    member = replica.member
    while True:
        with suppress(ViewChanging):
            decision = executor.come_in()
            if not decision.reports:
                raise WorkerLost(_NOBODY)
            with member.acting_in(decision.view):
                given, packed = _receive(replica, decision)
                _check(replica, decision, given, packed, is_exact=executor.is_exact)
            steps = _load(replica, executor, _unpacked(given, packed))
            with member.changed:
                if member.is_in(decision.view):
                    member.is_newcomer = False
                    return steps


def _donors(decision: Decision, training: str) -> dict[int, int]:
    """Return who gives each newcomer of a view its state: those who are furthest, in turn."""
    rounds = decision.rounds_of(training)
    furthest = [rank for rank in sorted(rounds) if rounds[rank] == max(rounds.values())]
    newcomers = decision.newcomers if furthest else ()
    return {rank: furthest[place % len(furthest)] for place, rank in enumerate(newcomers)}


def _receive(replica: Replica, decision: Decision) -> tuple[_Given, Tensor]:
    donor = _donors(decision, replica.session)[replica.communicator.rank]
    (said,) = _await(replica, _GIVEN, decision, [donor])
    given = decode_msgpack(said, _Given, f"What rank {donor} gives is not understood")
    packed = torch.empty(given.num_bytes, dtype=torch.uint8, device=HOST)
    replica.communicator.receive(packed, donor, channel=STATE_CHANNEL).wait()
    return given, packed


def _check(
    replica: Replica, decision: Decision, given: _Given, packed: Tensor, *, is_exact: bool
) -> None:
    """Raise `MismatchError` unless what came is what the donor has, and all that are to have it."""
    donor = _donors(decision, replica.session)[replica.communicator.rank]
    ranks = sorted(decision.reports) if is_exact else [donor]
    fault = "What a worker says of its state is not understood"
    said = {
        rank: decode_msgpack(each, _Digests, fault)
        for rank, each in zip(ranks, _await(replica, _DIGESTS, decision, ranks), strict=True)
    }
    if said[donor] != _digests_of(packed, given):
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
    """Return what each of `ranks` says of its state in a view."""
    names = [_named(replica, what, decision, rank) for rank in ranks]
    end = time.monotonic() + replica.deadline_s
    while not all(there := replica.facts.are_published(names)):
        replica.communicator.check()
        if time.monotonic() > end:
            late = [rank for rank, is_there in zip(ranks, there, strict=True) if not is_there]
            message = (
                f"{name_ranks(late)} did not hand its state on to this newcomer within"
                f" {replica.deadline_s:g} s."
            )
            raise DeadlineExceeded(message)
        time.sleep(_POLL_S)
    return [replica.facts.get(name) for name in names]


def _named(replica: Replica, what: str, decision: Decision, rank: int) -> str:
    return f"{replica.session}/{what}/{decision.view.epoch}/{rank}"


def _state_of(
    replica: Replica, executor: AbstractExecutor, buffers: Sequence[Tensor] | None
) -> dict[str, Any]:
    """Return all that a newcomer lacks, buffers last."""
    return {
        "parameters": held(replica.model.parameters()),
        "optimizer": replica.optimizer.state_dict(),
        "course": executor.course.handed_on(),
        "steps": replica.stopwatch.step,
        "buffers": held(replica.model.buffers()) if buffers is None else list(buffers),
    }


def _load(replica: Replica, executor: AbstractExecutor, state: dict[str, Any]) -> int:
    """Let a newcomer have a donor's state; return the number of steps made."""
    own = [*held(replica.model.parameters()), *held(replica.model.buffers())]
    with torch.no_grad():
        for mine, given in zip(own, [*state["parameters"], *state["buffers"]], strict=True):
            mine.copy_(given)
    replica.optimizer.load_state_dict(state["optimizer"])
    executor.course.take_over(state["course"])
    return int(state["steps"])


def held(tensors: Iterator[Tensor]) -> list[Tensor]:
    """Return those of a model's tensors that hold values of their own."""
    return [each for each in tensors if each.layout == torch.strided and each.numel()]


def _packed(state: dict[str, Any]) -> tuple[_Given, Tensor]:
    """Return a copy of the state: what stays of it without its tensors' values, and those."""
    found: list[Tensor] = []

    def take_out(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")

    skeleton = io.BytesIO()
    torch.save(_mapped(state, take_out), skeleton)
    starts = _starts(found)
    packed = torch.zeros(starts[-1], dtype=torch.uint8, device=HOST)
    for tensor, start in zip(found, starts, strict=False):
        values = bytes_of(tensor)
        packed[start : start + len(values)] = values
    num_trained = starts[len(found) - len(state["buffers"])]
    return _Given(len(packed), num_trained, skeleton.getvalue()), packed


def _unpacked(given: _Given, packed: Tensor) -> dict[str, Any]:
    """Return the state that has been packed."""
    position = 0

    def put_in(tensor: Tensor) -> Tensor:
        nonlocal position
        start, position = position, _end_of(tensor, position)
        values = packed[start : start + tensor.numel() * tensor.element_size()]
        return values.view(tensor.dtype).view(tensor.shape).clone()

    state = torch.load(io.BytesIO(given.skeleton), weights_only=True)
    mapped: dict[str, Any] = _mapped(state, put_in)
    return mapped


def _starts(tensors: Sequence[Tensor]) -> list[int]:
    """Return where each tensor begins when they are packed, and where the last one ends."""
    starts = [0]
    for tensor in tensors:
        starts.append(_end_of(tensor, starts[-1]))
    return starts


def _end_of(tensor: Tensor, start: int) -> int:
    return start + -(-tensor.numel() * tensor.element_size() // _ALIGNED) * _ALIGNED


def _mapped(value: Any, act: Callable[[Tensor], Tensor]) -> Any:
    """Return `value` with every tensor in it replaced, in a fixed order."""
    if isinstance(value, torch.Tensor):
        return act(value)
    if isinstance(value, dict):
        return {key: _mapped(each, act) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([_mapped(each, act) for each in value])
    return value


def _digests_of(packed: Tensor, given: _Given) -> _Digests:
    trained, buffers = packed.split([given.num_trained, given.num_bytes - given.num_trained])
    return _Digests(_digest(trained), _digest(buffers))


def _digest(packed: Tensor) -> bytes:
    """Return what tells these bytes from damaged ones: a checksum of each block, hashed.

    It keeps no forger out, but is made at several times the speed of what would.
    """
    found = blake2b(digest_size=16)
    for block in packed.split(_BLOCK_BYTES):
        found.update(zlib.crc32(block.numpy()).to_bytes(4))
    return found.digest()
