"""Section `equal-ways`: all-reduce where equal links join two racks, on a lab.

Switches choose a link for each flow by its addresses and ports, so a rank that sends from one port
keeps to one link for each peer, and several ranks may share it while others carry nothing.
`SHOAL_PATHS` is how many ports a rank sends from. The links between the racks carry together half
of what the hosts can send. In some cases one of the spines loses packets. Which link a port leads
to is a matter of chance, so ports are opened anew several times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.lab import Lab, address_of, why_not
from shoal.scenario import parse_scenario
from shoal_bench.emulated_network import Host
from shoal_bench.rows import Row, figure
from shoal_bench.turns import GLOO, Contender, all_reduce_rounds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal_bench.stand import Stand

NAME: Final = "equal-ways"

HOSTS: Final = 8
SPINES: Final = 4
MEGABITS: Final = 50
NUM_BYTES: Final = 1_000_000
PATHS: Final = (1, 8, 16)
OVERSUBSCRIPTION: Final = 2
LOSSES: Final = {"no loss": 0.0, "a spine loses 1 %": 0.01, "a spine loses 3 %": 0.03}
"""The share of packets that one of the spines loses, in either direction."""


def measure(stand: Stand) -> list[Row]:
    """Return the rows of all losses and numbers of ports, and gloo's."""
    reason = why_not()
    if reason is not None:
        stand.skip(reason)
        return []
    rows: list[Row] = []
    for loss, share in stand.each(LOSSES):
        rows += _measure_case(stand, loss, share)
        stand.keep(rows)
    return rows


def _measure_case(stand: Stand, loss: str, share: float) -> list[Row]:
    rounds, openings = stand.choose(full=8, quick=2), stand.choose(full=6, quick=1)
    seconds: dict[str, list[float]] = {}
    sent: dict[str, list[tuple[int, int]]] = {}
    with Lab(parse_scenario(_scenario(share)).cluster) as lab:
        hosts = [Host(path, address_of(n)) for n, path in enumerate(lab.fabric.hosts)]
        pool = stand.pool(HOSTS)
        names = {f"{paths} port{'s' * (paths > 1)}": {"SHOAL_PATHS": str(paths)} for paths in PATHS}
        for _ in range(openings):
            for name, settings in {**names, GLOO: {}}.items():
                who = [Contender(name, rounds, limit_s=10.0)]
                by_rank = pool.call(all_reduce_rounds, hosts, NUM_BYTES, who, settings)
                turns = [each[0] for each in by_rank]
                slowest = map(max, zip(*(each.seconds for each in turns), strict=True))
                seconds.setdefault(name, []).extend(slowest)
                sent.setdefault(name, []).extend(
                    (each.counts.get("SENT_AGAIN", 0), each.counts.get("SENT", 0)) for each in turns
                )
    return [row for name in seconds for row in _rows(loss, name, seconds[name], sent[name])]


def _case(loss: str) -> str:
    return f"{HOSTS} x {MEGABITS} Mbit/s, {SPINES} spines, {NUM_BYTES / 1e6:g} MB, {loss}"


def _scenario(share: float) -> str:
    """Return two racks whose links together carry what a rack can send."""
    lossy = "".join(
        f'[[link]]\nbetween = ["spine0", "leaf{leaf}"]\nloss = {share}\n' for leaf in range(2)
    )
    return (
        f"hosts.count = {HOSTS}\n"
        f'topology = {{ shape = "leaf-spine", leaves = 2, spines = {SPINES} }}\n'
        f'[access]\nrate = "{MEGABITS} Mbit/s"\n'
        f'[trunk]\nrate = "{MEGABITS * HOSTS // 2 / SPINES / OVERSUBSCRIPTION:g} Mbit/s"\n'
        '[switch]\nforwarding = "flow"\nport_buffer = "128 kB"\n'
        f"{lossy if share else ''}"
    )


def _rows(
    loss: str, name: str, seconds: Sequence[float], sent: Sequence[tuple[int, int]]
) -> list[Row]:
    case = f"{_case(loss)}, {name}"
    high = sorted(seconds)[-(-9 * len(seconds) // 10) - 1]
    rows = [
        figure(case, "time, median", "ms", [1000 * each for each in seconds]),
        figure(case, "time, 90th percentile", "ms", [1000 * high]),
    ]
    again, packets = map(sum, zip(*sent, strict=True))
    if packets:
        rows.append(figure(case, "packets sent again", "%", [100 * again / packets]))
    return rows
