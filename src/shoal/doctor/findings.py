"""A finding: what was looked at, what was found, how good that is, and what to change."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

Short: TypeAlias = Annotated[str, Meta(max_length=100)]
Long: TypeAlias = Annotated[str, Meta(max_length=2000)]


class Verdict(StrEnum):
    """How good something is for the transport."""

    OK = "ok"
    BETTER = "could be better"
    WRONG = "wrong"


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at."""

    name: Short
    where: Short
    """An address, or two with an arrow between: from the first to the second."""
    found: Long
    verdict: Verdict = Verdict.OK
    advice: Long = ""
    """What to change, in one sentence; empty if nothing."""


def is_anything_wrong(findings: Iterable[Finding]) -> bool:
    """Return whether one of `findings` is wrong, and not merely improvable."""
    return any(finding.verdict is Verdict.WRONG for finding in findings)
