"""Agreement before training: every worker shows its card, all raise the same error if two differ.

Owns the card and how the workers reach one verdict; `card_difference` says what must be equal.
Knows neither torch nor where the store comes from. A card carries a code made with the job key, so
that a worker with another key cannot pass for one of ours.

The first member compares and publishes the verdict: one comparison, one sentence, read by everyone.
It is rank 0 unless that has been lost; what a lost worker leaves undone, the next one does.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from shoal.control.card_difference import compare, name_ranks, other_key, remarks, unreadable
from shoal.decoding import decode_json, decode_msgpack
from shoal.errors import DataError, DeadlineExceeded, MismatchError, UsageError
from shoal.membership import after_the_first

if TYPE_CHECKING:
    from shoal.control.key import JobKey

_PREFIX = "shoal/card"
_NO_TIME = timedelta(milliseconds=1)
_GRACE_S = 2.0
_LOOK_S = 0.5
"""How often whoever waits for a card looks whether its worker still takes part."""


class CardStore(Protocol):
    """A place where cards are laid out: torch's stores fit. Failures raise `RuntimeError`."""

    def set(self, key: str, value: Any) -> object:
        """Keep `value`, bytes, under `key`: torch declares text and takes them."""
        ...

    def get(self, key: str) -> bytes:
        """Return the value under `key`."""
        ...

    def wait(self, keys: list[str], timeout: timedelta) -> object:
        """Return once all `keys` are there; raise `RuntimeError` or `TimeoutError` when late."""
        ...


class JobCard(msgspec.Struct, frozen=True):
    """The version, options and model that one worker brings to the job."""

    version: str
    """Shoal's version."""

    num_ranks: int
    """Number of workers this one expects, itself included."""

    strategy: str = ""
    """The strategy's word, or nothing while there is none."""

    options: Mapping[str, str] = {}
    """Options of the strategy and of its transport, each as text."""

    model_fingerprint: Sequence[str] = ()
    """One line per tensor of the model (name, shape, type), in the model's order."""

    python: str = platform.python_version()
    """Version of the interpreter; a difference is a remark, not an error."""

    torch: str = ""
    """Version of torch; a difference is a remark, not an error."""


class _Outcome(StrEnum):
    AGREED = "agreed"
    MISMATCH = "mismatch"
    LATE = "late"


class _Verdict(msgspec.Struct, frozen=True):
    outcome: _Outcome
    sentence: str = ""
    remarks: tuple[str, ...] = ()


class _Sealed(msgspec.Struct, frozen=True):
    payload: bytes
    code: bytes


_FORGED = _Sealed(b"", b"")


def agree(
    store: CardStore,
    rank: int,
    members: Callable[[], Sequence[int]],
    key: JobKey,
    topic: str,
    card: JobCard,
    deadline_s: float,
    *,
    look_s: float = _LOOK_S,
) -> tuple[str, ...]:
    """Return once all workers have shown equal cards; the same call on every worker.

    `members` returns the workers that take part: one that is lost meanwhile is not waited for, if
    whoever waits looks for that every `look_s` seconds.
    `topic` names the occasion and is used once per store. Returns remarks: sentences about
    differences that may matter but need not. Raises `MismatchError`, with the same sentence on
    every worker, if cards or job keys differ; `DeadlineExceeded` if some worker does not show up
    within `deadline_s` seconds.
    """
    table = _Table(store, key, f"{_PREFIX}/{topic}", deadline_s, look_s)
    table.lay(str(rank), msgspec.json.encode(card))
    sealed = None
    while sealed is None:
        judge = members()[0]
        if judge == rank:
            table.lay("verdict", msgspec.json.encode(_judge(table, members)))
        is_judge = partial(_is_first, members, judge)
        # the judge, who knows who is late, gets to say so
        sealed = table.read_while("verdict", is_judge, _GRACE_S)
        if sealed is None and is_judge():
            message = (
                f"Rank {judge} gave no verdict on {topic!r} within {deadline_s:g} s: check that it"
                " is running and has reached the same point of the script."
            )
            raise DeadlineExceeded(message)
    return _obey(sealed, rank, judge, is_genuine=table.is_genuine("verdict", sealed))


def fit(
    store: CardStore,
    rank: int,
    member: int,
    key: JobKey,
    topics: tuple[str, str],
    card: JobCard,
    deadline_s: float,
) -> None:
    """Raise `MismatchError` unless newcomer `rank` brings the card that the members agreed on.

    It is compared with the card of any `member`, and later newcomers can compare with this one's.
    No other worker hears of the result. `topics` are the training that it came to join and the one
    after it. Raises `DeadlineExceeded` if that member has not come to the first within `deadline_s`
    seconds, and `UsageError` if it has come to the second.
    """
    topic, later = topics
    if _Table(store, key, f"{_PREFIX}/{later}", 0.0).read(str(member)) is not None:
        raise UsageError(after_the_first(rank))
    table = _Table(store, key, f"{_PREFIX}/{topic}", deadline_s)
    if (theirs := table.read(str(member))) is None:
        message = (
            f"The job that runs did not begin the training {topic!r}, which this worker came to"
            f" join, within {deadline_s:g} s."
        )
        raise DeadlineExceeded(message)
    if not table.is_genuine(str(member), theirs):
        raise MismatchError(other_key([member], rank))
    cards = {member: decode_json(theirs.payload, JobCard, "No card"), rank: card}
    if sentence := compare(cards, member):
        message = f"This worker does not fit the job that it came to join. {sentence}"
        raise MismatchError(message)
    table.lay(str(rank), msgspec.json.encode(card))


def _obey(sealed: _Sealed, rank: int, judge: int, *, is_genuine: bool) -> tuple[str, ...]:
    """Return the verdict's remarks, or raise the error that it tells of."""
    try:
        verdict = decode_json(sealed.payload, _Verdict, "No verdict")
    except DataError:
        verdict = _Verdict(_Outcome.MISMATCH, other_key([rank], judge))
    # A verdict that stops the job needs no genuine code: the same sentence reaches a worker with
    # another key, and a process that can write to the store can stop the job anyway.
    if verdict.outcome is _Outcome.LATE:
        raise DeadlineExceeded(verdict.sentence)
    if verdict.outcome is _Outcome.MISMATCH:
        raise MismatchError(verdict.sentence)
    if not is_genuine:
        raise MismatchError(other_key([rank], judge))
    return verdict.remarks


class _Table:
    """The part of the store that one occasion uses, with the codes of what lies there."""

    def __init__(
        self,
        store: CardStore,
        key: JobKey,
        prefix: str,
        deadline_s: float,
        look_s: float = _LOOK_S,
    ) -> None:
        self._store = store
        self._key = key
        self._prefix = prefix
        self.deadline_s, self._look_s = deadline_s, look_s
        self._end = time.monotonic() + deadline_s

    def lay(self, name: str, payload: bytes) -> None:
        """Put `payload` under `name`, with its code."""
        sealed = _Sealed(payload, self._key.mac(self._place(name) + payload))
        self._store.set(f"{self._prefix}/{name}", msgspec.msgpack.encode(sealed))

    def read(self, name: str) -> _Sealed | None:
        """Return the entry `name`, or None if it is not there at the deadline."""
        return self.read_while(name, lambda: True)

    def read_while(
        self, name: str, is_awaited: Callable[[], bool], grace_s: float = 0.0
    ) -> _Sealed | None:
        """Return the entry `name`, or None if it is not there `grace_s` after the deadline.

        None, too, once it is not awaited any more and not there.
        """
        place, end = f"{self._prefix}/{name}", self._end + grace_s
        while True:
            goes_on = is_awaited() and time.monotonic() < end
            left = timedelta(seconds=min(self._look_s, max(0.0, end - time.monotonic())))
            with suppress(RuntimeError, TimeoutError):
                self._store.wait([place], max(left, _NO_TIME) if goes_on else _NO_TIME)
                break
            if not goes_on:
                return None
        try:
            return decode_msgpack(self._store.get(place), _Sealed, "No card")
        except DataError:
            return _FORGED

    def is_genuine(self, name: str, sealed: _Sealed) -> bool:
        """Return whether a holder of the job key has put `sealed` here."""
        return self._key.verifies(self._place(name) + sealed.payload, sealed.code)

    def _place(self, name: str) -> bytes:
        return f"{self._prefix}/{name}".encode() + b"\0"


def _is_first(members: Callable[[], Sequence[int]], rank: int) -> bool:
    return members()[0] == rank


def _takes_part(members: Callable[[], Sequence[int]], rank: int) -> bool:
    return rank in members()


def _judge(table: _Table, members: Callable[[], Sequence[int]]) -> _Verdict:
    """Read all cards as the first member, and return the verdict on them."""
    first = members()[0]
    sealed = {
        rank: table.read_while(str(rank), partial(_takes_part, members, rank)) for rank in members()
    }
    there = {rank: it for rank, it in sealed.items() if it is not None}
    if sentence := _find_difference(table, there, first):
        return _Verdict(_Outcome.MISMATCH, sentence)
    if late := [rank for rank, it in sealed.items() if it is None and _takes_part(members, rank)]:
        sentence = (
            f"{name_ranks(late)} did not show up within {table.deadline_s:g} s: check that every "
            f"worker is running and can reach rank {first}."
        )
        return _Verdict(_Outcome.LATE, sentence)
    cards = {rank: decode_json(it.payload, JobCard, "No card") for rank, it in there.items()}
    return _Verdict(_Outcome.AGREED, remarks=remarks(cards, first))


def _find_difference(table: _Table, sealed: Mapping[int, _Sealed], judge: int) -> str:
    """Return the sentence about the first difference between cards that are there, or ''."""
    if strangers := [r for r, it in sealed.items() if not table.is_genuine(str(r), it)]:
        return other_key(strangers, judge)
    cards: dict[int, JobCard] = {}
    for rank, it in sealed.items():
        try:
            cards[rank] = decode_json(it.payload, JobCard, "No card")
        except DataError:
            return unreadable(rank, judge)
    return compare(cards, judge)
