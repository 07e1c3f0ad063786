"""What the transport makes of the best candidates: short runs packet by packet, or calibrated.

Which strategies are worth it is known from flows, and so is how many steps each of them needs: a
packet run is far too short to learn anything. It says how much longer than as flows the same steps
take over a transport, with the loss, jitter and queues of the cluster.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from shoal.plan.candidates import CARRIERS, Candidate, candidates, carried, other_sizes
from shoal.plan.ranking import Prediction, order
from shoal.scenario import SHOAL, StrategySpec, racks_of
from shoal.sim import (
    TRANSPORTS,
    check_carrier,
    check_messages,
    level_of,
    model_of,
    not_modelled,
    said_of,
    simulate,
)
from shoal.sweeps import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.scenario import ClusterSpec, Scenario, TrainingSpec

NOTES: Final = (
    "Steps to the target are those of flows: what loss and rounding do to learning is left out.",
    "Transports carry a few steps each: what happens later on is left out.",
)
SERVERS_OVER_TCP: Final = (
    "Calibrated flows are too fast for parameter servers over TCP: where every push meets at a host"
    " packets may take twice as long."
)
"""What is to be said beside those where flows are calibrated."""

_STRATEGIES: Final = 6
"""The number of strategies that are simulated packet by packet, each in its best form; all-reduce
is always among them. Where flows are calibrated, all strategies are."""
_PACKETS: Final = 1_000_000
"""The approximate number of packets to be sent in a run."""
_PAYLOAD_BYTES: Final = 1_400
_EXCHANGES: Final = (2, 12)
"""The least and the most exchanges of a run."""


def runs_of(scenario: Scenario, ranked: Sequence[Prediction]) -> list[Run]:
    """Return the packet runs of the best of `ranked`; each comes to a `Prediction`."""
    assert scenario.training is not None
    where = racks_of(scenario.cluster.topology, scenario.cluster.host_of)
    by_name = {each.name: each for each in (*candidates(where), *other_sizes(where))}
    training = replace(scenario.training, strategies=())
    return [
        Run(
            f"{each.name} over {each.carrier}",
            predict_over,
            {
                "cluster": scenario.cluster,
                "training": training,
                "candidate": each,
                "flows": prediction,
            },
        )
        for prediction in worth_packets(ranked, every_strategy=is_calibrated(scenario))
        for each in carried(by_name[prediction.name])
    ]


def check(scenario: Scenario) -> None:
    """Raise `UsageError` if what is to carry the candidates cannot, on this cluster or for the job.

    And `ResourceError` if memory has no room for it. All of it is said of the job.
    """
    cluster, training = scenario.cluster, scenario.training
    assert training is not None
    job = scenario.place_of("training")
    aside = replace(scenario, places={} if job is None else {"": job, "all-reduce": job})
    for each in carried(Candidate("all-reduce")):
        spec = StrategySpec(each.strategy, transport=each.transport, loss_bound=each.loss_bound)
        check_carrier(aside, spec)
    for each in candidates(racks_of(cluster.topology, cluster.host_of)):
        spec = StrategySpec(each.strategy, each.options, transport=SHOAL)
        if level_of(training, spec) == "packets":
            with said_of(job):
                check_messages(cluster, training, spec)


def is_calibrated(scenario: Scenario) -> bool:
    """Return whether flows carry the transports, as calibrated: next to no time, as runs go."""
    assert scenario.training is not None
    return scenario.training.level == "flows"


def notes(scenario: Scenario) -> list[str]:
    """Return a sentence for everything that a plan with transports knows nothing of."""
    if not is_calibrated(scenario):
        return [*NOTES]
    return [*NOTES, *not_modelled(scenario.cluster, over_transports=True), SERVERS_OVER_TCP]


def left_out(scenario: Scenario, ranked: Sequence[Prediction]) -> str:
    """Say which of the strategies and forms `ranked` as flows no transport carries.

    And which transports and what they may do is not tried.
    """
    worth = worth_packets(ranked, every_strategy=is_calibrated(scenario))
    strategies = {_strategy(each) for each in worth}
    others = dict.fromkeys(_strategy(e) for e in ranked if _strategy(e) not in strategies)
    forms = len({e.name for e in ranked if _strategy(e) in strategies}) - len(worth)
    parts = [f"the strategies {', '.join(others)}"] if others else []
    if forms:
        parts.append(f"of each strategy all forms but the best one as flows ({forms} forms)")
    unused = ", ".join(each for each in TRANSPORTS if each not in CARRIERS)
    parts.append(
        f"the transports {unused}, other loss bounds, and elements rounded in sums of gradients"
    )
    return f"Not compared over transports: {'; '.join(parts)}. --json has all that ran as flows."


def worth_packets(
    ranked: Sequence[Prediction], *, every_strategy: bool = False
) -> list[Prediction]:
    """Return the best form of the best strategies, or of all, and all-reduce as it is unasked."""
    best: dict[str, Prediction] = {}
    for each in sorted(ranked, key=order):
        best.setdefault(_strategy(each), each)
    most = len(best) + 1 if every_strategy else _STRATEGIES
    found = list(best.values())[:most]
    usual = next((each for each in ranked if each.name == "all-reduce"), None)
    return found if usual is None or usual in found else [*found[: most - 1], usual]


def _strategy(each: Prediction) -> str:
    return each.name.split()[0]


def predict_over(
    cluster: ClusterSpec,
    training: TrainingSpec,
    candidate: Candidate,
    flows: Prediction,
    *,
    tick: Callable[[float], None] | None = None,
) -> Prediction:
    """Return what `flows` becomes over the candidate's transport.

    The same steps are simulated as flows once more, so that the first steps, and the draws of how
    long each one computes, are in both. (As flows, it is no matter whether an all-reduce goes on
    behind the next forward pass.)
    """
    job = replace(training, steps=_steps(cluster, training, candidate), transport="")
    plain = StrategySpec(candidate.strategy, candidate.options)
    packets = replace(
        plain,
        transport=candidate.transport,
        loss_bound=candidate.loss_bound,
        wire=candidate.wire,
    )
    before = simulate(cluster, job, plain)
    after = simulate(cluster, job, packets, tick=tick)
    factor, met = after.step_ms / before.step_ms, flows.seconds_to_target
    return replace(
        flows,
        name=candidate.name,
        line=candidate.line,
        transport=candidate.carrier,
        loss_bound=candidate.loss_bound,
        is_exact=candidate.is_exact,
        goes_on=candidate.goes_on,
        is_served=candidate.is_served,
        step_ms=flows.step_ms * factor,
        seconds_to_target=None if met is None else met * factor,
        compute_share=after.compute_share,
        wait_share=after.wait_share,
        exchange_share=after.exchange_share,
        lost_share=after.lost_share,
    )


def _steps(cluster: ClusterSpec, training: TrainingSpec, candidate: Candidate) -> int:
    """Return how many steps take about as many packets as a run may."""
    workers = cluster.topology.hosts * cluster.workers
    packets = 2 * workers * model_of(training).bytes / _PAYLOAD_BYTES
    least, most = _EXCHANGES
    exchanges = min(max(round(_PACKETS / packets), least), most)
    return exchanges * int(candidate.options.get("interval", 1))
