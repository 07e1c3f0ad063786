"""Section `sim-engines`: the packet kernel against the heap kernel, plain Python and itself.

Packet-hops per second of one core's time, sources at their own pace (`sim_packets`) and hosts that
react to every packet (`sim_transports`); how the rate holds where networks grow and where ports do
all that they can, with sources that react or do not; and the most memory that 1,024 hosts take. The
former take turns, so that a row's two sides are of about the same moment whatever else the machine
does.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import TYPE_CHECKING, Final, TypeAlias

from shoal.memory import peak_bytes
from shoal.scenario import SHOAL, ClusterSpec, StrategySpec, TrainingSpec
from shoal.sim import ALL_CONTROLS, simulate
from shoal_bench import sim_packets, sim_transports
from shoal_bench.rows import Row, Target, at_least, at_most, comparison, figure
from shoal_bench.stand import apart

if TYPE_CHECKING:
    from shoal_bench.stand import Stand

NAME = "sim-engines"
_UNIT: Final = "packet-hops/s"
_REACTING: Final = "dctcp"
"""A carrier whose hosts react to all that ports do."""
GRID_ROUNDS: Final = 2
"""The rounds of DS-Sync's grid, after which its groups come again."""
_WINDOW, _HEAP, _PLAIN = sim_packets.ENGINES
_CASES: Final = (
    (64, 0.01, (_WINDOW, _HEAP, _PLAIN), False),
    (512, 0.003, (_WINDOW, _HEAP, _PLAIN), False),
    (1024, 0.003, (_WINDOW, _HEAP), False),
    (4096, 0.0003, (_WINDOW, _HEAP), False),
    (64, 0.02, (_WINDOW, _HEAP), True),
    (512, 0.005, (_WINDOW, _HEAP), True),
)
"""Hosts, virtual seconds, engines, and whether ports do all that they can."""

_Rates: TypeAlias = dict[tuple[str, int, bool], list[float]]
"""Packet-hops per second of each turn, by engine, hosts and whether ports do all they can."""


def measure(stand: Stand) -> list[Row]:
    """Return the rates side by side, and the memory."""
    shorter = stand.choose(full=1.0, quick=0.1)
    turns = stand.choose(full=5, quick=1)
    rates: _Rates = defaultdict(list)
    for turn in range(turns):
        for hosts, duration_s, engines, is_full in _CASES:
            case = _name(hosts, is_full=is_full)
            stand.note(f"{case}, turn {turn + 1} of {turns}", turn, turns + 2)
            for speed in sim_packets.measure(hosts, duration_s * shorter, engines, is_full=is_full):
                rates[speed.engine, hosts, is_full].append(speed.hops_per_s)
    rows = [_against(rates, hosts, _HEAP, is_full=is_full) for hosts, _, _, is_full in _CASES]
    rows += [_against(rates, hosts, _PLAIN, target=at_least(40)) for hosts in (64, 512)]
    few, many, full = (
        rates[_WINDOW, hosts, is_full] for hosts, is_full in ((64, False), (512, False), (64, True))
    )
    for case, ours, peer, target in (
        ("512 hosts", many, "64 hosts", at_least(0.75)),
        ("4,096 hosts", rates[_WINDOW, 4096, False], "64 hosts", None),
        ("all features", full, "bare ports", at_least(0.7)),
    ):
        pairs = zip(ours, few, strict=True)
        rows.append(comparison(case, _UNIT, "1/s", pairs, peer=peer, target=target))
    stand.note("transports", turns, turns + 2)
    size = sim_transports.MESSAGE_BYTES * shorter
    for carrier in (*ALL_CONTROLS, SHOAL):
        found = sim_transports.measure(carrier, size).hops_per_s
        rows.append(figure(f"{carrier}, 64 hosts", _UNIT, "1/s", found))
    bare = statistics.median(few)
    for carrier in (_REACTING, SHOAL):
        found = sim_transports.measure(carrier, size, is_full=True).hops_per_s
        case, target = f"all features, {carrier}", at_least(0.7)
        sides = [(each, bare) for each in found]
        rows.append(comparison(case, _UNIT, "1/s", sides, peer="bare ports", target=target))
    stand.note("memory", turns + 1, turns + 2)
    most = at_most(1000.0)
    for case, memory_mb in (
        ("1,024 hosts", apart(_memory_mb, 1024, 0.003 * shorter)),
        ("1,024 hosts, a grid over Shoal's transport", apart(_memory_of_shoal_mb, 1024)),
    ):
        rows.append(figure(case, "most memory of the process", "MB", [memory_mb], most))
    return rows


def _name(hosts: int, *, is_full: bool) -> str:
    return f"{hosts} hosts{', all features' if is_full else ''}"


def _against(
    rates: _Rates, hosts: int, peer: str, *, is_full: bool = False, target: Target | None = None
) -> Row:
    ours, theirs = rates[_WINDOW, hosts, is_full], rates[peer, hosts, is_full]
    pairs = zip(ours, theirs, strict=True)
    case = _name(hosts, is_full=is_full)
    return comparison(case, _UNIT, "1/s", pairs, peer=peer, target=target)


def _memory_mb(hosts: int, duration_s: float) -> float:
    """Return the megabytes that a process of its own takes for a mixed scenario, at most."""
    sim_packets.run_window(sim_packets.mixed_scenario(hosts, duration_s))
    return peak_bytes() / 1e6


def _memory_of_shoal_mb(hosts: int) -> float:
    """Return the megabytes that training in groups takes over Shoal's transport.

    Both rounds of the grid: in the second one a host meets others than in the first, and every host
    keeps a row for each that it has met.
    """
    cluster = ClusterSpec(sim_packets.topology_of(hosts), spray=True)
    job = TrainingSpec(
        parameters=100_000, compute_s=0.005, steps=GRID_ROUNDS, strategies=(), transport=SHOAL
    )
    simulate(cluster, job, StrategySpec("ds-sync"))
    return peak_bytes() / 1e6
