"""Which links are slow, long or lose packets, from the traffic over each of them. Pure.

A link leads from a sender to a receiver, and the receiver tells of it. If all links from a worker
stand out, that worker is named and no link; likewise for all links to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from shoal.watch.verdict import Kind, Verdict, in_ms, quantile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from shoal.watch.own_times import Worker
    from shoal.watch.worker_sample import LinkSample

LEAST_LOST: Final = 0.0005
"""The share of lost packets from which on a link may be called lossy."""
LEAST_MISSING: Final = 8
"""The number of lost packets below which their share may be chance."""
LEAST_MOVING: Final = 0.05
"""The share of the time in which messages must come over a link for its speed to matter."""
LEAST_BYTES: Final = 100_000
"""The bytes that must have come over a link for its speed to be known."""
TIMES: Final = {"lossy link": 3.0, "slow link": 2.0, "long way": 3.0}
"""The multiples of the usual figure from which on a link stands out."""
LEAST_LONGER_S: Final = 0.005
"""The seconds by which a round trip must be longer than the usual one."""
LEAST_LONGER_SHARE: Final = 0.05
"""The share of a step by which it must be longer: a busy worker answers late, too."""
_USUAL: Final = 0.3
"""The share of links that lie below the usual figure: more than half of all may lead to or from one
worker, where there are three."""

Link = tuple[int, int]
"""The sender and the receiver."""
Place = tuple[int | None, int | None]
"""A link, or all links from one worker (to None) or to one (from None)."""


@dataclass(frozen=True, slots=True)
class Way:
    """The traffic over one link in the last samples."""

    known: int
    missing: int
    placed_bytes: int
    moving_s: float
    seconds: float
    num_steps: int = 0
    """The steps of the receiver; 0 if they are not known."""

    blocked_ms: float = 0.0
    """The time per step in which the receiver was blocked, in milliseconds."""

    round_trip_s: float = 0.0
    """The shortest round trip that was seen, in seconds; 0 if none is known."""

    @property
    def lost_share(self) -> float:
        """The share of the packets that did not come."""
        return min(1.0, self.missing / self.known) if self.known else 0.0

    @property
    def bytes_per_s(self) -> float:
        """The payload per second while messages came; 0 if that is not known."""
        known = self.moving_s > 0 and self.placed_bytes >= LEAST_BYTES
        return self.placed_bytes / self.moving_s if known else 0.0

    @property
    def is_busy(self) -> bool:
        """Whether the link is used enough for its speed to matter."""
        return self.moving_s > LEAST_MOVING * self.seconds


def ways_of(workers: Mapping[int, Worker]) -> dict[Link, Way]:
    """Return the traffic over each link between `workers`."""
    ways = {}
    for rank, worker in workers.items():
        whole = _Whole(
            sum(each.seconds for each in worker.samples),
            sum(each.num_steps for each in worker.samples),
            worker.blocked_ms,
        )
        seen: dict[int, list[LinkSample]] = {}
        for sample in worker.samples:
            for link in sample.links:
                seen.setdefault(link.peer, []).append(link)
        for peer in sorted(seen.keys() & workers.keys()):
            ways[peer, rank] = _way(whole, seen[peer])
    return ways


class _Whole(NamedTuple):
    """The totals of a receiver's samples."""

    seconds: float
    num_steps: int
    blocked_ms: float


def _way(whole: _Whole, seen: Sequence[LinkSample]) -> Way:
    return Way(
        known=sum(link.known_packets for link in seen),
        missing=sum(link.missing_packets for link in seen),
        placed_bytes=sum(link.placed_bytes for link in seen),
        moving_s=sum(link.moving_s for link in seen),
        seconds=whole.seconds,
        num_steps=whole.num_steps,
        blocked_ms=whole.blocked_ms,
        round_trip_s=min((x.round_trip_s for x in seen if x.round_trip_s > 0), default=0.0),
    )


def conspicuous_links(ways: Mapping[Link, Way], hosts: Mapping[int, int]) -> list[Verdict]:
    """Return the links that stand out, each kind by itself; `hosts` are the workers' hosts.

    Links within a host differ from others: they count only if there is one host alone.
    """
    apart = {link: way for link, way in ways.items() if hosts.get(link[0]) != hosts.get(link[1])}
    ways = apart or ways
    return [*_lossy(ways), *_slow(ways), *_long(ways)]


def _lossy(ways: Mapping[Link, Way]) -> Iterable[Verdict]:
    lost = {link: way.lost_share for link, way in ways.items() if way.known}
    enough = {link for link, way in ways.items() if way.missing >= LEAST_MISSING}
    for place, found, usual in _standing_out("lossy link", lost, LEAST_LOST, enough.__contains__):
        yield _verdict("lossy link", place, f"loses {found:.2%} of its packets", found, usual)
    known, missing = sum(w.known for w in ways.values()), sum(w.missing for w in ways.values())
    usual = quantile(list(lost.values()), _USUAL) if lost else 0.0
    if usual >= LEAST_LOST and missing >= LEAST_MISSING:
        sentence = f"All links lose packets: {missing / known:.2%} of them on average."
        yield Verdict(kind="lossy link", sentence=sentence)


def _slow(ways: Mapping[Link, Way]) -> Iterable[Verdict]:
    s_per_byte = {x: 1 / way.bytes_per_s for x, way in ways.items() if way.bytes_per_s}
    for place, found, usual in _standing_out(
        "slow link", s_per_byte, 0.0, lambda link: ways[link].is_busy
    ):
        speed, others = 1e-6 / found, 1e-6 / usual
        words = f"brings {speed:.3g} MB/s, the others {others:.3g} MB/s"
        costs_ms = [
            1000 * way.moving_s / way.num_steps * (1 - usual / found)
            for link, way in ways.items()
            if _is_in(link, place) and way.num_steps
        ]
        cost_ms = None
        if costs_ms:
            cost_ms = min(max(costs_ms), max(way.blocked_ms for way in ways.values()))
            words += f": that costs a step up to {in_ms(cost_ms)}"
        yield _verdict("slow link", place, words, found, usual, cost_ms, tells_usual=False)


def _long(ways: Mapping[Link, Way]) -> Iterable[Verdict]:
    """Return the long ways: pairs of workers, or one worker and all others."""
    # A round trip goes over both links: one end alone may be busy, which is no long way.
    trips = {
        (one, other): min(way.round_trip_s, back.round_trip_s)
        for (one, other), way in ways.items()
        if one < other and (back := ways.get((other, one))) and way.round_trip_s
    }
    usual = quantile(list(trips.values()), _USUAL) if trips else 0.0
    steps_s = [way.seconds / way.num_steps for way in ways.values() if way.num_steps]
    least_s = max(LEAST_LONGER_S, LEAST_LONGER_SHARE * max(steps_s, default=0.0))
    limit = max(TIMES["long way"] * usual, usual + least_s)
    left = bad = {pair for pair, trip in trips.items() if trip >= limit}
    places: list[tuple[str, tuple[int, int | None], set[Link]]] = []
    for rank in sorted({rank for pair in trips for rank in pair}):
        own = {pair for pair in trips if rank in pair}
        if len(own) > 1 and own <= bad and own & left:
            places.append((f"The way to rank {rank}", (rank, None), own))
            left = left - own
    places += [(f"The way from rank {a} to rank {b}", (a, b), {(a, b)}) for a, b in sorted(left)]
    for subject, (rank, to), own in places:
        found = quantile([trips[pair] for pair in own], 0.5)
        yield Verdict(
            kind="long way",
            sentence=f"{subject} and back takes {in_ms(1000 * found)}, other ways"
            f" {in_ms(1000 * usual)}.",
            rank=rank,
            to=to,
            times=round(found / usual, 3) if usual else None,
        )


def _standing_out(
    kind: Kind, values: Mapping[Link, float], least: float, counts: Callable[[Link], bool]
) -> list[tuple[Place, float, float]]:
    """Return each place that stands out, with its median figure and the usual one."""
    if not values:
        return []
    usual = quantile(list(values.values()), _USUAL)
    limit = max(least, TIMES[kind] * usual)
    bad = {link for link, value in values.items() if value >= limit and counts(link)}
    return [
        (place, quantile([values[x] for x in bad if _is_in(x, place)], 0.5), usual)
        for place in _places(bad, values)
    ]


def _places(bad: set[Link], links: Iterable[Link]) -> list[Place]:
    """Return the bad links, with all of a worker's, if it has more than one, as one place."""
    places: list[Place] = []
    left = set(bad)
    ranks = sorted({rank for link in links for rank in link})
    for end in (0, 1):
        for rank in ranks:
            own = {link for link in links if link[end] == rank}
            if len(own) > 1 and own <= bad and own & left:
                places.append((rank, None) if end == 0 else (None, rank))
                left -= own
    return [*places, *sorted(left)]


def _is_in(link: Link, place: Place) -> bool:
    return all(there is None or here == there for here, there in zip(link, place, strict=True))


def _verdict(
    kind: Kind,
    place: Place,
    words: str,
    found: float,
    usual: float,
    cost_ms: float | None = None,
    *,
    tells_usual: bool = True,
) -> Verdict:
    sender, receiver = place
    if sender is None:
        subject = f"What comes to rank {receiver}"
    elif receiver is None:
        subject = f"What rank {sender} sends"
    else:
        subject = f"The way from rank {sender} to rank {receiver}"
    others = f", the others {usual:.2%}" if tells_usual else ""
    return Verdict(
        kind=kind,
        sentence=f"{subject} {words}{others}.",
        rank=receiver if sender is None else sender,
        to=None if sender is None else receiver,
        times=round(found / usual, 3) if usual else None,
        cost_ms=cost_ms,
    )
