"""Writes measured pairs as a cluster that `shoal plan`, `shoal simulate` and `shoal lab` read.

Owns the text: names for addresses, what was measured beside what the star makes of it. The rule
that makes a star of pairs is `star`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.doctor.star import loss_between, rate_between, round_trip_between, tells_delays
from shoal.quantities import duration_text, rate_text, share_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shoal.doctor.doctor_report import PairFigures, WayFigures
    from shoal.doctor.star import HostLinks, LinkFigures

_HEAD: Final = """\
# A star that stands for what shoal doctor measured between these hosts. Say how many workers are on
# each, and what is trained, in a [training] table (docs/simulator.md); then: shoal plan FILE"""
_SWITCH: Final = "switch"
_FAR_OFF: Final = 1.25
"""The star's rate over the measured one: beyond, the hosts are no star."""


def cluster_text(pairs: Sequence[PairFigures], links: Sequence[HostLinks]) -> str:
    """Return the TOML of the star `links` that stands for `pairs`."""
    by_address = {each.address: each for each in links}
    least = min(min(each.up.rate, each.down.rate) for each in links)
    names = ", ".join(f'"{_name(each.address)}"' for each in links)
    parts = [
        "\n".join(
            [_HEAD, "#", "# measured (and what the star says)", *_measured(pairs, by_address)]
        ),
        f"[hosts]\nnames = [{names}]\nworkers = 1",
        f'[access]\nrate = "{rate_text(least)}"  # each link has its own, below',
    ]
    for each in links:
        name = _name(each.address)
        parts += [_link(name, _SWITCH, each.up), _link(_SWITCH, name, each.down)]
    return "\n\n".join(parts) + "\n"


def doubts(pairs: Sequence[PairFigures], links: Sequence[HostLinks]) -> list[str]:
    """Return in a sentence each what of `pairs` the star `links` does not stand for."""
    by_address = {each.address: each for each in links}
    said = []
    for way in _ways(pairs):
        star = rate_between(by_address[way.sender], by_address[way.receiver])
        if way.rate is not None and star > _FAR_OFF * way.rate.bits_per_s:
            said.append(
                f"from {way.sender} to {way.receiver} {rate_text(way.rate.bits_per_s)} were"
                f" measured and the star has {rate_text(star)}: something between them is slower"
                " than their links, or was busy; describe it in the file."
            )
    if len(links) > 2 and not tells_delays(pairs):
        said.append(
            "these pairs leave open whose link a delay is of; examine a pair among those who were"
            " called, and add it with --pairs."
        )
    return said


def _measured(pairs: Sequence[PairFigures], by_address: dict[str, HostLinks]) -> Iterator[str]:
    for pair in pairs:
        for way in (pair.there, pair.back):
            ends = by_address[way.sender], by_address[way.receiver]
            rate = "unknown rate" if way.rate is None else rate_text(way.rate.bits_per_s)
            least = "at least " if way.rate is not None and way.rate.is_least else ""
            lost = f"{way.lost} of {way.sent} lost" if way.sent else "unknown loss"
            in_star = rate_text(rate_between(*ends)), share_text(loss_between(*ends))
            where = f"{way.sender} -> {way.receiver}"
            yield f"# {where}: {least}{rate} ({in_star[0]}), {lost} ({in_star[1]})"
        if pair.shortest_us is not None:
            one, other = by_address[pair.there.sender], by_address[pair.there.receiver]
            measured_s = pair.shortest_us / 1e6
            star_s = round_trip_between(one, other, pair.packet_bytes)
            where = f"{one.address} <-> {other.address}"
            trips = f"{duration_text(measured_s)} ({duration_text(star_s)})"
            yield f"# {where}: shortest round trip {trips}"


def _ways(pairs: Sequence[PairFigures]) -> list[WayFigures]:
    return [way for pair in pairs for way in (pair.there, pair.back)]


def _link(source: str, target: str, link: LinkFigures) -> str:
    lines = [
        "[[link]]",
        f'from = "{source}"',
        f'to = "{target}"',
        f'rate = "{rate_text(link.rate)}"' + ("  # at least" if link.is_least else ""),
        f'delay = "{duration_text(link.delay_s)}"',
        f'loss = "{share_text(link.loss)}"',
    ]
    return "\n".join(lines)


def _name(address: str) -> str:
    """Return a host's name: its address with hyphens for what a name cannot have."""
    plain = "".join(each if each.isalnum() else "-" for each in address)
    return f"0{plain}" if plain.startswith("-") else plain
