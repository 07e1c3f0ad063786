"""The part that all services of the control plane share: decode bytes, act, answer, count.

Owns the counters and the answers to malformed or misplaced messages, which are never raised. Knows
no socket, no clock, and no rule about which message is allowed: its subclasses do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from typing import TYPE_CHECKING

from shoal.control.messages import RefusalKind, Rejected, decode_request
from shoal.control.refusal import Refusal
from shoal.decoding import decoded
from shoal.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.control.group_run import Answer
    from shoal.control.messages import Request


class MessageHandler(ABC):
    """Acts on messages. `identity` is an opaque name of the connection that a message came over.

    Every method that takes `now_ns` (nanoseconds on any monotonic clock) returns the answers to
    send.
    """

    def __init__(self) -> None:
        self.strangers = 0
        """Connections that did not complete the handshake."""
        self._handled = 0
        self._rejected: Counter[RefusalKind] = Counter()

    @property
    @abstractmethod
    def is_fixed(self) -> bool:
        """Whether the job ends with its first loss."""

    @property
    @abstractmethod
    def is_deserted(self) -> bool:
        """Whether no worker is there any more."""

    @abstractmethod
    def tick(self, now_ns: int) -> list[Answer]:
        """Notice workers that have gone silent."""

    @abstractmethod
    def disconnected(self, identity: bytes, now_ns: int) -> list[Answer]:
        """Note that a connection has closed."""

    @abstractmethod
    def shut_down(self, rank: int | None, reason: str) -> list[Answer]:
        """Tell all workers that are still there that this service ends."""

    @abstractmethod
    def _act(self, identity: bytes, message: Request, now_ns: int) -> list[Answer]:
        """Act on one message. Raises `Refusal`."""

    def show(self, now_ns: int, date_s: float) -> Callable[[], bytes] | None:
        """Return a function for any thread that makes a `Snapshot`, in JSON; None if none can be.

        Now it is `date_s` seconds since 1970.
        """
        del now_ns, date_s
        return None

    def next(self) -> MessageHandler:
        """Return the handler of messages from now on: this one, or the one that replaces it."""
        return self

    def receive(self, identity: bytes, payload: bytes, now_ns: int) -> list[Answer]:
        """Act on the bytes of one message; they may be anything."""
        try:
            message = decoded(decode_request, payload, "Not a valid message", raises=ProtocolError)
        except ProtocolError as error:
            return self._reject(identity, RefusalKind.MALFORMED, str(error))
        return self.handle(identity, message, now_ns)

    def reject_frames(self, identity: bytes, count: int) -> list[Answer]:
        """Answer a message that came in `count` frames instead of one."""
        sentence = f"A message has one frame, this one has {count}."
        return self._reject(identity, RefusalKind.MALFORMED, sentence)

    def handle(self, identity: bytes, message: Request, now_ns: int) -> list[Answer]:
        """Act on one message."""
        try:
            answers = self._act(identity, message, now_ns)
        except Refusal as refusal:
            return self._reject(identity, refusal.kind, str(refusal))
        self._handled += 1
        return answers

    def _reject(self, identity: bytes, kind: RefusalKind, reason: str) -> list[Answer]:
        self._rejected[kind] += 1
        return [(identity, Rejected(kind, reason))]
