"""The sections of `shoal bench sync`, `transport` and `sim`, and how long they take.

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
    generator_rate,
    gpu_sums,
    group_average,
    incast,
    large_exchange,
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
    from shoal_bench.rows import Row
    from shoal_bench.stand import Stand


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the suite that can be measured alone."""

    name: str
    """What `--only` takes, and `Row.bench` of its rows."""

    summary: str
    """What it measures, in a few words."""

    measure: Callable[[Stand], list[Row]]
    quick_s: float
    """Seconds it took on two cores with --quick; for the estimate of the time left."""

    full_s: float
    """Seconds it took on two cores without --quick."""

    def seconds(self, *, quick: bool) -> float:
        """Return about how long it takes."""
        return self.quick_s if quick else self.full_s


SYNC_SECTIONS = (
    Section(
        generator_rate.NAME,
        "requests per second of the group generator",
        generator_rate.measure,
        quick_s=6,
        full_s=40,
    ),
    Section(
        control_service.NAME,
        "the same as a service, over sockets",
        control_service.measure,
        quick_s=5,
        full_s=60,
    ),
    Section(
        ddp_step.NAME,
        "step of all-reduce against PyTorch DDP",
        ddp_step.measure,
        quick_s=12,
        full_s=50,
    ),
    Section(
        peer_step.NAME, "step against other libraries", peer_step.measure, quick_s=30, full_s=80
    ),
    Section(
        group_average.NAME,
        "averaging in a group never used before",
        group_average.measure,
        quick_s=10,
        full_s=50,
    ),
    Section(
        large_exchange.NAME,
        "iteration with a large model",
        large_exchange.measure,
        quick_s=50,
        full_s=370,
    ),
    Section(
        straggler_rate.NAME,
        "speed beside a slow worker",
        straggler_rate.measure,
        quick_s=25,
        full_s=440,
    ),
    Section(
        straggler_time.NAME,
        "time to accuracy beside a slow worker",
        straggler_time.measure,
        quick_s=30,
        full_s=260,
    ),
    Section(
        accuracy.NAME,
        "accuracy of every strategy after equal steps",
        accuracy.measure,
        quick_s=27,
        full_s=1200,
    ),
    Section(
        contention.NAME,
        "queues in AD-PSGD, staleness in servers",
        contention.measure,
        quick_s=25,
        full_s=350,
    ),
    Section(
        peer_straggler.NAME,
        "other libraries beside a slow worker",
        peer_straggler.measure,
        quick_s=90,
        full_s=940,
    ),
)
"""All sections of `shoal bench sync`, in the order in which they run."""

SIM_SECTIONS = (
    Section(
        sim_engines.NAME,
        "packets: engines side by side, transports, memory",
        sim_engines.measure,
        quick_s=60,
        full_s=300,
    ),
    Section(
        sim_dlcp.NAME,
        "an iteration of VGG-16 among 144 hosts, packet by packet",
        sim_dlcp.measure,
        quick_s=30,
        full_s=240,
    ),
    Section(
        sim_flows.NAME,
        "flows that share links, in virtual time",
        sim_flows.measure,
        quick_s=10,
        full_s=60,
    ),
    Section(
        sim_ns3.NAME,
        "packets, side by side with ns-3",
        sim_ns3.measure,
        quick_s=90,
        full_s=260,
    ),
    Section(
        sim_simgrid.NAME,
        "flows, side by side with SimGrid",
        sim_simgrid.measure,
        quick_s=60,
        full_s=170,
    ),
    Section(
        sim_training.NAME,
        "steps of 1,024 virtual workers",
        sim_training.measure,
        quick_s=10,
        full_s=300,
    ),
)
"""What `shoal bench sim` measures."""

TRANSPORT_SECTIONS = (
    Section(
        loopback.NAME,
        "Shoal's transport against gloo, over loopback",
        loopback.measure,
        quick_s=25,
        full_s=60,
    ),
    Section(
        gpu_sums.NAME,
        "the same with tensors on a GPU",
        gpu_sums.measure,
        quick_s=60,
        full_s=120,
    ),
    Section(
        shaped.CLEAN,
        "all-reduce among emulated hosts with shaped ports",
        shaped.measure_clean,
        quick_s=40,
        full_s=280,
    ),
    Section(
        shared_hosts.NAME,
        "all-reduce where ranks share hosts",
        shared_hosts.measure,
        quick_s=40,
        full_s=240,
    ),
    Section(
        shaped.LOSS,
        "all-reduce among emulated hosts with random loss",
        shaped.measure_loss,
        quick_s=50,
        full_s=2_600,
    ),
    Section(
        incast.NAME,
        "many hosts push to one through a small buffer",
        incast.measure,
        quick_s=80,
        full_s=240,
    ),
    Section(
        overlap.NAME,
        "steps that go on behind the next forward pass",
        overlap.measure,
        quick_s=50,
        full_s=120,
    ),
    Section(
        transport_memory.NAME,
        "memory of a rank beyond its tensors",
        transport_memory.measure,
        quick_s=60,
        full_s=150,
    ),
    Section(
        switch_rate.NAME,
        "packets per second through the lab's software switch",
        switch_rate.measure,
        quick_s=60,
        full_s=375,
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
