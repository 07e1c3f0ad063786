"""Section `sim-engines`: the packet kernel against the heap kernel, plain Python and itself.

Packet-hops per second of one core's time, sources at their own pace (`sim_packets`) and hosts that
react to every packet (`sim_transports`); how the rate holds where networks grow and where ports do
all that they can; and the most memory that 1,024 hosts take.
"""

from __future__ import annotations

import multiprocessing
import resource
from typing import TYPE_CHECKING, Final

from shoal.bench import sim_packets, sim_transports
from shoal.bench.rows import Row, at_least, at_most, comparison, figure
from shoal.sim.transports.controls import ALL_CONTROLS

if TYPE_CHECKING:
    from shoal.bench.stand import Stand

NAME = "sim-engines"
_UNIT: Final = "packet-hops/s"
_SPAWN: Final = multiprocessing.get_context("spawn")


def measure(stand: Stand) -> list[Row]:
    """Return the rates side by side, and the memory."""
    shorter = stand.choose(full=1.0, quick=0.1)
    engines = tuple(sim_packets.ENGINES)
    compiled = engines[:2]
    rates: dict[tuple[str, int, bool], float] = {}
    for place, (hosts, duration_s, its, is_full) in enumerate(
        (
            (64, 0.01, engines, False),
            (512, 0.003, engines, False),
            (1024, 0.003, compiled, False),
            (64, 0.02, compiled, True),
            (512, 0.005, compiled, True),
        )
    ):
        stand.note(f"{hosts} hosts{', all features' if is_full else ''}", place, 7)
        for speed in sim_packets.measure(hosts, duration_s * shorter, its, is_full=is_full):
            rates[speed.engine, hosts, is_full] = speed.hops_per_s
    window, heap, plain = engines
    rows = [
        _against(rates, hosts, window, heap, is_full=is_full)
        for hosts, is_full in ((64, False), (512, False), (1024, False), (64, True), (512, True))
    ]
    rows += [
        _against(rates, hosts, window, plain, is_full=False, target=40.0) for hosts in (64, 512)
    ]
    few, many = rates[window, 64, False], rates[window, 512, False]
    bare = [(many, few)]
    full = [(rates[window, 64, True], few)]
    grown, featured = at_least(0.75), at_least(0.7)
    rows += [
        comparison(NAME, "512 hosts", _UNIT, "1/s", bare, peer="64 hosts", target=grown),
        comparison(NAME, "all features", _UNIT, "1/s", full, peer="bare ports", target=featured),
    ]
    stand.note("transports", 5, 7)
    size = sim_transports.MESSAGE_BYTES * shorter
    for control in ALL_CONTROLS:
        rate = sim_transports.measure(control, size).hops_per_s
        rows.append(figure(NAME, f"{control}, 64 hosts", _UNIT, "1/s", [rate]))
    stand.note("memory", 6, 7)
    with _SPAWN.Pool(1) as pool:
        memory_mb = pool.apply(_memory_mb, (1024, 0.003 * shorter))
    most = at_most(1000.0)
    rows.append(figure(NAME, "1,024 hosts", "most memory of the process", "MB", [memory_mb], most))
    return rows


def _against(
    rates: dict[tuple[str, int, bool], float],
    hosts: int,
    ours: str,
    peer: str,
    *,
    is_full: bool,
    target: float | None = None,
) -> Row:
    case = f"{hosts} hosts{', all features' if is_full else ''}"
    pair = rates[ours, hosts, is_full], rates[peer, hosts, is_full]
    bound = None if target is None else at_least(target)
    return comparison(NAME, case, _UNIT, "1/s", [pair], peer=peer, target=bound)


def _memory_mb(hosts: int, duration_s: float) -> float:
    """Return the most memory that a process of its own takes for this."""
    sim_packets.run_window(sim_packets.mixed_scenario(hosts, duration_s))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
