"""The job key: one secret shared by the workers of a job, and everything derived from it.

Owns the derivation of the control plane's CURVE key pairs, of message authentication codes and of
further secrets. Knows neither where the secret comes from nor what the codes protect. The secret
appears in no log, no argument list and no `repr`.

Derivation is keyed BLAKE2b with a distinct personalization per purpose (RFC 7693 section 2.5), so
one derived secret says nothing about another. It is fast on purpose: the secret must be random.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

import zmq
from zmq.utils import z85

from shoal import arguments
from shoal.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

MINIMUM_LENGTH = 16
"""Fewest characters of a job key; shorter ones could be guessed from a recorded handshake."""

_PURPOSE_BYTES = blake2b.PERSON_SIZE


@dataclass(frozen=True, slots=True)
class CurvePair:
    """A CURVE key pair, each half 40 bytes of Z85 text as ZeroMQ takes it."""

    public: bytes
    """The half that the other side knows."""

    secret: bytes
    """The half that proves possession of the pair."""

    def __repr__(self) -> str:
        return "CurvePair(<hidden>)"


def given_key(environment: Mapping[str, str]) -> str | None:
    """Return the job key in SHOAL_JOB_KEY; None if that is empty or not set."""
    return environment.get("SHOAL_JOB_KEY") or None


class JobKey:
    """The secret of one job. Two equal texts derive equal keys, on every machine.

    Raises `UsageError` if `text`, stripped, has fewer than `MINIMUM_LENGTH` characters.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = arguments.text(text, "A job key").strip()
        if len(self._text) < MINIMUM_LENGTH:
            message = (
                f"A job key needs at least {MINIMUM_LENGTH} characters, this one has "
                f"{len(self._text)}: use a random one, such as JobKey.generate() makes."
            )
            raise UsageError(message)

    @classmethod
    def generate(cls) -> JobKey:
        """Return a new key with 256 random bits."""
        return cls(secrets.token_urlsafe(32))

    def reveal(self) -> str:
        """Return the secret text, to hand to another worker through a private channel."""
        return self._text

    def derive(self, purpose: str) -> bytes:
        """Return the 32-byte secret of `purpose` (1 to 16 ASCII characters).

        Raises `UsageError` if `purpose` does not fit.
        """
        person = purpose.encode("ascii", "replace")
        if not 0 < len(person) <= _PURPOSE_BYTES:
            message = f"A purpose has 1 to {_PURPOSE_BYTES} characters, unlike {purpose!r}."
            raise UsageError(message)
        return blake2b(self._text.encode(), digest_size=32, person=person).digest()

    def server_pair(self) -> CurvePair:
        """Return the key pair of the control plane's service."""
        return _curve_pair(self.derive("curve service"))

    def client_pair(self) -> CurvePair:
        """Return the key pair that all workers share."""
        return _curve_pair(self.derive("curve worker"))

    def mac(self, data: bytes) -> bytes:
        """Return the 32-byte authentication code of `data`."""
        return blake2b(data, digest_size=32, key=self.derive("mac")).digest()

    def verifies(self, data: bytes, code: bytes) -> bool:
        """Return whether `code` is the code of `data` under this key, in constant time."""
        return hmac.compare_digest(self.mac(data), code)

    def __repr__(self) -> str:
        return "JobKey(<hidden>)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, JobKey):
            return NotImplemented
        return hmac.compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash(self.derive("hash"))


def _curve_pair(secret: bytes) -> CurvePair:
    text = z85.encode(secret)
    return CurvePair(zmq.curve_public(text), text)
