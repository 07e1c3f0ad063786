"""What software takes of an exchange, beside its bytes: given, or measured from a traced run.

One figure for every message that has to follow another one: the overhead o of the LogP model
(Culler et al., "LogP: Towards a Realistic Model of Parallel Computation", PPoPP 1993), scheduling
and copying included. A ring of S members has 2(S-1) of them. A worker's push and pull come to as
many if S servers share the model, with each of which it exchanges two while it serves as many;
a server in Python may take longer than that, so it has a figure of its own where one is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.sim.training.model import ELEMENT_BYTES, even
from shoal.strategies import Family, usual

if TYPE_CHECKING:
    from shoal.scenario import Measured, TrainingSpec


@dataclass(frozen=True, slots=True)
class SoftwareCost:
    """Seconds of software, for a message of an exchange, and for a worker's push and pull."""

    message_s: float = 0.0
    server_s: float = 0.0


def software_cost(training: TrainingSpec, workers: int) -> SoftwareCost:
    """Return what the job says; where it says nothing, what its traced run says, if there is one.

    Servers of which nothing is known cost what their messages do.
    """
    found = SoftwareCost()
    if training.measured is not None:
        found = measured_cost(training.measured, training.local_rate)
    message_s = found.message_s if training.message_cost_s is None else training.message_cost_s
    server_s = training.server_cost_s
    if server_s is None:
        server_s = found.server_s or 2 * (workers - 1) * message_s
    return SoftwareCost(message_s, server_s)


def measured_cost(measured: Measured, local_rate: float) -> SoftwareCost:
    """Return what exchanges of a traced run took beyond their bytes; none is known of AD-PSGD.

    `shoal train` runs all workers on one machine: their bytes take what they take at `local_rate`,
    bits per second. `server_s` is 0 if the run had no servers.
    """
    strategy = usual(measured.strategy)
    family = None if strategy is None else strategy.family
    if family is Family.PAIRS:  # beside computing: a trace has only what is left when that ends
        return SoftwareCost()
    is_served = family is Family.SERVERS
    weighted, count = 0.0, 0
    for each in measured.exchanges:
        members = len(measured.step_s) if is_served else each.members
        if members < 2:
            continue
        rounds, sums = 2 * (members - 1), 1
        bytes_s = rounds / members * measured.parameters * ELEMENT_BYTES * 8 / local_rate
        if family is Family.SUMS:
            model = even("traced", measured.parameters, min(16, measured.parameters))
            sums = len(model.buckets(None, num_hosts=1))
        weighted += each.count * max(0.0, each.mean_s - bytes_s) / (rounds * sums)
        count += each.count
    message_s = weighted / count if count else 0.0
    servers = len(measured.step_s)
    return SoftwareCost(message_s, 2 * (servers - 1) * message_s if is_served else 0.0)
