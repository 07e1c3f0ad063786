"""A paper's claim beside what was found: a row of every comparison's last table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """What the papers report, what was found here, and what differs."""

    what: str
    paper: str
    ours: str
    verdict: str
    differs: str


def verdict(is_reached: bool) -> str:
    """Return whether the papers' number was found, in a word."""
    return "reached" if is_reached else "missed"
