"""The control plane that stands by: workers follow it, and it takes over when the other is lost.

Owns its knowledge until then: which workers follow, how far each knows the membership to have come,
which have come over, and how the training goes. When most have come over, a `ControlHandler` goes
on from there. The lost control plane's groups and facts need no rescue: workers join the new one,
and tell it anew. docs/control-plane.md says what workers see of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.control.handler import ControlHandler
from shoal.control.liveness import Liveness
from shoal.control.message_handler import MessageHandler
from shoal.control.messages import (
    Done,
    Follow,
    Goodbye,
    Heard,
    Heartbeat,
    Lost,
    RefusalKind,
    Sampled,
    Unfollow,
    Welcome,
)
from shoal.control.refusal import Refusal
from shoal.units import ns_to_seconds
from shoal.watch import Picture

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.control.group_run import Answer
    from shoal.control.messages import Request
    from shoal.control.terms import Terms

_PATIENCE: Final = 2
"""The number of timeouts for which workers that have come over wait until most have."""


class Standby(MessageHandler):
    """Stands by beside rank `keeper`.

    `on_succession` is called once it has taken over.
    """

    def __init__(
        self,
        terms: Terms,
        keeper: int,
        now_ns: int,
        on_succession: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self._terms, self._keeper = terms, keeper
        self._on_succession = on_succession
        self._liveness = Liveness((), terms.timeout_ns)
        self._succession = terms.succession(keeper)
        self._moved: dict[bytes, int] = {}
        """The times at which workers have come over, by their connections."""
        self._expected_ns: dict[int, int] = {}
        """The times since which members that do not follow yet are expected to."""
        self._successor: ControlHandler | None = None
        self._now_ns = now_ns
        self._picture = Picture(ns_to_seconds(now_ns))
        """The workers' samples of their training, so that it can be shown after a succession."""
        self._epoch = 0
        """The epoch of the newest view that the picture knows."""

    @property
    def is_fixed(self) -> bool:
        """Whether the job ends with its first loss."""
        return False

    @property
    def is_deserted(self) -> bool:
        """Whether no worker that has been heard lately follows."""
        return not self._liveness.heard(self._now_ns)

    def next(self) -> MessageHandler:
        """Return the handler of messages from now on."""
        return self._successor or self

    def tick(self, now_ns: int) -> list[Answer]:
        """Take over if enough have come; tell workers that waited too long that they are out."""
        self._now_ns = now_ns
        answers = self._ascend(now_ns)
        if answers:
            return answers
        limit_ns = now_ns - _PATIENCE * self._terms.timeout_ns
        alone = [each for each, since_ns in self._moved.items() if since_ns < limit_ns]
        for identity in alone:
            del self._moved[identity]
        reason = (
            "This worker heard nothing of the control plane, and too few others came over to its"
            " successor: they may go on without this one."
        )
        return [(each, Lost(self._liveness.rank_of(each), reason)) for each in alone]

    def disconnected(self, identity: bytes, now_ns: int) -> list[Answer]:
        """Note that the process of a follower has ended."""
        rank = self._liveness.rank_of(identity)
        if rank is None:
            return []
        self._liveness.lose(rank)
        self._moved.pop(identity, None)
        self._succession.ended(rank)
        return self._ascend(now_ns)

    def shut_down(self, rank: int | None, reason: str) -> list[Answer]:
        """Say nothing: the job does not depend on this service."""
        del rank, reason
        return []

    def _act(self, identity: bytes, message: Request, now_ns: int) -> list[Answer]:
        match message:
            case Follow():
                return self._on_follow(identity, message, now_ns)
            case Heartbeat(rank, progress) if self._liveness.rank_of(identity) == rank:
                self._liveness.heartbeat(identity, rank, now_ns, progress)
                self._picture.hear(rank, message.blocked_ms)
                return [(identity, Heard())]
            case Goodbye(rank, is_finished) if self._liveness.rank_of(identity) == rank:
                self._liveness.goodbye(rank, is_finished=is_finished)
                self._succession.leave(rank, has_finished=is_finished)
                return [(identity, Done()), *self._ascend(now_ns)]
            case Sampled(rank, sample):
                if self._liveness.rank_of(identity) == rank:
                    self._picture.take(rank, sample, ns_to_seconds(now_ns))
                return []
            case Unfollow(rank) if self._liveness.rank_of(identity) == rank:
                self._liveness.goodbye(rank, is_finished=False)
                self._succession.forget(rank)
                return [(identity, Done())]
        sentence = "This control plane stands by for another one, and does not serve yet."
        raise Refusal(RefusalKind.STANDS_BY, sentence)

    def _on_follow(self, identity: bytes, message: Follow, now_ns: int) -> list[Answer]:
        rank = message.rank
        is_new = self._liveness.rank_of(identity) != rank
        if is_new:
            self._liveness.watch(identity, rank, now_ns)
        else:
            self._liveness.heartbeat(identity, rank, now_ns)
        if message.has_moved:
            self._moved[identity] = now_ns
        if (view := message.position.view).epoch > self._epoch:
            self._epoch = view.epoch
            self._picture.note("view", view.sentence, ns_to_seconds(now_ns))
        self._succession.follow(rank, message.position, has_moved=message.has_moved)
        self._expected_ns.pop(rank, None)
        answer = Welcome(self._terms.timeout_ms) if is_new else Heard()
        return [(identity, answer), *self._ascend(now_ns)]

    def _ascend(self, now_ns: int) -> list[Answer]:
        """Take over if most have come, and no other may only stand still for a moment."""
        since_ns = [
            self._expected_ns.setdefault(rank, now_ns) for rank in self._succession.expected
        ]
        if not self._moved or self._successor is not None:
            return []
        if since_ns and now_ns - max(since_ns) < self._terms.timeout_ns:
            return []
        there = self._liveness.heard(now_ns)
        ascended = self._succession.ascend(there, now_ns)
        position = self._succession.position
        if ascended is None or position is None:
            return []
        membership, events = ascended
        self._successor = ControlHandler(
            membership,
            self._terms,
            now_ns,
            keeper=self._keeper,
            liveness=self._liveness,
            picture=self._picture,
            after_preparation=position.preparation,
        )
        self._on_succession()
        absent = [rank for rank in position.view.members if rank not in there]
        return self._successor.take_over(absent, events, now_ns)
