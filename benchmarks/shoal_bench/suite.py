"""The sections of `shoal bench sync`, `transport` and `sim`, and how long they take; what one is.

Owns their order: those that want as many worker processes follow each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.arguments import unknown
from shoal.errors import UsageError
from shoal_bench import (
    accuracy,
    contention,
    control_service,
    ddp_step,
    equal_ways,
    generator_rate,
    gpu_sums,
    group_average,
    incast,
    large_exchange,
    long_ways,
    loopback,
    overlap,
    peer_step,
    peer_straggler,
    shaped,
    shared_hosts,
    sim_dlcp,
    sim_engines,
    sim_flows,
    sim_ns3,
    sim_simgrid,
    sim_training,
    straggler_rate,
    straggler_time,
    switch_rate,
    transport_memory,
)

if TYPE_CHECKING:
    from types import ModuleType

    from shoal_bench.rows import Row
    from shoal_bench.stand import Stand


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the suite that can be measured alone."""

    name: str
    """What `--only` takes, and `Row.bench` of its rows."""

    summary: str
    """A few words on what the section measures."""

    measure: Callable[[Stand], list[Row]]
    quick_s: float
    """Seconds it took on two cores with --quick; for the estimate of the time left."""

    full_s: float
    """Seconds it took on two cores without --quick."""

    def seconds(self, *, quick: bool) -> float:
        """Return about how long it takes."""
        return self.quick_s if quick else self.full_s


def _of(module: ModuleType, summary: str, *, quick_s: float, full_s: float) -> Section:
    """Return the section that `module` measures, under the name that it has there."""
    return Section(module.NAME, summary, module.measure, quick_s, full_s)


SYNC_SECTIONS = (
    _of(generator_rate, "requests per second of the group generator", quick_s=6, full_s=40),
    _of(control_service, "the same as a service, over sockets", quick_s=5, full_s=60),
    _of(ddp_step, "step of all-reduce against PyTorch DDP", quick_s=12, full_s=50),
    _of(peer_step, "step against other libraries", quick_s=30, full_s=80),
    _of(group_average, "averaging in a group never used before", quick_s=10, full_s=50),
    _of(large_exchange, "iteration with a large model", quick_s=50, full_s=370),
    _of(straggler_rate, "speed beside a slow worker", quick_s=25, full_s=440),
    _of(straggler_time, "time to accuracy beside a slow worker", quick_s=30, full_s=260),
    _of(accuracy, "accuracy of every strategy after equal steps", quick_s=27, full_s=1200),
    _of(contention, "queues in AD-PSGD, staleness in servers", quick_s=25, full_s=350),
    _of(peer_straggler, "other libraries beside a slow worker", quick_s=90, full_s=940),
)
"""All sections of `shoal bench sync`, in the order in which they run."""

SIM_SECTIONS = (
    _of(sim_engines, "packets: engines side by side, transports, memory", quick_s=60, full_s=300),
    _of(
        sim_dlcp, "an iteration of VGG-16 among 144 hosts, packet by packet", quick_s=30, full_s=240
    ),
    _of(sim_flows, "flows that share links, in virtual time", quick_s=10, full_s=60),
    _of(sim_ns3, "packets, side by side with ns-3", quick_s=90, full_s=260),
    _of(sim_simgrid, "flows, side by side with SimGrid", quick_s=60, full_s=170),
    _of(sim_training, "steps of 1,024 virtual workers", quick_s=10, full_s=300),
)
"""What `shoal bench sim` measures."""

TRANSPORT_SECTIONS = (
    _of(loopback, "Shoal's transport against gloo, over loopback", quick_s=25, full_s=60),
    _of(gpu_sums, "the same with tensors on a GPU", quick_s=60, full_s=120),
    Section(
        shaped.CLEAN,
        "all-reduce among emulated hosts with shaped ports",
        shaped.measure_clean,
        quick_s=40,
        full_s=280,
    ),
    _of(shared_hosts, "all-reduce where ranks share hosts", quick_s=40, full_s=240),
    Section(
        shaped.LOSS,
        "all-reduce among emulated hosts with random loss",
        shaped.measure_loss,
        quick_s=50,
        full_s=2_600,
    ),
    _of(
        long_ways, "all-reduce with loss where answers take long, on a lab", quick_s=160, full_s=600
    ),
    _of(equal_ways, "all-reduce over equal links between racks", quick_s=60, full_s=490),
    _of(incast, "many hosts push to one through a small buffer", quick_s=80, full_s=240),
    _of(overlap, "steps that go on behind the next forward pass", quick_s=50, full_s=120),
    _of(transport_memory, "memory of a rank beyond its tensors", quick_s=60, full_s=150),
    _of(
        switch_rate, "packets per second through the lab's software switch", quick_s=60, full_s=375
    ),
)
"""All sections of `shoal bench transport`."""


def choose_sections(suite: Sequence[Section], names: Sequence[str]) -> list[Section]:
    """Return the sections of `suite` with these names, all if there are none, in its order.

    Raises `UsageError` for a name that no section has.
    """
    known = {section.name: section for section in suite}
    for name in names:
        if name not in known:
            raise UsageError(unknown("There is no section", name, known))
    return [section for section in suite if not names or section.name in names]
