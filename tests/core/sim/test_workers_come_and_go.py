"""Workers that die, stand still and come in virtual time: who counts, who goes on, at what cost."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from struck_jobs import (
    ANSWER_S,
    RATE,
    STEP_S,
    STEPS,
    Told,
    cluster,
    come,
    freeze,
    kill,
    run,
    told,
    training,
)

from shoal.control.terms import HEARTBEATS_PER_TIMEOUT, Terms, usual_liveness_timeout_s
from shoal.errors import UsageError
from shoal.scenario.training_spec import StrategySpec
from shoal.sim.network import TCP_HEADERS
from shoal.sim.training.simulation import simulate
from thoroughness import examples, seldom

if TYPE_CHECKING:
    from shoal.scenario.cluster_spec import ClusterSpec, WorkerEvent
    from shoal.scenario.training_spec import TrainingSpec
    from shoal.sim.training.outcome import Outcome

GOING_ON: list[tuple[str, dict[str, Any]]] = [
    ("all-reduce", {}),
    ("local-sgd", {"interval": 3}),
    ("local-sgd", {"interval": 2, "overlap": "next-steps"}),
    ("local-sgd", {"interval": 2, "overlap": "next-forward"}),
    ("ds-sync", {}),
    ("ds-sync", {"shuffle": "random"}),
    ("ds-sync", {"overlap": "next-steps"}),
    ("ripples", {}),
    ("ripples", {"overlap": "next-steps"}),
    ("ripples", {"overlap": "next-forward"}),
    ("ripples-random", {}),
    ("ripples-static", {}),
    ("ripples-static", {"overlap": "next-forward"}),
    ("hierarchical-sgd", {}),
    ("ps-bsp", {}),
    ("ps-ssp", {"staleness": 2}),
    ("ps-asp", {}),
    ("ad-psgd", {}),
]
OFTEN = [GOING_ON[place] for place in (0, 3, 4, 6, 7, 11, 14, 16, 17)]
"""One of each way to meet, and two whose exchanges hide; `test_random_histories` draws from all."""
NAMES = [name if not options else f"{name} {options}" for name, options in GOING_ON]


def silence_s(job: TrainingSpec) -> float:
    return usual_liveness_timeout_s(job.deadline_s, is_fixed=False)


# Kills.


@pytest.mark.parametrize(("name", "options"), seldom(GOING_ON, often=OFTEN), ids=NAMES)
def test_the_others_make_all_their_steps_without_the_dead(
    name: str, options: dict[str, Any]
) -> None:
    learner, out = told(name, cluster(4, kill(1.05, 2)), **options)
    assert [made for rank, made in enumerate(out.steps_by_rank) if rank != 2] == [STEPS] * 3
    assert 0 < out.steps_by_rank[2] < 11
    assert learner.members == [(0, 1, 3)]
    last = learner.updates.pop(2) - out.steps_by_rank[2]
    assert last in (0, 1)  # it may have died between its update and the end of its step
    assert learner.updates == dict.fromkeys((0, 1, 3), STEPS)
    assert any(2 in each for each in learner.sums + learner.means + learner.pushes)
    (event,) = out.events
    assert event.fired_s == 1.05
    # a closed connection is known a way later, and proposed, reported and decided on in three more
    assert event.view_s == pytest.approx(2 * ANSWER_S)


def test_a_sum_that_a_death_interrupts_is_made_again_from_the_same_gradients() -> None:
    """The sum of step 0 is under way from 0.1 s on, and takes 50 ms."""
    learner, out = told("all-reduce", cluster(4, kill(0.12, 3)))
    assert out.counters["repeated_sums"] == 1
    assert out.steps_by_rank == (STEPS, STEPS, STEPS, 0)
    assert learner.sums == [(0, 1, 2)] * STEPS
    assert learner.gradients == {0: STEPS, 1: STEPS, 2: STEPS, 3: 1}  # none is computed twice
    # the first sum anew, from when the view is decided on; what was under way takes no room
    sum_s = 2 * 2 / 3 * 4e6 * TCP_HEADERS * 8 / RATE + 4 * 20e-6
    first_s = 0.12 + 2 * ANSWER_S + sum_s
    assert out.seconds == pytest.approx(first_s + (STEPS - 1) * (STEP_S + sum_s), rel=1e-6)


def test_a_death_in_computing_costs_no_sum() -> None:
    _, out = told("all-reduce", cluster(4, kill(0.05, 3)))
    assert "repeated_sums" not in out.counters
    (event,) = out.events
    assert event.step_s is not None
    assert event.step_s < 0.1  # the others' step goes on as if that one had never been there


def test_a_mean_that_a_death_interrupts_is_dropped() -> None:
    learner, out = told("local-sgd", cluster(4, kill(0.32, 3)), interval=3)
    assert out.counters["dropped_means"] == 1
    assert learner.means[0] == (0, 1, 2)
    assert learner.updates == {0: STEPS, 1: STEPS, 2: STEPS, 3: 3}


def test_one_after_the_other_dies_until_one_is_left() -> None:
    events = [kill(0.3 + each / 7, each) for each in range(5)]
    for name in (
        *("all-reduce", "ds-sync", "ripples", "ripples-static", "local-sgd"),
        *("ps-bsp", "ps-ssp", "ps-asp", "ad-psgd"),
    ):
        out = run(name, cluster(6, *events))
        assert out.steps_by_rank[5] == STEPS
        assert all(each.fired_s is not None for each in out.events)
        assert out.counters["views"] == 5


def test_fewer_are_left_than_a_group_is_to_have() -> None:
    for name, options in (
        ("ripples", {"group_size": 4}),
        ("ripples-random", {"group_size": 4}),
        ("ds-sync", {"shuffle": "random", "group_size": 4}),
    ):
        out = run(name, cluster(4, kill(1.05, 2), kill(1.5, 1)), **options)
        assert (out.steps_by_rank[0], out.steps_by_rank[3]) == (STEPS, STEPS)
        assert len(out.events) == out.counters["views"] == 2


def test_too_few_are_left() -> None:
    job = training(min_workers=3)
    where = cluster(4, kill(1.0, 3), kill(1.5, 2))
    with pytest.raises(UsageError, match=r"job ends after 1\.50\d* s of virtual time: Rank 2 "):
        run("ripples", where, job)
    assert run("ripples", cluster(4, kill(1.0, 3)), job).steps_by_rank[0] == STEPS


# Freezes.


@pytest.mark.parametrize(("name", "options"), seldom(GOING_ON, often=OFTEN), ids=NAMES)
def test_who_only_pauses_is_no_loss(name: str, options: dict[str, Any]) -> None:
    plain = run(name, cluster(4), **options)
    out = run(name, cluster(4, freeze(1.05, 1, 3.0)), **options)
    assert out.steps_by_rank == (STEPS,) * 4
    assert "views" not in out.counters
    longer_s = out.seconds - plain.seconds
    assert 2.7 < longer_s < 3.2  # those who can hide it meet the frozen one at the end, if ever


def test_a_pause_in_computing_and_one_in_a_sum_cost_what_they_last() -> None:
    plain = run("all-reduce", cluster(4))
    for at_s in (0.05, 0.12):
        out = run("all-reduce", cluster(4, freeze(at_s, 1, 2.0)))
        assert out.seconds == pytest.approx(plain.seconds + 2.0)


@pytest.mark.parametrize(("name", "options"), seldom(GOING_ON, often=OFTEN), ids=NAMES)
def test_who_stands_still_for_long_is_out_and_comes_again(
    name: str, options: dict[str, Any]
) -> None:
    job = training(deadline_s=2.0)
    out = run(name, cluster(4, freeze(1.05, 1, 1.9)), job, **options)
    (event,) = out.events
    timeout_s = silence_s(job)
    assert timeout_s == 1.0
    tick_s = Terms(4, round(timeout_s * 1e9), 1).tick_ms / 1e3
    assert event.view_s is not None
    # since the last heartbeat before; looked at once a tick, then reported and decided on
    assert timeout_s - timeout_s / HEARTBEATS_PER_TIMEOUT <= event.view_s
    assert event.view_s <= timeout_s + tick_s + 2 * ANSWER_S
    assert out.counters["views"] == 2  # without it, and with it again
    assert out.counters["handed_on_bytes"] == 4e6
    assert [made for rank, made in enumerate(out.steps_by_rank) if rank != 1] == [STEPS] * 3
    assert 10 < out.steps_by_rank[1] < STEPS


def test_the_usual_silence_is_the_runtimes() -> None:
    out = run("ripples", cluster(4, freeze(1.0, 0, 60.0)), training(steps=100))
    (event,) = out.events
    assert event.view_s == pytest.approx(4.0, abs=0.41)
    assert out.steps_by_rank[1:] == (100,) * 3


def test_most_of_the_workers_stand_still_and_the_job_ends() -> None:
    where = cluster(5, *(freeze(1.0, rank, 30.0) for rank in (1, 2, 3)))
    with pytest.raises(UsageError, match="3 of 5 workers cannot be reached"):
        run("local-sgd", where, training(steps=200))


# Newcomers.


@pytest.mark.parametrize(("name", "options"), seldom(GOING_ON, often=OFTEN), ids=NAMES)
def test_a_dead_workers_rank_comes_back(name: str, options: dict[str, Any]) -> None:
    learner, out = told(name, cluster(4, kill(0.55, 2), come(1.55, 2)), **options)
    assert [made for rank, made in enumerate(out.steps_by_rank) if rank != 2] == [STEPS] * 3
    assert 20 < out.steps_by_rank[2] < STEPS
    assert learner.handed_on[-1][1] == 2
    assert learner.members == [(0, 1, 3), (0, 1, 3), (0, 1, 2, 3)]
    joined = out.events[1]
    assert joined.step_s is not None
    transfer_s = 4e6 * TCP_HEADERS * 8 / RATE
    # the donor comes to a border within a step; then the state, and a step with what it waits for
    assert STEP_S + transfer_s < joined.step_s < 5 * STEP_S + transfer_s
    assert out.counters["handed_on_bytes"] == 4e6


def test_a_newcomer_of_a_new_rank_and_the_sums_that_wait_for_it() -> None:
    learner, out = told("all-reduce", cluster(2, come(0.55, 2, host=1)))
    sizes = [len(each) for each in learner.sums]
    assert sizes == sorted(sizes)
    assert set(sizes) == {2, 3}
    assert len(sizes) == STEPS
    assert out.steps_by_rank == (STEPS, STEPS, sizes.count(3))
    assert out.workers == 2


def test_the_next_one_hands_its_state_on_if_the_first_dies() -> None:
    """The donor is rank 0, from its next border on, and sends for 32 ms or so."""
    donors = []
    for at_s in (0.52, 0.56, 0.6, 0.64, 0.68, 0.72):
        learner, out = told("all-reduce", cluster(4, kill(0.3, 3), come(0.5, 3), kill(at_s, 0)))
        donors.append([donor for donor, taker in learner.handed_on if taker == 3])
        assert out.steps_by_rank[1:3] == (STEPS, STEPS)
        assert out.steps_by_rank[3] > 20
    assert [1] in donors  # the first one died before it began,
    assert [0, 1] in donors  # while it sent,
    assert [0] in donors  # and when it was through


def test_nobody_comes_in_when_others_have_ended() -> None:
    out = run("ripples", cluster(3, kill(1.0, 2), come(STEPS * STEP_S * 1.4, 2)))
    late = out.events[1]
    assert late.fired_s is None or "ending" in late.remark


# Events.


def test_an_event_after_the_end_is_said_not_to_have_happened() -> None:
    out = run("all-reduce", cluster(3, kill(1.0, 2), kill(1_000.0, 1)))
    assert [each.fired_s for each in out.events] == [1.0, None]
    assert [each.remark for each in out.events] == ["", "all steps were made before it"]
    assert out.steps_by_rank[:2] == (STEPS, STEPS)


@pytest.mark.parametrize(("name", "options"), seldom(GOING_ON, often=GOING_ON[::5]))
def test_the_same_seed_comes_to_the_same_and_events_change_nothing_before_them(
    name: str, options: dict[str, Any]
) -> None:
    events = (kill(0.7, 2), freeze(1.1, 1, 0.5), come(1.4, 2))
    job = training(spread=0.2)
    first, second = (run(name, cluster(4, *events), job, **options) for _ in range(2))
    assert first == second
    plain = run(name, cluster(4), job, **options)
    early = [each for each in plain.milestones_s if each < 0.7]
    assert first.milestones_s[: len(early)] == pytest.approx(early)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("ps-bsp", {"overlap": "next-forward"}, "is simulated with overlap"),
        ("ps-layers", {}, "needs all workers to the end"),
        ("all-reduce", {"overlap": "next-forward"}, "make a sum again"),
        ("all-reduce", {"algorithm": "hierarchical"}, "hierarchical"),
        ("ds-sync", {"shuffle": "topology"}, "shuffle='topology'"),
    ],
)
def test_what_needs_all_workers_says_so(name: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        run(name, cluster(4, kill(1.0, 1)), **options)


def test_there_is_no_closed_form() -> None:
    strategy = StrategySpec("local-sgd", level="closed-form")
    with pytest.raises(UsageError, match=r"closed form of workers that come and go"):
        simulate(cluster(4, kill(1.0, 1)), training(), strategy)


@pytest.mark.parametrize(
    ("transport", "name"),
    seldom(
        itertools.product(
            ("shoal", "cubic"), ("all-reduce", "ds-sync", "ripples", "ps-asp", "ad-psgd")
        ),
        often=[
            *(("shoal", name) for name in ("all-reduce", "ripples", "ps-asp")),
            ("cubic", "all-reduce"),
            ("cubic", "ad-psgd"),
        ],
    ),
)
def test_packets_and_calibrated_flows(transport: str, name: str) -> None:
    events = (kill(0.22, 2), freeze(0.5, 1, 0.3), come(0.9, 2))
    job = training(transport=transport, steps=16, parameters=100_000)
    for level in ("packets", "flows"):
        out = simulate(cluster(4, *events), replace(job, level=level), StrategySpec(name))
        assert (out.steps_by_rank[0], out.steps_by_rank[1], out.steps_by_rank[3]) == (16,) * 3
        assert out.counters["views"] == 2


# Histories.


def history(draw: random.Random, size: int) -> tuple[WorkerEvent, ...]:
    """Return a few events, each possible after those before it."""
    now, there, known, events = 0.0, set(range(size)), size, []
    for _ in range(draw.randrange(1, 7)):
        now += draw.random() * 1.2
        gone = sorted(set(range(known)) - there)
        match draw.choice(("kill", "freeze", "back", "new")):
            case "kill" if len(there) > 1:
                events.append(kill(now, draw.choice(sorted(there))))
                there.discard(events[-1].rank)
            case "freeze":
                lasts_s = draw.choice((0.3, 1.0, 3.0, 6.0))
                events.append(freeze(now, draw.choice(sorted(there)), lasts_s))
            case "back" if gone:
                events.append(come(now, draw.choice(gone)))
                there.add(events[-1].rank)
            case "new":
                events.append(come(now, known, known % size))
                there.add(known)
                known += 1
    return tuple(events)


def check(name: str, learner: Told, out: Outcome, deaths: Counter[int]) -> None:
    """Raise `AssertionError` for steps that nobody made, or that count where they must not."""
    assert out.steps == sum(out.steps_by_rank)
    assert len(out.milestones_s) >= 1
    assert all(then <= now for then, now in pairwise(out.milestones_s))
    if name.startswith("ps-"):
        check_served(name, learner, out, deaths)
        return
    if name != "all-reduce":
        for rank, made in enumerate(out.steps_by_rank):  # one may die after its update
            assert 0 <= learner.updates[rank] - made <= deaths[rank]
        return
    # every sum counts one step of each member, and of nobody else; there is one of each number
    assert max(out.steps_by_rank) <= STEPS  # others may go on from a model that is behind theirs
    assert len(learner.sums) == STEPS
    made = Counter(rank for each in learner.sums for rank in each)
    assert {rank: n for rank, n in enumerate(out.steps_by_rank) if n} == made
    assert all(learner.gradients[rank] >= made[rank] for rank in made)


def check_served(name: str, learner: Told, out: Outcome, deaths: Counter[int]) -> None:
    """Raise `AssertionError` for a gradient that is in weights twice, or lost under BSP."""
    came = Counter(taker for _, taker in learner.handed_on)
    holders, parts = (set(each) for each in zip(*learner.models, strict=True))
    members = learner.members[-1] if learner.members else holders
    for number in parts:
        models = [learner.models.get((rank, number), ()) for rank in members]
        longest = max(models, key=len)
        for weights in models:
            found = [each for update in weights for each in update]
            assert len(set(found)) == len(found), "no gradient counts twice"
        if name != "ps-bsp":
            continue
        assert len(longest) == STEPS, "there is one update of each number"
        assert all(longest[: len(weights)] == weights for weights in models), "all have the same"
        counted = Counter(rank for update in longest for rank, _ in update)
        for rank, made in enumerate(out.steps_by_rank):
            # one may die after its push, or when it has pulled what nobody else has; and one may
            # come where an update is made already
            assert -came[rank] - deaths[rank] <= counted[rank] - made <= deaths[rank]


def outcome_of(
    where: ClusterSpec, job: TrainingSpec, strategy: StrategySpec, learner: Told
) -> Outcome | None:
    """Return what comes of a job, None if it ends before its time."""
    try:
        return simulate(where, job, strategy, learner=learner)
    except UsageError as error:
        if "The job ends after" not in str(error):
            raise
        return None


@pytest.mark.timeout(900)
def test_random_histories() -> None:
    """Nobody who could go on waits for ever, as the simulator finds; and what counts is right."""
    ended, went_on = 0, Counter[str]()
    first = 18  # from there on it takes the fewest until each of `COUNTED` has happened
    for seed in range(first, first + examples(1_000, share=27)):
        draw = random.Random(seed)
        name, options = GOING_ON[seed % len(GOING_ON)]
        size = draw.choice((2, 3, 4, 6))
        where = cluster(size, *history(draw, size), seed=seed)
        job = training(
            spread=draw.choice((0.0, 0.2)),
            layers=draw.choice((1, 4)),
            deadline_s=draw.choice((60.0, 2.0)),
            parameters=draw.choice((1_000, 1_000_000)),
        )
        learner = Told()
        out = outcome_of(where, job, StrategySpec(name, options), learner)
        if out is None:
            ended += 1
            continue
        check(name, learner, out, Counter(e.rank for e in where.worker_events if e.what != "join"))
        went_on.update(["runs"])
        went_on.update({k: int(n) for k, n in out.counters.items() if k in COUNTED})
    assert went_on["runs"] > 10 * ended
    assert all(went_on[each] for each in COUNTED)


COUNTED = (
    *("views", "repeated_sums", "dropped_means", "handed_on_bytes"),
    *("repeated_exchanges", "moved_bytes"),
)


# What is learnt.


def learnt(
    name: str, transport: str, *events: WorkerEvent, **options: object
) -> tuple[Any, Outcome]:
    pytest.importorskip("torch")
    from shoal.sim.training.replicas import Replicas
    from shoal.workloads import default_recipe, load_dataset

    where = cluster(3, *events)
    replicas = Replicas(
        load_dataset("digits"),
        "mlp",
        default_recipe("digits", "mlp"),
        3 + len(where.newcomers),
        newcomers=len(where.newcomers),
        seed=1,
        look_s=100.0,
        samples=50,
    )
    job = training(dataset="digits", model="mlp", transport=transport, steps=20)
    return replicas, simulate(where, job, StrategySpec(name, options), learner=replicas)


@pytest.mark.parametrize("transport", ["", "shoal"])
def test_all_reduce_leaves_all_who_live_with_one_model(transport: str) -> None:
    events = (kill(0.55, 1), come(1.0, 1), come(1.3, 3, host=2), freeze(1.5, 0, 0.2))
    replicas, out = learnt("all-reduce", transport, *events)
    rows = replicas._rows[:4]
    assert all((row == rows[0]).all() for row in rows)
    assert out.curve[-1].consensus_distance == 0.0
    states = [each.state_dict()["state"] for each in replicas._optimizers[:4]]
    for parameter, state in states[0].items():
        for name, value in state.items():
            assert all((each[parameter][name] == value).all() for each in states[1:])
    assert out.steps_by_rank[0] == 20
    assert 0 < out.steps_by_rank[3] < out.steps_by_rank[1] < 20


def test_what_a_dead_worker_had_is_trained_on_no_more() -> None:
    """Without a death both models are alike, with one they are not, and nor is the dead one's."""
    plain, _ = learnt("all-reduce", "")
    replicas, _ = learnt("all-reduce", "", kill(0.55, 1))
    assert not (replicas._rows[0] == plain._rows[0]).all()
    assert not (replicas._rows[1] == replicas._rows[0]).all()
    assert (replicas._rows[2] == replicas._rows[0]).all()


def test_an_average_of_all_brings_a_newcomer_level() -> None:
    replicas, out = learnt("local-sgd", "", kill(0.3, 2), come(0.7, 2), interval=2)
    assert out.curve[-1].consensus_distance < 1e-5
    assert out.steps_by_rank[2] < 20
    assert replicas._rows[2].isfinite().all()
