"""One training run inside a job: its group generator and the requests that wait for it.

Owns which connection stands for which rank, and turns the generator's assignments into answers.
Knows no socket, no clock and no other run. The rules for forming groups are the generator's
(docs/papers.md, 3.4); this file only matches questions with answers.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TypeAlias

from shoal.control.messages import (
    Assigned,
    Join,
    RefusalKind,
    Reply,
    SessionDump,
    Waiting,
)
from shoal.control.refusal import Refusal
from shoal.groups import GroupGenerator
from shoal.units import NANOSECONDS_PER_MILLISECOND
from shoal.watch import ComparedRequests

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from shoal.groups import Assignment

Answer: TypeAlias = tuple[bytes, Reply]
"""A connection's identity and the reply to send there."""


@dataclass(frozen=True, slots=True)
class _Pending:
    identity: bytes
    step: int
    since_ns: int


class GroupRun:
    """A generator and its workers. Created by the first `Join`, whose rules then hold for all."""

    def __init__(self, first: Join) -> None:
        self._rules = first
        self._generator = GroupGenerator(first.config, random.Random(first.seed))
        self._joined: dict[int, bytes] = {}
        self._left: dict[int, bytes] = {}
        """The connection of each rank that was in and has left."""
        self._pending: dict[int, _Pending] = {}
        self._compared = ComparedRequests()
        self.epoch = 0
        """The epoch of the view in which groups are formed."""

    def join(self, identity: bytes, message: Join) -> None:
        """Let a worker in. Raises `Refusal` if it was in before or brings other rules."""
        rank = message.rank
        if rank in self._joined or self._left.get(rank) == identity:
            raise Refusal(
                RefusalKind.DUPLICATE,
                f"Rank {rank} has joined session {message.session!r} before: name every run anew.",
            )
        if difference := _difference(self._rules, message):
            raise Refusal(
                RefusalKind.MISMATCH,
                f"Rank {rank} joins session {message.session!r} with {difference}: start every "
                "worker with the same options.",
            )
        self._generator.join(rank, message.host)
        self._left.pop(rank, None)  # it was another process
        self._joined[rank] = identity
        self._compared.come(rank)

    def request(self, identity: bytes, rank: int, step: int, now_ns: int) -> list[Answer]:
        """Ask for the group of `rank`; return all answers that this makes possible."""
        self._check(identity, rank)
        if rank in self._pending:
            raise Refusal(
                RefusalKind.DUPLICATE,
                f"Rank {rank} asked for a group while its previous request waits for an answer.",
            )
        self._pending[rank] = _Pending(identity, step, now_ns)
        self._compared.ask(rank, self._asked())
        return self._answers(self._generator.request(rank, now_ns))

    def awaited(self, rank: int) -> list[int]:
        """Return the workers for which the request of `rank` waits; empty if it waits for none."""
        return self._generator.awaited(rank)

    def part(self, rank: int, others: Collection[int], now_ns: int) -> list[Answer]:
        """Let the group of `rank` meet without `others`; return the answers this makes possible."""
        return self._answers(self._generator.part(rank, others, now_ns))

    def leave(self, identity: bytes, rank: int, now_ns: int) -> list[Answer]:
        """Let a worker out; return the answers to others that this makes possible."""
        self._check(identity, rank)
        self._compared.finish(rank, self._asked())
        return self._remove([rank], now_ns)

    def remove(self, rank: int, now_ns: int) -> list[Answer]:
        """Let `rank` out if it is in; its own request is dropped."""
        return self._lose([rank] if rank in self._joined else [], now_ns)

    def keep(self, members: Collection[int], now_ns: int) -> list[Answer]:
        """Let all but `members` out, so that no answer names any of the others."""
        return self._lose([rank for rank in self._joined if rank not in members], now_ns)

    def _lose(self, lost: Collection[int], now_ns: int) -> list[Answer]:
        for rank in lost:
            self._compared.lose(rank, self._asked())
        return self._remove(lost, now_ns)

    def _remove(self, leaving: Collection[int], now_ns: int) -> list[Answer]:
        for rank in leaving:
            self._left[rank] = self._joined.pop(rank)
            self._pending.pop(rank, None)
        return self._answers(self._generator.leave_together(leaving, now_ns))

    def is_over(self, members: Collection[int], finished: set[int]) -> bool:
        """Return whether every member of the job has left this run or finished altogether."""
        return not self._joined and self._left.keys() | finished >= set(members)

    def abandon(self) -> list[bytes]:
        """Drop every request; return the connections that wait for an answer."""
        waiting = [pending.identity for pending in self._pending.values()]
        self._pending.clear()
        return waiting

    def dump(self, now_ns: int) -> SessionDump:
        """Return the state of this run."""
        waiting = sorted(self._pending.items(), key=lambda item: item[1].since_ns)
        return SessionDump(
            session=self._rules.session,
            seed=self._rules.seed,
            joined=tuple(sorted(self._joined)),
            left=tuple(sorted(self._left)),
            waiting=tuple(
                Waiting(rank, it.step, (now_ns - it.since_ns) // NANOSECONDS_PER_MILLISECOND)
                for rank, it in waiting
            ),
            compared=self.compared_requests(),
            generator=self._generator.dump(),
        )

    def compared_requests(self) -> dict[int, int]:
        """Return how often each worker has asked for a group, in the same interval for all.

        See `ComparedRequests`.
        """
        return self._compared.since(self._asked())

    def _asked(self) -> dict[int, int]:
        return self._generator.counters.requests_by_rank

    def _check(self, identity: bytes, rank: int) -> None:
        if self._joined.get(rank) != identity:
            raise Refusal(
                RefusalKind.NOT_JOINED,
                f"Rank {rank} is not in session {self._rules.session!r} over this connection: join "
                "it first.",
            )

    def _answers(self, assignments: Iterable[Assignment]) -> list[Answer]:
        answers: list[Answer] = []
        for made in assignments:
            # One reply object serves all members with the same answer, so it is encoded once.
            name, reason = self._rules.session, made.reason.value
            last = Assigned(name, made.group_id, made.members, reason, False, self.epoch)
            more = Assigned(name, made.group_id, made.members, reason, True, self.epoch)
            for rank in made.members:
                identity = self._pending.pop(rank).identity
                answers.append((identity, more if rank in made.more else last))
        return answers


def _difference(first: Join, other: Join) -> str:
    """Return how the rules of `other` differ, or nothing if they do not."""
    wanted = {**asdict(first.config), "seed": first.seed}
    given = {**asdict(other.config), "seed": other.seed}
    return " and ".join(
        f"{name}={value} where rank {first.rank} has {name}={wanted[name]}"
        for name, value in given.items()
        if value != wanted[name]
    )
