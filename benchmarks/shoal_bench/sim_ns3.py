"""Section `sim-ns3`: packet-hops per second of one core's time, Shoal's window kernel and ns-3.

Both are given the same scenario of 64 and of 512 hosts in turns, each in a process of its own or
this one: flows over plain queues, the same over eight priorities that drop by averages (RED), and
DCTCP that seven send to one. A packet-hop is one packet sent over one link, the host's own
included, acknowledgements too. What is timed is the run, not the making of the network. Ours takes
a hundredth of the other's time and is repeated for a second: else the first touch of fresh memory
would be a fifth of it, which in a run of ten seconds nobody sees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal_bench.reference_networks import GROUP, cross_traffic, incast, run, with_averages
from shoal_bench.reference_tools import NS3, run_ns3
from shoal_bench.rows import Row, Target, at_least, comparison

if TYPE_CHECKING:
    from shoal_bench.reference_networks import Scenario
    from shoal_bench.stand import Stand

NAME: Final = "sim-ns3"
_LOAD: Final = 1.2
_LEAST_S: Final = 1.0


def measure(stand: Stand) -> list[Row]:
    """Return the rates side by side; no rows if it is not known where ns-3 is."""
    if stand.ns3 is None or not NS3.exists():
        stand.skip(
            "ns-3 is not compared: --ns3 names the Python of an environment with it, and Shoal's"
            " repository has the scripts that run it."
        )
        return []
    rows = []
    for case, (scenario, target) in stand.each(_cases(stand)):
        run(scenario)  # compiles
        pairs = []
        for _ in range(stand.choose(full=3, quick=1)):
            theirs = run_ns3(stand.ns3, [scenario])[0]
            pairs.append((_our_rate(scenario), theirs["hops"] / theirs["processor_s"]))
        rows.append(
            comparison(case, "packet-hops", "hops/s", pairs, peer="ns-3 3.44", target=target)
        )
    return rows


def _cases(stand: Stand) -> dict[str, tuple[Scenario, Target]]:
    """Return what is run; more hosts for less time, as hops take ns-3 longer among them."""
    cases: dict[str, tuple[Scenario, Target]] = {}
    for hosts, leaves, share in ((64, 8, 1), (512, 32, 4)):
        duration_ns = stand.choose(full=4_000_000, quick=500_000) // share
        plain = cross_traffic(_LOAD, duration_ns, hosts=hosts, leaves=leaves)
        bands = cross_traffic(_LOAD, duration_ns, "bands", hosts=hosts, leaves=leaves)
        packets = stand.choose(full=1_000, quick=200) // share
        cases |= {
            f"plain queues, {hosts} hosts": (plain, at_least(100)),
            f"8 priorities and RED, {hosts} hosts": (with_averages(bands), at_least(150)),
            f"DCTCP 7:1, {hosts} hosts": (incast(hosts, leaves, GROUP, packets), at_least(120)),
        }
    return cases


def _our_rate(scenario: Scenario) -> float:
    hops = processor_s = 0.0
    while processor_s < _LEAST_S:
        result = run(scenario)
        hops += result["hops"]
        processor_s += result["processor_s"]
    return hops / processor_s
