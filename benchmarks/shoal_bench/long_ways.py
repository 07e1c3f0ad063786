"""Section `long-ways`: all-reduce where packets get lost and answers take long, on a lab.

The hosts are those of `shoal lab`, whose links delay and lose packets. What is exact has to wait
until what got lost has been sent again, or is put together from parity; what may get lost waits for
the exact half of the sum. Every figure is a multiple of the same contender's time on the same way
without loss. Loss is of a whole way; bursts lose as much as 1 %, some eight packets at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from shoal.lab import Lab, address_of, why_not
from shoal.scenario import parse_scenario
from shoal_bench.emulated_network import Host
from shoal_bench.rows import Row, at_most, figure
from shoal_bench.turns import GLOO, Contender, all_reduce_rounds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal_bench.rows import Target
    from shoal_bench.stand import Stand
    from shoal_bench.turns import Turns

NAME: Final = "long-ways"

HOSTS: Final = 4
NUM_BYTES: Final = 2_000_000
WAYS: Final = {"0.05 ms": 0.025, "5 ms": 2.5, "25 ms": 12.5}
"""The milliseconds that each of the two links of a way takes."""

BURST: Final = 8
"""The packets that a link in its bad state loses one after another, on average."""


def _link_loss(way: float) -> float:
    """Return the share that a link loses where two of them lose `way`."""
    return 1 - (1 - way) ** 0.5


def _bursts(way: float) -> str:
    share = _link_loss(way)
    to_bad = share / (1 - share) / BURST
    return f"bad_loss = 1.0\nto_bad = {to_bad:.6f}\nto_good = {1 / BURST}"


LOSSES: Final = {
    "no loss": "",
    "1 %": f"loss = {_link_loss(0.01):.6f}",
    "3 %": f"loss = {_link_loss(0.03):.6f}",
    "bursts": _bursts(0.01),
}
"""What links have, by what it makes of a way."""

EXACT: Final = "exact"
UNAIDED: Final = "exact, SHOAL_PARITY=0"
BOUNDED: Final = "p = 10 %"
TARGETS: Final = {
    EXACT: dict(zip(WAYS, (1.06, 1.12, 1.25), strict=True)),
    BOUNDED: dict(zip(WAYS, (1.03, 1.05, 1.1), strict=True)),
}
GLOO_LOSSES: Final = ("no loss", "1 %")
"""What gloo is tried with: TCP takes many times as long where more gets lost."""


@dataclass(slots=True)
class _Times:
    """What one contender took in every round, by what got lost."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    added: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Shares of the packets sent that were parity, and that were sent again."""


def measure(stand: Stand) -> list[Row]:
    """Return the rows of all ways: the 99th percentile, and what it cost in packets."""
    reason = why_not()
    if reason is not None:
        stand.skip(reason)
        return []
    rows: list[Row] = []
    cases = {f"{way} one way, {loss}": (way, loss) for way in WAYS for loss in LOSSES}
    by_way: dict[str, dict[str, _Times]] = {way: {} for way in WAYS}
    for _, (way, loss) in stand.each(cases):
        _measure_case(stand, WAYS[way], loss, by_way[way])
    for way, times in by_way.items():
        rows += [row for name, each in times.items() for row in _rows(way, name, each)]
    return rows


def _measure_case(stand: Stand, link_ms: float, loss: str, times: dict[str, _Times]) -> None:
    rounds = stand.choose(full=25, quick=5)
    contenders = [Contender(EXACT, rounds), Contender(BOUNDED, rounds, 0.1)]
    if loss in GLOO_LOSSES:
        contenders.append(Contender(GLOO, rounds, limit_s=stand.choose(full=20.0, quick=5.0)))
    scenario = parse_scenario(
        f"hosts.count = {HOSTS}\n"
        f'[access]\nrate = "100 Mbit/s"\ndelay = "{link_ms} ms"\n{LOSSES[loss]}\n'
    )
    with Lab(scenario.cluster) as lab:
        hosts = [Host(path, address_of(n)) for n, path in enumerate(lab.fabric.hosts)]
        pool = stand.pool(HOSTS)
        by_rank = pool.call(all_reduce_rounds, hosts, NUM_BYTES, contenders)
        for which, contender in enumerate(contenders):
            _note(times, contender.name, loss, [turns[which] for turns in by_rank])
        unaided = [Contender(UNAIDED, rounds)]
        by_rank = pool.call(all_reduce_rounds, hosts, NUM_BYTES, unaided, {"SHOAL_PARITY": "0"})
        _note(times, UNAIDED, loss, [turns[0] for turns in by_rank])


def _note(times: dict[str, _Times], name: str, loss: str, by_rank: Sequence[Turns]) -> None:
    each = times.setdefault(name, _Times())
    each.seconds[loss] = [max(r) for r in zip(*(t.seconds for t in by_rank), strict=True)]
    sent = sum(turns.counts.get("SENT", 0) for turns in by_rank)
    if sent > 0:
        parity, again = (
            sum(turns.counts[name] for turns in by_rank) for name in ("PARITY_SENT", "SENT_AGAIN")
        )
        each.added[loss] = parity / sent, again / sent


def _rows(way: str, name: str, times: _Times) -> list[Row]:
    clean = times.seconds["no loss"]
    text = f"{HOSTS} x 100 Mbit/s, {NUM_BYTES / 1e6:g} MB, {way} one way"
    rows = [figure(f"{text}, no loss, {name}", "time, median", "ms", [1000 * s for s in clean])]
    for loss, seconds in times.seconds.items():
        case = f"{text}, {loss}, {name}"
        if loss != "no loss":
            target = at_most(TARGETS[name][way]) if name in TARGETS else None
            rows.append(_percentile(case, seconds, clean, target))
        if loss in times.added:
            parity, again = times.added[loss]
            rows.append(figure(case, "packets that are parity", "%", [100 * parity]))
            rows.append(figure(case, "packets sent again", "%", [100 * again]))
    return rows


def _percentile(
    case: str, seconds: Sequence[float], clean: Sequence[float], target: Target | None
) -> Row:
    """Return the row of the 99th percentile over that without loss."""
    least, most = (_high(each) for each in (clean, seconds))
    metric = f"p99 / p99 without loss, of {len(seconds)} rounds"
    row = figure(case, metric, "", [most / least], target)
    return msgspec.structs.replace(row, spread=[min(seconds) / least, max(seconds) / least])


def _high(values: Sequence[float]) -> float:
    """Return the smallest value that 99 % do not exceed."""
    return sorted(values)[-(-99 * len(values) // 100) - 1]
