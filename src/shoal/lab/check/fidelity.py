"""What has been measured of a lab against what its spec says, and the verdicts.

Knows how close is close enough, and no socket and no clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum, unique
from typing import Final

import msgspec

RATE_TOLERANCE: Final = 0.03
"""Share by which a rate may differ."""
DELAY_TOLERANCE_S: Final = 0.0002
"""The seconds by which a delay may lie outside of what the spec says."""
COUNT_TOLERANCE: Final = 1
"""Packets by which the length of a queue may differ."""


@unique
class Verdict(StrEnum):
    """What a figure means for a user who relies on the spec."""

    OK = "ok"
    OUTSIDE = "outside tolerance"
    STATED = "stated"
    """A figure that the spec says nothing of."""
    UNKNOWN = "not measured"


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing measured; what does not apply is null."""

    lab: str = ""
    what: str
    where: str
    specified: float | None = None
    """The value that the spec names, or the end of `interval` that is nearest."""
    interval: tuple[float, float] | None = None
    """What the spec allows, where that is not one value."""
    measured: float | None = None
    unit: str = ""
    error: float | None = None
    error_unit: str = ""
    verdict: Verdict
    note: str = ""
    """How it was measured, at which load, or why not."""


def of_lab(lab: str, check: Check) -> Check:
    """Return the row with the name of its lab."""
    return msgspec.structs.replace(check, lab=lab)


def is_anything_outside(checks: Sequence[Check]) -> bool:
    """Return whether something is not as the spec says."""
    return any(check.verdict is Verdict.OUTSIDE for check in checks)


def unknown(what: str, where: str, why: str) -> Check:
    """Return the row of a property that could not be measured."""
    return Check(what=what, where=where, verdict=Verdict.UNKNOWN, note=why)


def stated(what: str, where: str, measured: float, unit: str, note: str = "") -> Check:
    """Return the row of a property that the spec does not mention."""
    return Check(
        what=what, where=where, measured=measured, unit=unit, verdict=Verdict.STATED, note=note
    )


def judge_rate(what: str, where: str, specified: float, measured: float, note: str = "") -> Check:
    """Return the row of a rate in bits per second."""
    error = measured / specified - 1
    return Check(
        what=what,
        where=where,
        specified=specified / 1e6,
        measured=measured / 1e6,
        unit="Mbit/s",
        error=100 * error,
        error_unit="%",
        verdict=_verdict(abs(error) < RATE_TOLERANCE),
        note=note,
    )


def distance(value: float, least: float, most: float) -> float:
    """Return by how much `value` lies outside of an interval: below 0 if it is too small."""
    return min(0.0, value - least) + max(0.0, value - most)


def judge_delay(
    what: str, where: str, specified_s: tuple[float, float], measured_s: float, note: str = ""
) -> Check:
    """Return the row of a delay that is to lie in the interval `specified_s`."""
    off = distance(measured_s, *specified_s)
    nearest = specified_s[1] if measured_s > specified_s[0] else specified_s[0]
    return Check(
        what=what,
        where=where,
        specified=nearest * 1e3,
        interval=_between(specified_s[0] * 1e3, specified_s[1] * 1e3),
        measured=measured_s * 1e3,
        unit="ms",
        error=off * 1e3,
        error_unit="ms",
        verdict=_verdict(abs(off) < DELAY_TOLERANCE_S),
        note=note,
    )


def judge_count(
    what: str,
    where: str,
    specified: tuple[int, int],
    measured: int,
    *,
    tolerance: int = 0,
    note: str = "",
) -> Check:
    """Return the row of a number of packets that is to lie in the interval `specified`."""
    off = distance(measured, *specified)
    return Check(
        what=what,
        where=where,
        specified=specified[1] if measured > specified[0] else specified[0],
        interval=_between(*specified),
        measured=measured,
        unit="packets",
        error=off,
        error_unit="packets",
        verdict=_verdict(abs(off) <= tolerance),
        note=note,
    )


def judge_load(where: str, asked: float, carried: float) -> Check:
    """Return whether the machine carries the packets per second that the spec's links ask for."""
    enough = asked <= carried
    note = "all hosts at the full rate of their links, against what this machine carries"
    if not enough:
        times = f"{asked / carried:.1f} times what" if carried > 0 else "more than nothing, which"
        note = (
            f"the spec's links ask for {times} this machine carries:"
            " figures from this lab are wrong when they are busy"
        )
    return Check(
        what="load",
        where=where,
        specified=asked,
        measured=carried,
        unit="packets/s",
        verdict=_verdict(enough),
        note=note,
    )


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest of `values` that at least this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _between(least: float, most: float) -> tuple[float, float] | None:
    return (least, most) if least < most else None


def _verdict(is_fine: bool) -> Verdict:
    return Verdict.OK if is_fine else Verdict.OUTSIDE
