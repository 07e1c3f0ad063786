"""Strategies in virtual time: closed forms, and what must hold of each of them."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from shoal.errors import UsageError
from shoal.scenario.cluster_spec import ClusterSpec
from shoal.scenario.training_spec import StrategySpec, TrainingSpec
from shoal.sim.compute_times import ComputeTimes
from shoal.sim.network import TCP_HEADERS
from shoal.sim.training.all_strategies import NOT_SIMULATED, make_simulated, options_of
from shoal.sim.training.learning import AbstractLearner, NothingLearned
from shoal.sim.training.simulation import simulate
from shoal.strategies import STRATEGIES
from shoal.switching.settings import Link, Port
from shoal.switching.topology import Materials, host_names, leaf_spine, star
from shoal.transport.forms import FLOAT32_AS_FLOAT16
from thoroughness import ONE_OF_EACH, seldom

if TYPE_CHECKING:
    from shoal.sim.training.outcome import Outcome

RATE = 1_000_000_000
DELAY_S = 10e-6
PLAIN = Materials(Port(RATE), Port(RATE), Link(delay_s=DELAY_S))


OVERLAPPED = {
    name: "next-steps"
    for name, factory in STRATEGIES.items()
    if "interval" in inspect.signature(factory).parameters
}
"""Strategies that average parameters while computing goes on, if asked to."""
LAYERWISE = [*(name for name in OVERLAPPED if name != "diloco"), "all-reduce"]
"""Strategies whose exchanges the next forward pass can take layer by layer."""


def cluster(hosts: int, workers: int = 1) -> ClusterSpec:
    return ClusterSpec(star(host_names(hosts), PLAIN), workers=workers, spray=True)


def training(name: str, **changes: object) -> TrainingSpec:
    usual = TrainingSpec(
        parameters=1_000_000,
        compute_s=0.1,
        steps=20,
        strategies=(StrategySpec(name),),
        layers=1,
        control_delay_s=0.0,
    )
    return replace(usual, **changes)  # type: ignore[arg-type]


def run(name: str, where: ClusterSpec, job: TrainingSpec, **options: object) -> Outcome:
    return simulate(where, job, StrategySpec(name, options))


def run_both(name: str, where: ClusterSpec, job: TrainingSpec, **options: object) -> Outcome:
    """Return what flows come to, after seeing that the closed form says the same."""
    out = run(name, where, job, **options)
    said = simulate(where, job, StrategySpec(name, options, level="closed-form"))
    assert said.seconds == pytest.approx(out.seconds, rel=1e-9)
    for share in ("compute_share", "wait_share", "exchange_share", "step_ms"):
        assert getattr(said, share) == pytest.approx(getattr(out, share), rel=1e-9, abs=1e-9)
    return out


def seconds(share: float) -> float:
    """Return how long this share of the model takes through a port."""
    return share * 4e6 * TCP_HEADERS * 8 / RATE


def test_options_that_are_not_simulated_are_said_to_be() -> None:
    missing = {
        option
        for name, real in STRATEGIES.items()
        for option in inspect.signature(real).parameters
        if option not in options_of(name)
    }
    assert missing == set(NOT_SIMULATED)
    with pytest.raises(UsageError, match="The option 'servers' of ps-bsp is not simulated"):
        make_simulated("ps-bsp", {"servers": 1})
    with pytest.raises(UsageError, match="Strategy 'local-sgd' has no option 'overlab'"):
        make_simulated("local-sgd", {"overlab": "next-steps"})


def test_all_reduce_takes_its_ring() -> None:
    out = run_both("all-reduce", cluster(8), training("all-reduce"))
    ring = seconds(2 * 7 / 8) + 14 * 2 * DELAY_S
    assert out.seconds == pytest.approx(20 * (0.1 + ring), rel=1e-9)
    assert out.compute_share == pytest.approx(0.1 / (0.1 + ring), rel=1e-6)


def test_factors_of_low_rank_are_sent_from_the_third_sum_on() -> None:
    """A matrix of 1,000 by 1,000 is sent as 4 columns and 4 rows: 8 of 1,000 bytes."""
    out = run_both("all-reduce", cluster(8), training("all-reduce"), low_rank=4)
    rings = [seconds(2 * 7 / 8 * share) + 14 * 2 * DELAY_S for share in (1.0, 0.008)]
    assert out.seconds == pytest.approx(20 * 0.1 + 2 * rings[0] + 18 * rings[1], rel=1e-9)


def test_all_reduce_hides_what_backward_still_takes() -> None:
    """Two layers of 2 MB: the last one's sum is under way while the first one is differentiated."""
    out = run_both("all-reduce", cluster(8), training("all-reduce", layers=2))
    ring = seconds(7 / 8) + 14 * 2 * DELAY_S
    assert ring < 0.1 / 3  # as long as backward takes for one of them
    assert out.seconds == pytest.approx(20 * (0.1 + ring), rel=1e-9)


@pytest.mark.parametrize("overlap", ["backward", "next-forward"])
def test_small_buckets_hide_more_of_a_sum(overlap: str) -> None:
    """An eighth at a time, the first of them begins sooner and less is left after the last."""
    job = training("all-reduce", layers=16)
    out = {
        size: run_both("all-reduce", cluster(8), job, overlap=overlap, bucket_bytes=size).seconds
        for size in (None, 500_000, 4_000_000)
    }
    assert out[None] == out[500_000] < out[4_000_000]


def test_ds_sync_takes_a_ring_of_its_group() -> None:
    out = run_both("ds-sync", cluster(16), training("ds-sync"))
    ring = seconds(2 * 3 / 4) + 6 * 2 * DELAY_S
    assert out.seconds == pytest.approx(20 * (0.1 + ring), rel=1e-9)


def test_a_parameter_server_pushes_and_pulls_all_shards_but_its_own() -> None:
    out = run_both("ps-bsp", cluster(4), training("ps-bsp"))
    way = seconds(3 / 4) + 2 * DELAY_S
    assert out.seconds == pytest.approx(20 * (0.1 + 2 * way), rel=1e-9)
    assert out.counters == {"shard_reads": 4 * (80 + 4), "staleness": 0, "max.staleness": 0}


@pytest.mark.parametrize(
    "name",
    seldom(["ds-sync", "ripples-static", "ripples", "local-sgd"], often=["ds-sync", "ripples"]),
)
def test_state_travels_with_the_parameters_and_is_averaged_after_them(name: str) -> None:
    told = mock.create_autospec(AbstractLearner, instance=True)
    told.is_satisfied, told.size, told.gradient_elements, told.curve = False, None, 1, ()
    told.state_per_parameter = 2.0
    spec = StrategySpec(name, {"average_state": True})
    job = training(name, steps=8)
    with_state = simulate(cluster(4), job, spec, learner=told)
    calls = [each for each in told.method_calls if each[0] in ("average", "average_state")]
    assert [each[0] for each in calls] == ["average", "average_state"] * (len(calls) // 2)
    assert [each[1] for each in calls[::2]] == [each[1] for each in calls[1::2]]
    plain = simulate(cluster(4), job, StrategySpec(name))
    apart = with_state.seconds - plain.seconds
    assert with_state.counters == plain.counters
    assert apart == pytest.approx(2 * (plain.seconds - 8 * 0.1), rel=0.02)  # thrice the bytes


def test_state_of_nothing_that_learns_is_not_simulated() -> None:
    with pytest.raises(UsageError, match="average_state: how much there is, the optimizer"):
        run("ds-sync", cluster(4), training("ds-sync"), average_state=True)
    spec = StrategySpec("ds-sync", {"average_state": True}, level="closed-form")
    with pytest.raises(UsageError, match="average_state: how much there is, the optimizer"):
        simulate(cluster(4), training("ds-sync"), spec)


@pytest.mark.parametrize("name", ["ds-sync", "ripples-static", "local-sgd"])
def test_state_that_is_not_averaged_may_be_said_to_stay(name: str) -> None:
    said = run_both(name, cluster(4), training(name), average_state=False)
    assert said.digest == run(name, cluster(4), training(name)).digest


@pytest.mark.parametrize("wire", seldom(["float16", "bfloat16"], often=["float16"]))
def test_what_is_rounded_takes_half_of_the_bytes(wire: str) -> None:
    for name, options in (("all-reduce", {}), ("local-sgd", {"overlap": "next-steps"})):
        job = training(name, compute_s=1e-5)
        spec = StrategySpec(name, options, transport="shoal")
        whole, half = (
            simulate(cluster(4), job, replace(spec, wire=each)).seconds
            for each in ("float32", wire)
        )
        assert half == pytest.approx(whole / 2, rel=0.15)  # next to nothing is computed


def test_copies_are_averaged_as_they_were_sent() -> None:
    told = mock.create_autospec(AbstractLearner, instance=True)
    told.is_satisfied, told.size, told.gradient_elements, told.curve = False, None, 0, ()
    spec = StrategySpec("local-sgd", {"overlap": "next-steps"}, wire="float16")
    simulate(cluster(2), training("local-sgd", steps=8), spec, learner=told)
    copies = [each for each in told.method_calls if each[0] == "copy"]
    assert copies
    assert {each[1][1] for each in copies} == {FLOAT32_AS_FLOAT16}


def test_ad_psgd_hides_its_exchanges_behind_computing() -> None:
    """Four passive workers of eight: what one computes, an exchange of its own may take."""
    out = run_both("ad-psgd", cluster(8), training("ad-psgd"), peers="exponential")
    assert out.seconds == pytest.approx(20 * 0.1, rel=1e-9)
    assert out.counters["exchanges"] == 4 * 20
    assert "busy_requests" not in out.counters


def test_random_peers_of_ad_psgd_queue() -> None:
    out = run("ad-psgd", cluster(8), training("ad-psgd", compute_s=0.04))
    assert out.counters["busy_requests"] > 0
    assert out.seconds > 20 * 0.04


def test_pairs_of_ad_psgd_average_what_they_were_and_keep_what_they_learn_meanwhile() -> None:
    """An exchange lasts more than three steps of the passive worker, which waits for nobody."""
    told = mock.create_autospec(AbstractLearner, instance=True)
    told.is_satisfied, told.size, told.gradient_elements, told.curve = False, None, 0, ()
    job = training("ad-psgd", compute_s=seconds(1) / 3.5, steps=6)
    simulate(cluster(2), job, StrategySpec("ad-psgd"), learner=told)
    calls = [each for each in told.method_calls if each[0] != "note_step"]
    begun = calls.index(mock.call.copy(1))  # it asks at the end of its first step
    assert calls[begun + 1] == mock.call.copy(0)
    over = calls.index(mock.call.average([1, 0], [0.5, 0.5], copies=True))
    assert calls[over + 1 : over + 3] == [mock.call.add_changes(1), mock.call.add_changes(0)]
    learnt = [each for each in calls[begun:over] if each == mock.call.update_by_mean([0])]
    assert len(learnt) >= 3
    assert not [each for each in calls if each[0] == "average" and not each[2].get("copies")]


@pytest.mark.parametrize("scales", [False, True])
def test_steps_are_scaled_for_all_workers_if_asked(
    scales: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = set()
    monkeypatch.setattr(
        NothingLearned, "update", lambda _, _rank, scale_for=1: asked.add(scale_for), raising=True
    )
    run("ds-sync", cluster(4), training("ds-sync"), scale_adam=scales)
    assert asked == {4 if scales else 1}


@pytest.mark.parametrize("name", seldom(STRATEGIES, often=ONE_OF_EACH))
def test_every_worker_makes_its_steps_and_the_same_seed_the_same_run(name: str) -> None:
    see_that_runs_are_whole(name)


@pytest.mark.parametrize(
    ("name", "overlap"),
    seldom(
        [
            *OVERLAPPED.items(),
            *((name, "next-forward") for name in LAYERWISE),
            *((name, "layers") for name in ("ds-sync", "local-sgd", "ripples-static")),
        ],
        often=[
            ("ds-sync", "next-steps"),
            ("ripples", "next-steps"),
            ("ds-sync", "next-forward"),
            ("ds-sync", "layers"),
            ("ripples", "next-forward"),
            ("all-reduce", "next-forward"),
        ],
    ),
)
def test_so_it_is_where_computing_goes_on(name: str, overlap: str) -> None:
    see_that_runs_are_whole(name, overlap=overlap)


def see_that_runs_are_whole(name: str, **options: object) -> None:
    job = training(name, spread=0.3, slow={3: 3.0}, steps=40)
    where = cluster(3, workers=3)
    out = run(name, where, job, **options)
    assert out.steps_by_rank == (40,) * 9
    assert out.compute_share + out.wait_share + out.exchange_share == pytest.approx(1, abs=2e-3)
    again = run(name, where, job, **options)
    assert again == out
    other = run(name, replace(where, seed=2), job, **options)
    assert other.digest != out.digest


def test_an_average_that_computing_does_not_wait_for_hides_behind_it() -> None:
    job = training("local-sgd")
    ring = seconds(2 * 7 / 8) + 14 * 2 * DELAY_S
    assert 0.04 < ring < 2 * 0.04
    out = run_both("local-sgd", cluster(8), job, interval=1, overlap="next-steps")
    assert out.seconds == pytest.approx(20 * 0.1, rel=1e-9)
    assert out.compute_share == pytest.approx(1, rel=1e-9)
    short = replace(job, compute_s=0.04)
    out = run_both("local-sgd", cluster(8), short, interval=2, overlap="next-steps")
    assert out.seconds == pytest.approx(20 * 0.04, rel=1e-9)
    # every step waits for the average of the step before; the last one is no step's any more
    out = run_both("local-sgd", cluster(8), short, interval=1, overlap="next-steps")
    assert out.seconds == pytest.approx(0.04 + 19 * ring, rel=1e-9)
    assert out.exchange_share == pytest.approx(19 * (ring - 0.04) / out.seconds, rel=1e-6)


def test_delayed_averages_by_groups_hide_too() -> None:
    for name in ("ds-sync", "ripples-static"):
        waits = run_both(name, cluster(4, workers=4), training(name, local_rate=RATE))
        job = training(name, local_rate=RATE)
        goes_on = run_both(name, cluster(4, workers=4), job, overlap="next-steps")
        assert goes_on.seconds < 0.75 * waits.seconds


@pytest.mark.parametrize("compute_s", [0.1, 0.3])
@pytest.mark.parametrize("name", seldom(["local-sgd", "ds-sync"], often=["ds-sync"]))
def test_layers_wait_for_their_pieces_of_an_average(name: str, compute_s: float) -> None:
    """Eight layers, each a piece of half a megabyte; pieces follow each other from the front."""
    job = training(name, layers=8, compute_s=compute_s)
    out = run(name, cluster(4), job, interval=1, overlap="next-forward")
    members = 4 if name == "local-sgd" else 2
    rounds = 2 * (members - 1)
    piece = seconds(rounds / members / 8) + rounds * 2 * DELAY_S
    layer, reached = compute_s / 3 / 8, 0.0
    for number in range(8):
        reached = max(reached, (number + 1) * piece) + layer
    step = reached + 2 * compute_s / 3
    assert out.seconds == pytest.approx(compute_s + 19 * step, rel=1e-9)
    waits = run(name, cluster(4), job, interval=1)
    assert out.seconds < waits.seconds - 19 * min(7 * piece, 7 * layer)


@pytest.mark.parametrize("compute_s", [0.3, 0.03], ids=["hidden", "waited for"])
@pytest.mark.parametrize("name", seldom(["local-sgd", "ds-sync"], often=["ds-sync"]))
def test_averages_begin_as_backward_gets_to_their_layers(name: str, compute_s: float) -> None:
    """Eight layers, each a piece of half a megabyte; pieces follow each other from the rear."""
    job = training(name, layers=8, compute_s=compute_s)
    out = run(name, cluster(4), job, interval=1, overlap="layers")
    members = 4 if name == "local-sgd" else 2
    rounds = 2 * (members - 1)
    piece = seconds(rounds / members / 8) + rounds * 2 * DELAY_S
    layer = compute_s / 3 / 8
    now, known = 0.0, [0.0] * 8
    for _ in range(20):
        for number in range(8):
            now = max(now, known[number]) + layer
        over = now
        for number in reversed(range(8)):
            now += 2 * layer
            over = known[number] = max(over, now) + piece
    assert out.seconds == pytest.approx(now, rel=1e-9)
    forward = run(name, cluster(4), job, interval=1, overlap="next-forward")
    assert out.seconds <= forward.seconds  # which waits for the front piece alone if all hides
    assert out.seconds < forward.seconds or compute_s == 0.3


def test_averages_that_backward_begins_are_those_of_waiting() -> None:
    """What is rare, or never due, too; and a slow worker holds its group up, as without."""
    for interval, steps in ((1, 1), (3, 7), (30, 20)):
        job = training("ds-sync", layers=4, slow={1: 3.0}, spread=0.2, steps=steps)
        waits, begins = (
            run("ds-sync", cluster(4), job, interval=interval, overlap=overlap)
            for overlap in ("none", "layers")
        )
        assert begins.steps_by_rank == waits.steps_by_rank
        assert begins.counters == waits.counters
        assert begins.seconds <= waits.seconds


@pytest.mark.parametrize("overlap", ["next-forward", "layers"])
def test_what_learns_does_so_after_the_average_that_layers_wait_for(overlap: str) -> None:
    told = mock.create_autospec(AbstractLearner, instance=True)
    told.is_satisfied, told.size, told.gradient_elements, told.curve = False, None, 0, ()
    spec = StrategySpec("local-sgd", {"interval": 1, "overlap": overlap})
    simulate(cluster(2), training("local-sgd", layers=4, steps=3), spec, learner=told)
    calls = [each[0] for each in told.method_calls if each[0] in ("update", "average")]
    assert calls == 3 * ["update", "update", "average"]


def test_groups_of_the_generator_form_while_their_members_compute() -> None:
    """Two workers of one host: the request and the average take longer than a step computes."""
    job = training("ripples", control_delay_s=0.01, local_rate=RATE, compute_s=0.05)
    average = 0.01 + 2 * seconds(1)
    assert average > 0.05
    out = run("ripples", cluster(1, workers=2), job, overlap="next-steps")
    assert out.seconds == pytest.approx(0.05 + 19 * average, rel=1e-9)
    out = run("ripples", cluster(1, workers=2), job, overlap="next-steps", interval=2)
    assert out.seconds == pytest.approx(20 * 0.05, rel=1e-9)


def test_the_next_forward_pass_begins_when_the_front_layers_are_known() -> None:
    """Sums that follow each other end with those: nothing is gained by flows."""
    job = training("all-reduce", layers=16, parameters=40_000_000)
    waits = run_both("all-reduce", cluster(4), job)
    goes_on = run_both("all-reduce", cluster(4), job, overlap="next-forward")
    assert goes_on.seconds == pytest.approx(waits.seconds, rel=1e-9)


def test_who_waits_for_the_slowest_and_who_does_not() -> None:
    """One of 16 workers is five times slower: Ripples/Prague's reason to be."""
    job = training("ripples", slow={0: 5.0}, steps=60, parameters=100_000)
    times = {}
    for name in ("all-reduce", "ds-sync", "ripples", "ps-asp", "ad-psgd"):
        out = run(name, cluster(4, workers=4), job)
        times[name] = out.step_ms
    assert times["all-reduce"] > 500
    assert times["ds-sync"] > 490
    for name in ("ripples", "ps-asp", "ad-psgd"):
        assert times[name] < 200


def test_ds_sync_relieves_an_oversubscribed_trunk_half_of_the_time() -> None:
    """Rows lie within a rack, columns cross: 4 flows on an uplink of a quarter of their rate."""
    materials = replace(PLAIN, trunk_port=Port(RATE // 2))
    where = ClusterSpec(leaf_spine(host_names(16), 4, 2, materials), spray=True)
    out = run_both("ds-sync", where, training("ds-sync"))
    ring = seconds(2 * 3 / 4)
    across = 4 * ring + 6 * 4 * DELAY_S
    within = ring + 6 * 2 * DELAY_S
    assert out.seconds == pytest.approx(20 * 0.1 + 10 * (across + within), rel=1e-6)
    everyone = run_both("all-reduce", where, training("all-reduce"))
    assert everyone.seconds == pytest.approx(
        20 * (0.1 + seconds(2 * 15 / 16) + 30 * 4 * DELAY_S), rel=1e-6
    )


def test_ds_sync_that_knows_the_racks_never_shares_an_uplink() -> None:
    """A phase within racks, then four in which one group of four crosses and the rest are alone."""
    materials = replace(PLAIN, trunk_port=Port(RATE // 2))
    where = ClusterSpec(leaf_spine(host_names(16), 4, 2, materials), spray=True)
    out = run_both("ds-sync", where, training("ds-sync"), shuffle="topology")
    ring = seconds(2 * 3 / 4)
    within, across = ring + 6 * 2 * DELAY_S, ring + 6 * 4 * DELAY_S
    assert out.seconds == pytest.approx(20 * 0.1 + 20 // 5 * (within + across), rel=1e-6)
    assert out.counters == {"group_size.4": 4 * (4 + 4)}


def test_a_direct_all_reduce_carries_as_much_as_a_ring_in_fewer_rounds() -> None:
    out = run_both("all-reduce", cluster(8), training("all-reduce"), algorithm="direct")
    assert out.seconds == pytest.approx(20 * (0.1 + seconds(2 * 7 / 8) + 4 * 2 * DELAY_S), rel=1e-9)


def test_a_hierarchical_all_reduce_sends_a_hosts_sum_once() -> None:
    """Four hosts of four: as much through each card as with a worker each, if hosts are fast."""
    job = training("all-reduce", local_rate=100 * RATE)
    out = run_both("all-reduce", cluster(4, workers=4), job, algorithm="hierarchical")
    between = seconds(2 * 3 / 4)
    assert out.seconds == pytest.approx(20 * (0.1 + between + 4 * 2 * DELAY_S), rel=1e-9)
    slow = replace(job, local_rate=RATE)
    out = run_both("all-reduce", cluster(4, workers=4), slow, algorithm="hierarchical")
    within = 4 * seconds(2 * 3 / 4)
    assert out.seconds == pytest.approx(20 * (0.1 + within + 3 * 2 * DELAY_S), rel=1e-9)


def test_a_hierarchy_of_racks_relieves_their_uplinks() -> None:
    materials = replace(PLAIN, trunk_port=Port(RATE // 4))
    where = ClusterSpec(leaf_spine(host_names(16), 4, 2, materials), spray=True)
    job = training("all-reduce")
    out = run_both("all-reduce", where, job, algorithm="hierarchical", per_host=4)
    across = 2 * seconds(2 * 3 / 4)  # a rack's sum, over an uplink of half a card's rate
    assert out.seconds == pytest.approx(20 * (0.1 + across + 4 * 4 * DELAY_S), rel=1e-6)
    direct = run_both("all-reduce", where, job, algorithm="direct")
    # each of a rack's four sends to twelve others, and as much comes back
    assert direct.seconds == pytest.approx(
        20 * (0.1 + 2 * seconds(4 * 2 * 12 / 16) + 4 * 4 * DELAY_S), rel=1e-6
    )


def test_asking_the_generator_takes_time() -> None:
    """Two workers of one host, 1 Gbit/s between them: each step asks once."""
    job = training("ripples", control_delay_s=0.001, local_rate=RATE)
    out = run("ripples", cluster(1, workers=2), job)
    assert out.seconds == pytest.approx(20 * (0.1 + 0.001 + 2 * seconds(1)), rel=1e-9)


def test_a_second_group_is_owed_before_computing_goes_on() -> None:
    """Without a buffer a request draws a group of its own, and others' have to be met first."""
    job = training("ripples-random", parameters=1000, spread=0.2)
    out = run("ripples-random", cluster(8), job)
    assert out.counters["groups_started"] == 8 * 20
    assert out.counters["conflicts"] > 0
    buffered = run("ripples", cluster(8), job, global_division=False)
    assert out.seconds > 1.2 * buffered.seconds


def test_draws_differ_between_workers_and_steps_and_have_their_mean() -> None:
    times = ComputeTimes(1e11, spread=0.3, seed=7)
    drawn = {(rank, step): times.time(rank, step, 0) for rank in range(8) for step in range(600)}
    assert len(set(drawn.values())) == len(drawn)
    assert sum(drawn.values()) / len(drawn) == pytest.approx(1e11, rel=0.02)
    again = ComputeTimes(1e11, spread=0.3, seed=7)
    assert again.time(5, 599, 0) == drawn[5, 599]
    assert ComputeTimes(1e11, spread=0.3, seed=8).time(5, 599, 0) != drawn[5, 599]


def test_the_generator_is_asked_by_everyone() -> None:
    out = run("ripples", cluster(4, workers=4), training("ripples", spread=0.1))
    assert out.counters["requests"] == 16 * 20
    assert (
        sum(v for k, v in out.counters.items() if k.startswith("group_size."))
        == (out.counters["groups_started"])
    )


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("riples", {}, "Did you mean 'ripples'"),
        ("ripples", {"size": 3}, "'ripples' has no option 'size'; its options: interval"),
        ("local-sgd", {"interval": 0}, "interval between synchronizations must be .* at least 1"),
        (
            "local-sgd",
            {"overlap": "backward"},
            "overlap is one of none, next-forward, layers, next-",
        ),
        ("ripples", {"overlap": "layers"}, "'layers' is for averages by a schedule"),
        ("all-reduce", {"overlap": "none"}, "overlap is one of backward, next-forward, not"),
        ("ps-asp", {"overlap": "next-forward"}, 'simulated with overlap = "none".* take ps-layers'),
        ("ps-bsp", {"servers": 1}, "The option 'servers' of ps-bsp is not simulated"),
        ("ps-bsp", {"overlap": "next-steps"}, "overlap is one of none, next-forward, layers for"),
        ("ds-sync", {"shuffle": "nothing"}, "DS-Sync shuffles by grid, random, topology"),
        ("all-reduce", {"algorithm": "tree"}, "An all-reduce is one of direct, ring, hierarchical"),
        ("all-reduce", {"algorithm": "hierarchical", "per_host": 3}, "do not make whole hosts of"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    name: str, options: dict[str, object], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        run(name, cluster(4), training(name), **options)
