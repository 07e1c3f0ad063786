"""What the doctor writes into a file: its findings, and the figures of the pairs it examined.

Owns the file's format and its version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from shoal.doctor.findings import Finding
from shoal.doctor.probe_facts import RateFacts
from shoal.errors import DataError
from shoal.jobs import read_json

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.doctor.probe_facts import PairFacts, WayFacts

REPORT_FORMAT: Final = 1
"""Version of the file; another number is another format."""

Address: TypeAlias = Annotated[str, Meta(pattern="^[0-9A-Za-z.:%_-]{2,45}$")]
Whole: TypeAlias = Annotated[int, Meta(ge=0)]

_AGAIN: Final = "write one with shoal doctor --with HOST --json FILE"


class WayFigures(msgspec.Struct, frozen=True):
    """What was measured of the way from one host to another."""

    sender: Address
    receiver: Address
    path_mtu: Whole | None
    """Largest IP packet in bytes that arrives unfragmented; None: not known."""
    rate: RateFacts | None
    """How fast packets get there; None: not known."""
    sent: Whole
    """Packets of the burst; 0: there was none."""
    lost: Whole

    @property
    def loss(self) -> float | None:
        """The share of the burst's packets that got lost; None: not known."""
        return self.lost / self.sent if self.sent else None


class PairFigures(msgspec.Struct, frozen=True):
    """What was measured between two hosts."""

    there: WayFigures
    back: WayFigures
    packet_bytes: Whole
    """The size, in bytes, of the IP packets whose round trips these are."""
    shortest_us: Whole | None
    """Round trip, the doctors' reading and answering included; None: nothing returned."""
    median_us: Whole | None
    longest_us: Whole | None


class Report(msgspec.Struct, frozen=True):
    """The file."""

    findings: list[Finding]
    pairs: list[PairFigures]
    shoal_doctor: int = REPORT_FORMAT


class _Origin(msgspec.Struct):
    """The part that says what a file is; another version's is not looked into."""

    shoal_doctor: int


def figures_of(facts: PairFacts) -> PairFigures:
    """Return what of `facts` was measured."""
    burst = facts.burst
    times = None if burst is None or burst.returned == 0 else burst
    return PairFigures(
        there=_way(facts.there, *(burst.sent, burst.reached) if burst else (0, 0)),
        back=_way(facts.back, *(burst.reached, burst.returned) if burst else (0, 0)),
        packet_bytes=burst.packet_bytes if burst else facts.there.packet_bytes,
        shortest_us=times.smallest_us if times else None,
        median_us=times.median_us if times else None,
        longest_us=times.largest_us if times else None,
    )


def read_report(path: Path) -> Report:
    """Return the report at `path`; raise `DataError` for other files and other versions."""
    found = read_json(path, _Origin, "a report of shoal doctor", _AGAIN).shoal_doctor
    if found != REPORT_FORMAT:
        message = (
            f"{path} is a report of another version of shoal doctor (format {found}, this one reads"
            f" {REPORT_FORMAT}); {_AGAIN} of this version."
        )
        raise DataError(message)
    return read_json(path, Report, "a report of shoal doctor", _AGAIN)


def _way(way: WayFacts, sent: int, arrived: int) -> WayFigures:
    return WayFigures(way.sender, way.receiver, way.path_mtu, way.rate, sent, sent - arrived)
