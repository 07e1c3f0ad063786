"""One run of a scenario's job under one strategy, in virtual time, and what came of it."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Final

from shoal.control import terms_of, usual_liveness_timeout_s
from shoal.errors import ResourceError, UsageError
from shoal.scenario import SHOAL, StrategySpec
from shoal.sim.closed_form.prediction import predict
from shoal.sim.compute_times import ComputeTimes
from shoal.sim.happenings import check_ways, processes, slower_hosts
from shoal.sim.training.all_strategies import make_simulated
from shoal.sim.training.architectures import architecture
from shoal.sim.training.executor import AbstractExecutor
from shoal.sim.training.learning import AbstractLearner, NothingLearned
from shoal.sim.training.model import ELEMENT_BYTES, ModelSize, even
from shoal.sim.training.networks import (
    as_simulated,
    check_name,
    check_transport,
    frame_bytes,
    level_of,
    make_network,
    transport_config,
)
from shoal.sim.training.outcome import Outcome
from shoal.sim.training.software import software_cost
from shoal.sim.training.strategy import NO_CHOICE
from shoal.sim.training.world import World
from shoal.sim.transports.bounded_loss_network import BoundedLossNetwork
from shoal.sim.transports.counting_network import CountingNetwork
from shoal.sim.transports.endpoints import check_endpoints
from shoal.sim.virtual_time import VirtualTime, check_countable
from shoal.strategies import check_pulls
from shoal.switching import PICOSECONDS
from shoal.transport import FLOAT32, MOST_MESSAGES, PIECE_BYTES, POLICIES, ZERO, sum_form

if TYPE_CHECKING:
    from shoal.scenario import ClusterSpec, Scenario, TrainingSpec, WorkerEvent
    from shoal.sim.network import Network
    from shoal.sim.training.attendance import Attendance
    from shoal.sim.training.strategy import AbstractSimulatedStrategy


MOST_HOSTS_BY_PACKETS: Final = 4096
"""What every port knows of every host no longer fits into memory much beyond."""


def check(scenario: Scenario) -> None:
    """Raise `UsageError` for names, options, sizes, calibrations and ways that there are not.

    And `ResourceError` for what memory has no room for. For before anything runs; errors say where
    what is wrong stands.
    """
    cluster, training = scenario.cluster, scenario.training
    assert training is not None
    check_ways(cluster, scenario.links)
    check_job(scenario)
    _check_heeded(scenario)
    world = _world_to_try(cluster, training)
    for strategy in training.strategies:
        check_carrier(scenario, strategy)
        with said_of(scenario.places.get(strategy.name)):
            made = make_simulated(strategy.strategy, strategy.options)
            made.prepare(world)
            if cluster.worker_events:
                made.check_goes_on()
            if strategy.loss_bound and not made.contributes:
                raise UsageError(
                    "loss_bound: in simulations all that this strategy sends arrives; leave it out."
                )
            _check_holes(training, strategy, made)
            _check_pulls(training, strategy, made)
            _check_wire(training, strategy, made)
            if not training.dataset or level_of(training, strategy) == "closed-form":
                _check_state(made)
            if level_of(training, strategy) == "closed-form":
                predict(cluster, training, strategy, model_of(training))
                continue
            # what workers compute alone tells before hours have passed
            check_countable(training.compute_s * training.steps * PICOSECONDS)
            if training.dataset:
                _check_replicas(cluster, training, made)


def check_job(scenario: Scenario) -> None:
    """Raise `UsageError` for a data set, a model or a transport of the job that there is not."""
    training = scenario.training
    assert training is not None
    if training.dataset and training.model is not None:
        from shoal.workloads import default_model, default_recipe

        with said_of(scenario.places.get("")):
            default_model(training.dataset)
            default_recipe(training.dataset, training.model)
    elif training.model is not None:
        with said_of(scenario.place_of("training", "model")):
            architecture(training.model)
    with said_of(scenario.place_of("training", "transport")):
        check_name(training.transport)


def _check_heeded(scenario: Scenario) -> None:
    """Raise `UsageError` for a key of transports that none of the strategies has."""
    training = scenario.training
    assert training is not None
    carriers = {each.transport or training.transport for each in training.strategies} - {""}
    for key, heeding, sentence in (
        ("mtu", carriers, "It is for packets: name a transport, or leave it out."),
        ("tick", carriers & {SHOAL}, f"Only the transport {SHOAL!r} has ticks: leave them out."),
        ("min_timeout", carriers - {SHOAL}, f"It is not for transport {SHOAL!r}: leave it out."),
    ):
        if ("training", key) in scenario.keys and not heeding:
            raise UsageError(f"{scenario.place_of('training', key)}: {key}: {sentence}")


def _check_replicas(
    cluster: ClusterSpec, training: TrainingSpec, made: AbstractSimulatedStrategy
) -> None:
    """Raise `ResourceError` if memory has no room for the models that learn."""
    from shoal.sim.training.replicas import check_replicas
    from shoal.workloads import default_recipe, load_dataset

    dataset, model = training.dataset, training.model
    assert model is not None
    recipe, workers = default_recipe(dataset, model), cluster.topology.hosts * cluster.workers
    check_replicas(load_dataset(dataset), model, recipe, workers, made.copies)


def check_carrier(scenario: Scenario, strategy: StrategySpec) -> None:
    """Raise `UsageError` if what is to carry a strategy cannot, on this cluster or for this job.

    And `ResourceError` if memory has no room for its tables. The job's names have been checked.
    """
    cluster, training = scenario.cluster, scenario.training
    assert training is not None
    with said_of(scenario.places.get(strategy.name)):
        check_transport(cluster, training, strategy)
    if not (strategy.transport or training.transport):
        return
    if level_of(training, strategy) != "packets" or cluster.topology.hosts == 1:
        return
    with said_of(scenario.places.get(strategy.name)):
        if cluster.topology.hosts > MOST_HOSTS_BY_PACKETS:
            message = (
                f"Packet by packet there are at most {MOST_HOSTS_BY_PACKETS:,} hosts, not"
                f' {cluster.topology.hosts:,}: take level = "flows" or "closed-form".'
            )
            raise UsageError(message)
    check_ways(cluster, scenario.links, by_packets=True)
    _check_buffers(scenario, strategy)
    if (strategy.transport or training.transport) == SHOAL:
        with said_of(scenario.places.get(strategy.name)):
            check_endpoints(cluster.topology.hosts)
            check_messages(cluster, training, strategy)


def _check_buffers(scenario: Scenario, strategy: StrategySpec) -> None:
    """Raise `UsageError` for a buffer, or queues all of them, that no full packet fits into.

    A job whose messages may all be smaller than a packet is left to try.
    """
    cluster, training = scenario.cluster, scenario.training
    assert training is not None
    full = frame_bytes(training, strategy.transport or training.transport)
    workers = cluster.topology.hosts * cluster.workers
    if not training.dataset and model_of(training).bytes < full * workers:
        return
    ports = [each.port for each in as_simulated(cluster, training, strategy).topology.cables]
    largest_queues = [max(q.limit_bytes or full for q in each.queues) for each in ports]
    held = {
        ("port_buffer",): min((p.limit_bytes for p in ports if p.limit_bytes), default=full),
        ("queue", 0, "limit"): min(largest_queues, default=full),
        ("shared_buffer",): cluster.shared_buffer or full,
    }
    for keys, limit in held.items():
        if limit < full:
            with said_of(scenario.place_of("switch", *keys)):
                message = (
                    f"{keys[-1]}: {limit:,} B hold no full packet, of {full:,} B with its headers,"
                    " so that none ever arrives: give ports room for some."
                )
                raise UsageError(message)


_FEW_BYTES: Final = PIECE_BYTES * MOST_MESSAGES // 4
"""A model of no more makes far fewer messages than there may be, whatever sends it."""
_TRANSFERS: Final = 4
"""The transfers, about, that each worker makes until what it sends at most is taken as known."""
_BUCKETS: Final = 64


def check_messages(cluster: ClusterSpec, training: TrainingSpec, strategy: StrategySpec) -> None:
    """Raise `UsageError` if the first transfers make more messages than there may be."""
    if training.dataset or model_of(training).bytes <= _FEW_BYTES:
        return
    most = _TRANSFERS * cluster.topology.hosts * cluster.workers + _BUCKETS
    network = CountingNetwork(cluster.topology, transport_config(training, strategy), most)
    world = make_world(cluster, training, strategy, network=network)
    network.enough = world.time.stop
    made = make_simulated(strategy.strategy, strategy.options)
    made.prepare(world)
    for rank in range(world.size):
        world.time.begin(made.worker(rank), awaited=True)
    world.time.run()


def _check_holes(
    training: TrainingSpec, strategy: StrategySpec, made: AbstractSimulatedStrategy
) -> None:
    """Raise `UsageError` for a policy that would make no difference."""
    policy = POLICIES[strategy.holes]
    if policy == ZERO:
        return
    if level_of(training, strategy) != "packets":
        raise UsageError(NO_CHOICE)
    made.check_holes(policy)


def _check_pulls(
    training: TrainingSpec, strategy: StrategySpec, made: AbstractSimulatedStrategy
) -> None:
    """Raise `UsageError` for pulls that may lose more than pushes, or what is not calibrated."""
    check_pulls(made.pull_bound, strategy.loss_bound)
    if made.pull_bound and level_of(training, strategy) != "packets":
        raise UsageError("pull_bound: what pulls lose is simulated packet by packet; leave it out.")


def _check_wire(
    training: TrainingSpec, strategy: StrategySpec, made: AbstractSimulatedStrategy
) -> None:
    """Raise `UsageError` where nothing is rounded, or its rounding is not simulated."""
    is_whole = sum_form("float32", strategy.wire) == FLOAT32
    if not is_whole and not (made.can_round and level_of(training, strategy) != "closed-form"):
        raise UsageError(
            "wire: simulated for sums of gradients by all-reduce, and for averages that hide behind"
            ' computing (overlap = "next-steps"), but by no closed form; leave it out.'
        )


def _check_state(made: AbstractSimulatedStrategy) -> None:
    """Raise `UsageError` for state that nobody has."""
    if made.averages_state:
        raise UsageError(
            "average_state: how much there is, the optimizer of a model says that learns; name a"
            " dataset, or leave it out."
        )


def _world_to_try(cluster: ClusterSpec, training: TrainingSpec) -> World:
    """Return the cluster with next to nothing to train.

    Which sizes a strategy refuses depends on workers, hosts and racks alone.
    """
    job = replace(training, dataset="", model=None, parameters=1, layers=1, transport="", level="")
    return make_world(cluster, job, StrategySpec(""))


@contextmanager
def said_of(place: str | None) -> Iterator[None]:
    """Let what is wrong be said of something that stands at `place`, if it stands anywhere."""
    try:
        yield
    except (UsageError, ResourceError) as error:
        if place is None:
            raise
        raise type(error)(f"{place}: {error}") from error


_SAMPLES: Final = 1_000
"""The number of test samples by which the replicas are judged."""


def simulate(
    cluster: ClusterSpec,
    training: TrainingSpec,
    strategy: StrategySpec,
    *,
    learner: AbstractLearner | None = None,
    network: Network | None = None,
    tick: Callable[[float], None] | None = None,
) -> Outcome:
    """Train in virtual time, or say by a formula what that comes to.

    Calls `tick` with the share of steps made now and then.
    `network` is at its beginning, of the cluster's topology; None: the strategy's.
    Raises `UsageError` for a strategy that does not fit, or that has no closed form where the
    scenario asks for one.
    """
    if level_of(training, strategy) == "closed-form":
        _check_state(make_simulated(strategy.strategy, strategy.options))
        return predict(cluster, training, strategy, model_of(training))
    world = make_world(cluster, training, strategy, learner=learner, network=network)
    made = make_simulated(strategy.strategy, strategy.options)
    if not world.learner.gradient_elements:
        _check_state(made)
    if cluster.worker_events:
        world.attendance = _attendance(world, made, training, cluster.worker_events)
    made.prepare(world)
    for rank in world.view.members:
        world.begin(rank, made.worker(rank), awaited=True)
    for process in processes(as_simulated(cluster, training, strategy), world.time):
        world.time.begin(process)
    total = training.steps * len(world.view)
    with _settled_heap():
        world.time.run(
            tick=None if tick is None else lambda: tick(sum(t.steps for t in world.times) / total)
        )
    world.time.network.check_conservation()
    if world.attendance is not None and not world.learner.is_satisfied:
        world.attendance.check_ended()
    made.finish(world)
    world.learner.finish(max(each.ended for each in world.times))
    if world.summing is not None and world.summing.lossy_bytes:
        world.count("lossy_bytes", world.summing.lossy_bytes)
        world.count("lost_bytes", world.summing.lost_bytes)
    network = world.time.network
    if isinstance(network, BoundedLossNetwork) and network.renewal_due_bytes:
        world.count("renewal_due_bytes", network.renewal_due_bytes)
        world.count("renewal_missing_bytes", network.renewal_missing_bytes)
    return _outcome(strategy.name, world)


def _attendance(
    world: World,
    made: AbstractSimulatedStrategy,
    training: TrainingSpec,
    events: Sequence[WorkerEvent],
) -> Attendance:
    """Return the control plane of a job in which these events happen to workers."""
    from shoal.sim.training.attendance import Attendance

    made.check_goes_on()
    assert isinstance(made, AbstractExecutor)  # the others need all workers to the end
    timeout_s = usual_liveness_timeout_s(training.deadline_s, is_fixed=False)
    terms = terms_of(world.view, timeout_s, training.min_workers)
    attendance = Attendance(world, made, terms, events)
    world.time.begin(attendance.happen())
    return attendance


_YOUNG: Final = 100_000
"""Objects made since the garbage collector last looked: processes and signals come and go."""


@contextmanager
def _settled_heap() -> Iterator[None]:
    """Keep the garbage collector from visiting what is there already, again and again.

    Thousands of workers wait in objects that live as long as the run: a fifth of its time.
    """
    if gc.get_freeze_count():
        yield
        return
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_YOUNG, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def make_world(
    cluster: ClusterSpec,
    training: TrainingSpec,
    strategy: StrategySpec,
    *,
    learner: AbstractLearner | None = None,
    network: Network | None = None,
) -> World:
    """Return the cluster with its workers, at the beginning of time; `network` as in `simulate`."""
    workers = cluster.topology.hosts * cluster.workers
    newcomers = cluster.newcomers
    learner = learner or _learner(cluster, training, workers)
    model = learner.size if training.dataset and learner.size else model_of(training)
    carries = learner.gradient_elements * ELEMENT_BYTES == model.bytes
    recorded = () if training.measured is None else training.measured.step_s
    cost = software_cost(training, workers)
    network = network or make_network(cluster, training, strategy, carries_values=carries)
    return World(
        time=VirtualTime(network),
        host_of=[*cluster.host_of, *newcomers],
        newcomers=len(newcomers),
        compute=ComputeTimes(
            training.compute_s * PICOSECONDS,
            training.spread,
            training.slow,
            _changes(cluster),
            seed=cluster.seed,
            recorded=[[each * PICOSECONDS for each in steps] for steps in recorded],
            slow_probability=training.slow_probability,
        ),
        model=model,
        learner=learner,
        steps=training.steps,
        seed=cluster.seed,
        control_delay=round(training.answer_s * PICOSECONDS),
        message_cost=round(cost.message_s * PICOSECONDS),
        server_cost=round(cost.server_s * PICOSECONDS),
        holes=POLICIES[strategy.holes],
        wire=sum_form("float32", strategy.wire),
    )


def _changes(cluster: ClusterSpec) -> list[tuple[int, int, float]]:
    """Return (from when, rank, factor) of the workers whose hosts become slower."""
    each_host = range(cluster.workers)
    return [
        (since, host * cluster.workers + place, factor)
        for since, host, factor in slower_hosts(cluster)
        for place in each_host
    ]


def _learner(cluster: ClusterSpec, training: TrainingSpec, workers: int) -> AbstractLearner:
    if not training.dataset:
        return NothingLearned()
    from shoal.sim.training.replicas import Replicas
    from shoal.workloads import default_recipe, load_dataset

    assert training.model is not None
    return Replicas(
        load_dataset(training.dataset),
        training.model,
        default_recipe(training.dataset, training.model),
        workers + len(cluster.newcomers),
        newcomers=len(cluster.newcomers),
        seed=cluster.seed,
        look_s=training.compute_s * training.steps / training.looks,
        samples=_SAMPLES,
    )


def model_of(training: TrainingSpec) -> ModelSize:
    """Return how large the job's model is, layer by layer."""
    if training.model is not None:
        return architecture(training.model).size()
    return even("model", training.parameters, min(training.layers, training.parameters))


def _outcome(name: str, world: World) -> Outcome:
    times = world.times
    end = max(each.ended for each in times)
    spent = [each.until(end) for each in times]
    total, compute, wait, exchange = (sum(part) for part in zip(*spent, strict=True))
    total = total or 1
    digest = hashlib.blake2b(digest_size=8)
    for each in times:
        digest.update(repr((*each.of_steps, each.ended)).encode())
    return Outcome(
        name=name,
        workers=world.size - world.newcomers,
        steps=sum(each.steps for each in times),
        seconds=end / PICOSECONDS,
        # a target may be met before a slow worker has made a step
        step_ms=fmean((t.ended - t.absent) / t.steps for t in times if t.steps) / PICOSECONDS * 1e3,
        compute_share=compute / total,
        wait_share=wait / total,
        exchange_share=exchange / total,
        steps_by_rank=tuple(each.steps for each in times),
        counters=dict(world.counters),
        flows=world.time.network.flows_ended,
        digest=digest.hexdigest(),
        curve=tuple(world.learner.curve),
        milestones_s=tuple(each / PICOSECONDS for each in world.progress.milestones),
        together_s=min(end, world.progress.together_until) / PICOSECONDS,
        together_steps=world.progress.together,
        most_behind=world.progress.most_behind,
        events=() if world.attendance is None else world.attendance.log.outcomes,
    )
