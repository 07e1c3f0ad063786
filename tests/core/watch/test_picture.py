"""What is kept of a job and how it is shown: bounds, forgetting, and times that add up."""

from __future__ import annotations

import math
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.watch import JobNow, Picture, Snapshot, StepTimes
from shoal.watch.picture import KEPT, LEAST_SAMPLES, LOOKED_AT, MOST_EVENTS, PATIENCE_S
from thoroughness import examples
from told import came_over, told

STEPS = st.lists(
    st.tuples(st.integers(1, 90_000), st.integers(0, 9000), st.integers(0, 90_000)), max_size=32
)


def now(size: int, **other: object) -> JobNow:
    members = tuple(range(size))
    fields = {
        "epoch": 0,
        "members": members,
        "hosts": members,
        "states": dict.fromkeys(members, "alive"),
    }
    return msgspec.convert({**fields, **other}, JobNow)


def filled(size: int, *, count: int = 6, own_ms: dict[int, float] | None = None) -> Picture:
    picture = Picture(0.0)
    for k in range(count):
        for rank in range(size):
            mine = (own_ms or {}).get(rank, 40.0)
            longest = max([40.0, *(own_ms or {}).values()])
            sample = told(mine, longest - mine + 8, step=20 * (k + 1), loss=1 / (k + 1))
            picture.take(rank, sample, float(k))
    return picture


def test_the_verdict_and_the_table_agree_on_who_waits_for_whom() -> None:
    shown = filled(4, own_ms={2: 72.0}).snapshot(now(4), 6.0, 1006.0)
    (verdict,) = shown.verdicts
    assert (verdict.kind, verdict.rank) == ("slow worker", 2)
    assert verdict.times == pytest.approx(1.8)
    assert verdict.cost_ms == pytest.approx(32)
    for worker in shown.workers:
        assert worker.own_ms is not None
        assert worker.wait_ms is not None
        assert worker.exchange_ms is not None
        assert worker.waits_for == (None if worker.rank == 2 else 2)
        assert worker.wait_ms == pytest.approx(0 if worker.rank == 2 else 32)
        assert worker.own_ms + worker.wait_ms + worker.exchange_ms == pytest.approx(80)


def test_who_is_slow_and_answers_late_is_named_once() -> None:
    picture = Picture(0.0)
    for k in range(6):
        for rank in range(4):
            links = tuple(
                came_over(peer, round_trip_ms=90.0 if 2 in (rank, peer) else 1.0)
                for peer in range(4)
                if peer != rank
            )
            own_ms = 72.0 if rank == 2 else 40.0
            picture.take(rank, told(own_ms, 80 - own_ms, links=links), float(k))
    assert [(v.kind, v.rank) for v in picture.verdicts(now(4), 6.0)] == [("slow worker", 2)]


def test_nothing_stands_out_says_where_the_time_goes() -> None:
    (verdict,) = filled(4).verdicts(now(4), 6.0)
    assert verdict.kind == "nothing"
    assert "48 ms, 40 ms of it for computing and 8 ms for others" in verdict.sentence


def test_little_is_said_of_little() -> None:
    for count in range(LEAST_SAMPLES):
        (verdict,) = filled(3, count=count, own_ms={0: 90.0}).verdicts(now(3), 3.0)
        assert verdict.kind == "nothing"
        assert "Too few samples" in verdict.sentence


def test_a_job_of_which_nobody_gets_on_is_stuck() -> None:
    picture = filled(4)
    (verdict,) = picture.verdicts(now(4), 5.0 + PATIENCE_S + 18)
    assert verdict.kind == "stuck"
    assert "for 23 s" in verdict.sentence
    assert picture.verdicts(now(4), 5.0 + PATIENCE_S - 1)[0].kind == "nothing"
    over = picture.verdicts(now(4, lost="Rank 1 gave up."), 60.0)
    assert over[0].sentence == "Rank 1 gave up."
    finished = now(4, states=dict.fromkeys(range(4), "finished"))
    assert picture.verdicts(finished, 60.0)[0].kind != "stuck"


def test_who_does_not_wait_in_a_job_that_is_stuck_is_named() -> None:
    picture = filled(4)
    for rank in range(4):
        picture.hear(rank, None if rank == 2 else 17_000)
    picture.hear(9, 5)  # it has told nothing yet
    (verdict,) = picture.verdicts(now(4), 25.0)
    assert verdict.rank == 2
    assert "Rank 2 is at work of its own, and the others wait, 17 s by now." in verdict.sentence
    picture.hear(2, 100)
    (verdict,) = picture.copy().verdicts(now(4), 25.0)
    assert verdict.rank is None
    assert "All wait in an exchange" in verdict.sentence


def test_steps_that_take_long_are_not_stuck() -> None:
    picture = Picture(0.0)
    for k in range(6):
        for rank in range(2):
            picture.take(rank, told(20_000.0, 500.0, steps=1), 21.0 * k)
    assert picture.verdicts(now(2), 5 * 21.0 + 60)[0].kind == "nothing"
    assert picture.verdicts(now(2), 5 * 21.0 + 120)[0].kind == "stuck"


def test_who_is_no_member_any_more_is_not_judged_but_shown() -> None:
    picture = filled(4, own_ms={3: 90.0})
    job = now(3, states={0: "alive", 1: "alive", 2: "alive", 3: "lost"})
    shown = picture.snapshot(job, 6.0, 6.0)
    assert shown.verdicts[0].kind == "nothing"
    assert [each.rank for each in shown.workers] == [0, 1, 2, 3]
    assert (shown.workers[3].state, shown.workers[3].own_ms) == ("lost", None)


def test_another_process_of_a_rank_begins_anew() -> None:
    picture = filled(2, own_ms={1: 90.0})
    picture.forget(1)
    assert picture.snapshot(now(2), 6.0, 6.0).workers[1].step is None
    picture.forget(1)


def test_a_new_training_is_not_judged_by_the_one_before() -> None:
    picture = filled(2, own_ms={1: 90.0})
    for rank in range(2):
        picture.take(rank, told(10.0, training="run-2", at_s=2000.0), 7.0)
    shown = picture.snapshot(now(2), 7.0, 7.0)
    assert shown.training == "run-2"
    assert "Too few" in shown.verdicts[0].sentence
    assert shown.curve == ()


def test_groups_formed_at_run_time_name_who_asks_for_few() -> None:
    picture = Picture(0.0)
    for k in range(6):
        for rank in range(4):
            sample = told(40.0, 5.0, is_lock_step=False, strategy="ripples", step=20 * k)
            picture.take(rank, sample, float(k))
    job = now(4, requests={0: 100, 1: 40, 2: 101, 3: 99})
    (verdict,) = picture.verdicts(job, 6.0)
    assert (verdict.kind, verdict.rank) == ("slow worker", 1)
    assert "asked for 40 groups, the others for 100" in verdict.sentence


def test_dates_are_those_of_whoever_looks() -> None:
    picture = filled(1)
    picture.note("lost", "Rank 5 is gone.", 3.0)
    shown = picture.snapshot(now(1), 6.0, 1_000_006.0)
    assert shown.at_s == 1_000_006.0
    assert shown.events[0].at_s == 1_000_003.0
    assert [point.at_s for point in shown.curve] == [1_000_000.0 + k for k in range(6)]
    assert [point.loss for point in shown.curve] == [1 / (k + 1) for k in range(6)]


def test_a_loss_that_is_no_number_is_shown_and_not_drawn() -> None:
    picture = Picture(0.0)
    picture.take(0, told(1.0, loss=math.nan), 0.0)
    shown = picture.snapshot(now(1), 1.0, 1.0)
    assert shown.curve == ()
    assert msgspec.json.decode(msgspec.json.encode(shown), type=Snapshot).workers[0].loss is None


@given(
    STEPS,
    STEPS,
    st.integers(0, 5),
)
def test_what_is_shown_of_a_step_adds_up_to_it(
    mine: list[tuple[int, int, int]], theirs: list[tuple[int, int, int]], behind: int
) -> None:
    picture = Picture(0.0)
    for rank, steps in enumerate((mine, theirs)):
        recent = tuple(StepTimes(*each) for each in steps)
        picture.take(rank, told(1.0 + 9 * rank, recent=recent, step=100 - behind * rank), 0.0)
    for worker, steps in zip(
        picture.snapshot(now(2), 1.0, 1.0).workers, (mine, theirs), strict=True
    ):
        assert len(worker.last_steps) == len(steps)
        for shown, told_us in zip(worker.last_steps, steps, strict=True):
            parts = shown.own_ms, shown.wait_ms, shown.exchange_ms
            assert min(parts) >= 0
            assert sum(parts) == pytest.approx(sum(told_us) / 1000)
            assert shown.own_ms == told_us[0] / 1000


@settings(max_examples=examples(60))
@given(st.integers(0, 1 << 30))
def test_whatever_comes_a_picture_is_bounded_and_can_be_shown(seed: int) -> None:
    random = Random(seed)
    picture, size = Picture(0.0), random.randint(1, 6)
    for k in range(random.randint(0, 400)):
        rank = random.randrange(size + 2)
        links = tuple(came_over(p, lost=random.random()) for p in range(random.randrange(5)))
        recent = tuple(StepTimes(random.randrange(999), 0, 5) for _ in range(random.randrange(9)))
        sample = told(
            random.choice([0.0, 1e-9, 40.0, 1e6]),
            random.choice([0.0, 5.0]),
            steps=random.choice([1, 50]),
            training=random.choice(["run-1", "run-2"]),
            loss=random.choice([None, 1.0, math.inf, math.nan, -1e300]),
            at_s=random.choice([0.0, 1e9, float(k)]),
            is_lock_step=random.random() < 0.5,
            links=links,
            recent=recent,
        )
        picture.take(rank, sample, k / 10)
        if random.random() < 0.3:
            picture.note("view", f"{k}", k / 10)
        if random.random() < 0.02:
            picture.forget(rank)
    shown = picture.snapshot(now(size), 50.0, 50.0)
    assert msgspec.json.decode(msgspec.json.encode(shown), type=Snapshot)
    assert shown.verdicts
    assert all(verdict.sentence.endswith(".") for verdict in shown.verdicts)
    assert len(shown.events) <= MOST_EVENTS
    assert len(shown.curve) <= KEPT * size
    assert all(len(known.whole) <= LOOKED_AT for known in picture._known.values())
