"""Sections `shaped-clean` and `shaped-loss`: all-reduce among emulated hosts with shaped ports.

The ideal is the time in which 2(N-1)/N of the buffer pass a port, at what its rate leaves after the
headers of Ethernet, IP and UDP in full packets. Rates are such that the processor is not the limit
on two cores; what the processors did, and what the ports really let through, are rows of their own.
Gloo works on the same hosts, in turns with Shoal's transport, which makes sums in two ways: all
members to all, and around a ring, where no two senders meet at a port.
"""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from shoal.lab import obstacle
from shoal_bench.emulated_network import COMMANDS, EmulatedNetwork, Ports
from shoal_bench.rows import Row, Target, at_most, figure
from shoal_bench.turns import GLOO, Contender, Turns, all_reduce_rounds, blast

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.jobs import WorkerPool
    from shoal_bench.stand import Stand

CLEAN: Final = "shaped-clean"
LOSS: Final = "shaped-loss"

CLEAN_TARGET: Final = 1.05
LOSSY_TARGETS: Final = {0.0: 1.15, 0.05: 1.08}
"""The target ratio of each loss bound."""
ALGORITHMS: Final = ("direct", "ring")
LOSSES: Final = (0.01, 0.03)
LOSS_OF_GLOO: Final = 0.01

BUFFER_BYTES: Final = 128 << 10
"""The buffer of a port of the switch, in bytes."""

_BLAST_S: Final = 0.5
_RATE_TOLERANCE: Final = 1.0
"""Percent by which the ports' rate may differ from the nominal one."""


@dataclass(frozen=True, slots=True)
class ShapedCase:
    """A number of hosts, the rate of their ports and the buffer that they sum."""

    hosts: int
    megabits: int
    megabytes: float

    @property
    def ports(self) -> Ports:
        """The network's ports."""
        return Ports(self.hosts, self.megabits * 1_000_000, BUFFER_BYTES)

    @property
    def num_bytes(self) -> int:
        """Size of the buffer."""
        return round(self.megabytes * 1e6)

    @property
    def ideal_s(self) -> float:
        """Seconds that a sum over all hosts takes at best."""
        return 2 * (self.hosts - 1) / self.hosts * self.num_bytes / self.ports.goodput

    def __str__(self) -> str:
        return f"{self.hosts} x {self.megabits} Mbit/s, {self.megabytes:g} MB"


SMALL: Final = (ShapedCase(4, 100, 2.0), ShapedCase(8, 50, 1.0))
"""A quarter of a second each: what a sum takes beside its bytes shows, the getting ready of eight
processes on two cores and the last repairs among it."""

LARGE: Final = (ShapedCase(4, 100, 8.0), ShapedCase(8, 50, 4.0))
"""A second each: what the bytes take shows."""


def measure_clean(stand: Stand) -> list[Row]:
    """Return the rows of both contenders without loss: median over the rounds."""
    if not is_possible(stand):
        return []
    rounds = stand.choose(full=25, quick=5)
    contenders = [
        *(Contender(name, rounds, algorithm=name) for name in ALGORITHMS),
        Contender(GLOO, rounds),
    ]
    rows: list[Row] = []
    for name, case in stand.each({str(case): case for case in _cases(stand)}):
        with EmulatedNetwork(case.ports) as network:
            pool = stand.pool(case.hosts)
            rows.append(rate_row(name, network, pool))
            before = processor_ticks()
            by_rank = pool.call(all_reduce_rounds, network.hosts, case.num_bytes, contenders)
            rows.append(processor_row(name, before))
            for which, contender in enumerate(contenders):
                target = None if contender.name == GLOO else at_most(CLEAN_TARGET)
                values = ratios(by_rank, which, case.ideal_s)
                text = f"{name}, {contender.name}"
                rows.append(figure(text, "time / ideal, median", "", values, target))
    return rows


def measure_loss(stand: Stand) -> list[Row]:
    """Return the rows with random loss, exact and bounded: 99th percentile over the rounds."""
    if not is_possible(stand):
        return []
    rows: list[Row] = []
    cases = _cases(stand)
    for number, case in enumerate(cases):
        with EmulatedNetwork(case.ports) as network:
            pool = stand.pool(case.hosts)
            rows.append(rate_row(str(case), network, pool))
            for which, loss in enumerate(LOSSES):
                done = number * len(LOSSES) + which
                stand.note(f"{case}, {loss:.0%} loss", done, len(cases) * len(LOSSES))
                rows += _lossy_rows(stand, case, network, loss)
    return rows


def _cases(stand: Stand) -> tuple[ShapedCase, ...]:
    return SMALL if stand.quick else SMALL + LARGE


def _lossy_rows(stand: Stand, case: ShapedCase, network: EmulatedNetwork, loss: float) -> list[Row]:
    rounds = stand.choose(full=100, quick=10)
    contenders = [
        Contender(f"{algorithm}, p = {bound:.0%}", rounds, bound, algorithm)
        for algorithm in ALGORITHMS
        for bound in LOSSY_TARGETS
    ]
    if loss == LOSS_OF_GLOO:
        contenders.append(Contender(GLOO, stand.choose(full=25, quick=3), limit_s=60.0))
    network.set_loss(loss)
    before = processor_ticks()
    by_rank = stand.pool(case.hosts).call(
        all_reduce_rounds, network.hosts, case.num_bytes, contenders
    )
    text = f"{case}, {loss:.0%} loss"
    lost = network.lost()
    rows = [
        processor_row(text, before),
        figure(text, "packets lost on the way", "%", [100 * lost.lost / lost.packets]),
    ]
    for which, contender in enumerate(contenders):
        values = ratios(by_rank, which, case.ideal_s)
        if contender.name == GLOO:
            rows.append(percentile_row(f"{text}, {GLOO}", values))
            continue
        target = at_most(LOSSY_TARGETS[contender.loss_bound])
        rows.append(percentile_row(f"{text}, {contender.name}", values, target))
        rows += _transport_rows(f"{text}, {contender.name}", [turns[which] for turns in by_rank])
    return rows


def _transport_rows(text: str, by_rank: Sequence[Turns]) -> list[Row]:
    """Return what was sent again, and what was left out, of all ranks together."""
    sent = sum(each.counts["SENT"] for each in by_rank)
    again = sum(each.counts["SENT_AGAIN"] for each in by_rank)
    parity = sum(each.counts["PARITY_SENT"] for each in by_rank)
    missing = max(each.missing for each in by_rank)
    return [
        figure(text, "packets sent again", "%", [100 * again / sent]),
        figure(text, "packets of parity", "%", [100 * parity / sent]),
        figure(text, "contributions left out, most in a round", "%", [100 * missing]),
    ]


# ---- shared with the incast ---------------------------------------------------------------------


def is_possible(stand: Stand) -> bool:
    """Return whether networks can be emulated here; if not, record why."""
    reason = obstacle(COMMANDS)
    if reason is not None:
        stand.skip(reason)
    return reason is None


def ratios(by_rank: Sequence[Sequence[Turns]], which: int, ideal_s: float) -> list[float]:
    """Return every round's time over the ideal; a round ends with its slowest rank."""
    rounds = zip(*(turns[which].seconds for turns in by_rank), strict=True)
    return [max(seconds) / ideal_s for seconds in rounds]


def percentile_row(case: str, values: Sequence[float], target: Target | None = None) -> Row:
    """Return a row for the 99th percentile: the smallest value that 99 % do not exceed."""
    ordered = sorted(values)
    value = ordered[-(-99 * len(ordered) // 100) - 1]
    row = figure(case, f"time / ideal, p99 of {len(values)} rounds", "", [value], target)
    return msgspec.structs.replace(row, spread=[ordered[0], ordered[-1]])


def rate_row(
    case: str, network: EmulatedNetwork, pool: WorkerPool, receivers: Sequence[int] = ()
) -> Row:
    """Measure what the ports to `receivers` (or all) let through; return how far the worst is off.

    Ratios to the ideal mean nothing where the emulation does not have the rate that it should.
    """
    receivers = receivers or range(network.ports.hosts)
    arrived = pool.call(blast, network.hosts, _BLAST_S, receivers)
    rates = [arrived[rank] for rank in receivers]
    nominal = network.ports.bits_per_second
    off = [100 * abs(rate / nominal - 1) for rate in rates]
    metric = f"ports' rate off the nominal, worst (median {statistics.median(rates) / 1e6:.1f})"
    return figure(case, metric, "%", [max(off)], at_most(_RATE_TOLERANCE))


def processor_ticks() -> tuple[int, int]:
    """Return the clock ticks that this machine's processors have been busy for, and all."""
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(fields) - fields[3] - fields[4], sum(fields)


def busy_share(before: tuple[int, int]) -> float:
    """Return the share of this machine's processors that was busy since `before`."""
    busy, ticks = (now - then for now, then in zip(processor_ticks(), before, strict=True))
    return busy / max(1, ticks)


def processor_row(case: str, before: tuple[int, int]) -> Row:
    """Return the row of what was busy since `before`."""
    metric = f"processors busy, of {os.cpu_count()} (everything on the machine)"
    return figure(case, metric, "%", [100 * busy_share(before)])
