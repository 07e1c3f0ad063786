"""Courses alone: what each wants, by slow rules written down here, and how it takes changes."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.groups import Bipartite, UpdateRule, make_schedule
from shoal.membership import View
from shoal.strategies import STRATEGIES, AbstractCourse, Pairs, Setting, make_strategy
from shoal.strategies.acts import (
    CHANGED,
    UPDATE,
    Act,
    Acts,
    Adopt,
    Anchor,
    AnswerPairs,
    AskGroup,
    Await,
    AwaitGoodbyes,
    Begin,
    Exchange,
    Goodbye,
    Group,
    JoinGroups,
    LeaveGroups,
    Mean,
    OuterStep,
    Pair,
    Pulled,
    SumGradients,
    Summed,
    TakeIn,
    Tell,
    Update,
)
from shoal.strategies.shard import Add, Answer, Apply, Shard
from thoroughness import examples

Answers = Callable[[Act], Any]


def usual(act: Act) -> Any:
    """Answer as a job would in which everybody else has finished."""
    match act:
        case AskGroup():
            return Group((0, 1), act.position, more=False)
        case SumGradients():
            return None if act.trains else Summed(0)
        case Exchange():
            return Pulled(0, 0)
        case Await():
            return False
    return None


def drawn(acts: Acts, answers: Answers = usual) -> list[Any]:
    """Return the acts, each answered; in place of a `Begin`, what it begins."""
    found: list[Any] = []
    answer = None
    while True:
        try:
            act = acts.send(answer)
        except StopIteration:
            return found
        if isinstance(act, Begin):
            found.append(("beside", drawn(act.acts, answers)))
            answer = None
        else:
            found.append(act)
            answer = answers(act)


def course(
    name: str, rank: int = 0, workers: int = 4, per_host: int = 2, **options: Any
) -> AbstractCourse:
    setting = Setting(View.first(workers, per_host), seed=3)
    return make_strategy(name, options).courses(setting)(rank)


# ---- every strategy ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STRATEGIES)
def test_state_is_the_checkpoint(name: str) -> None:
    """A course made anew goes on from a saved state as the one that was saved."""
    for made in (0, 1, 5):
        first, second = course(name, rank=1), course(name, rank=1)
        for _ in range(made):
            drawn(first.step())
        second.load_state_dict(first.state_dict())
        later = [_continued(drawn(c.step())) for c in (first, second)]
        assert later[0] == later[1]


def _continued(acts: list[Any]) -> list[Any]:
    """Return what a checkpoint goes on with: not what is under way or told, nor names of means."""
    found = []
    for act in acts:
        if isinstance(act, tuple):
            found.append(("beside", _continued(act[1])))
        elif isinstance(act, Mean):
            found.append((act.members, act.number[1], act.weights))
        elif isinstance(act, Exchange | SumGradients):
            found.append(type(act))
        elif not isinstance(act, TakeIn | Tell):
            found.append(act)
    return found


def test_means_after_a_load_are_not_taken_for_earlier_ones() -> None:
    it = course("local-sgd", interval=1)
    names = set()
    for _ in range(3):
        names |= {act.number for act in drawn(it.step()) if isinstance(act, Mean)}
        it.load_state_dict({"position": 0})
    assert len(names) == 3


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_course_may_be_drawn_ahead_of_its_update(name: str) -> None:
    """Nothing depends on an answer to `Update`, and state changes when a step has ended."""
    it = course(name, rank=1)
    drawn(it.step())
    before = it.state_dict()
    acts = it.step()
    act = next(acts)
    if act is UPDATE:
        assert it.state_dict() == before
    acts.close()
    assert it.state_dict() == before


@pytest.mark.parametrize("name", STRATEGIES)
def test_one_worker_trains_alone(name: str) -> None:
    it = course(name, workers=1, per_host=1)
    acts = drawn(it.begin())
    for _ in range(9):
        acts += drawn(it.step(), _alone)
    acts += drawn(it.finish(), _alone)
    assert all(len(act.members) == 1 for act in acts if isinstance(act, Mean))
    assert not any(isinstance(act, Pair | Await | Adopt | AwaitGoodbyes) for act in acts)


def _alone(act: Act) -> Any:
    return Group((0,), act.position, more=False) if isinstance(act, AskGroup) else usual(act)


# ---- by schedule ---------------------------------------------------------------------------------


def slow_schedule(rank: int, workers: int, interval: int, steps: int, delayed: bool) -> list[Any]:
    """Return the acts of DS-Sync's grid, step by step from its definition."""
    schedule, acts = make_schedule("ds-sync", workers), list[Any]()
    for step in range(1, steps + 1):
        is_due = step % interval == 0
        acts.append(Update())
        if delayed:
            acts.append(TakeIn(is_due))
        if is_due:
            number = step // interval - 1
            if number % 8 == 0:
                acts.append(Tell(f"block/{number // 8}"))
            group = schedule.group_of(rank, number)
            mean = Mean(group.members, (0, number), f"round {number} of ds-sync", group.weights)
            acts.append(("beside", [mean]) if delayed and len(group) > 1 else mean)
    return acts


@given(
    st.integers(2, 9), st.integers(1, 4), st.integers(0, 40), st.booleans(), st.integers(0, 1 << 16)
)
@settings(max_examples=examples(200))
def test_a_schedule_is_carried_out_round_by_round(
    workers: int, interval: int, steps: int, delayed: bool, seed: int
) -> None:
    rank = seed % workers
    overlap = "next-steps" if delayed else "none"
    it = course("ds-sync", rank, workers, interval=interval, overlap=overlap)
    acts = [act for _ in range(steps) for act in drawn(it.step())]
    assert acts == slow_schedule(rank, workers, interval, steps, delayed)


def test_a_worker_that_ends_early_averages_on_while_somebody_trains() -> None:
    it = course("local-sgd", interval=1)
    for _ in range(5):
        drawn(it.step())
    trained = iter((True, True, False))  # in the blocks from round 8 and from 16, not from 24
    acts = drawn(it.finish(), lambda act: next(trained) if isinstance(act, Await) else None)
    assert acts[0] == Tell("finished")
    assert [act.number[1] for act in acts if isinstance(act, Mean)] == list(range(5, 24))
    assert [act for act in acts if isinstance(act, Await)] == [
        Await(f"block/{block}", "finished") for block in (1, 2, 3)
    ]


def test_what_hides_behind_computing_does_so_in_the_farewell_too() -> None:
    """The others may round their copies; who has finished must average the same."""
    it = course("local-sgd", interval=1, overlap="next-steps")
    for _ in range(7):
        drawn(it.step())
    acts = drawn(it.finish())
    mean = Mean((0, 1, 2, 3), (0, 7), "round 7 of all-reduce")
    assert acts == [
        TakeIn(True),
        Tell("finished"),
        ("beside", [mean]),
        TakeIn(True),
        Await("block/1", "finished"),
    ]


def test_a_change_of_the_view_is_taken_up_at_the_agreed_round() -> None:
    it = course("ds-sync", rank=3, workers=4)
    drawn(it.step())
    assert it.report() == 1
    it.on_view(View(1, (0, 1, 3), (0, 0, 1), from_step=2))
    (mean,) = [act for act in drawn(it.step()) if isinstance(act, Mean)]
    place, number, ranks = 2, 2, (0, 1, 3)
    group = make_schedule("ds-sync", 3).group_of(place, number)
    assert mean.members == tuple(ranks[each] for each in group.members)
    assert mean.number == (1, number)
    assert it.report() == 3


def test_a_mean_that_was_begun_in_an_old_view_is_left_out() -> None:
    it = course("local-sgd", interval=1, overlap="next-steps")
    acts = [act for act in it.step() if isinstance(act, Begin)]
    it.on_view(View(1, (0, 1, 3), (0, 0, 1), from_step=1))
    assert drawn(acts[0].acts) == []


def test_a_farewell_asks_again_when_the_view_changes() -> None:
    it = course("local-sgd", interval=1)
    answers = iter((CHANGED, CHANGED, False))
    acts = drawn(it.finish(), lambda act: next(answers) if isinstance(act, Await) else None)
    assert len([act for act in acts if isinstance(act, Await)]) == 3


# ---- by a generator ------------------------------------------------------------------------------


def test_groups_are_asked_for_until_none_is_owed() -> None:
    it = course("ripples", interval=2)
    assert drawn(it.begin()) == [JoinGroups(make_strategy("ripples").config)]  # type: ignore[attr-defined]
    assert drawn(it.step()) == [UPDATE]
    groups = iter([Group((0, 1), 7, True), Group((0,), 8, True), Group((0, 1, 2), 9, False)])
    acts = drawn(it.step(), lambda act: next(groups) if isinstance(act, AskGroup) else None)
    assert acts == [
        UPDATE,
        AskGroup(2),
        Mean((0, 1), (0, 7)),
        AskGroup(2),
        Mean((0,), (0, 8)),
        AskGroup(2),
        Mean((0, 1, 2), (0, 9)),
    ]
    assert drawn(it.finish()) == [LeaveGroups()]


def test_who_asks_while_the_view_changes_asks_again_at_the_next_point() -> None:
    it = course("ripples")
    acts = drawn(it.step(), lambda act: CHANGED if isinstance(act, AskGroup) else None)
    assert acts == [UPDATE, AskGroup(1)]
    assert drawn(it.step())[:2] == [UPDATE, AskGroup(2)]


# ---- pairs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("peers", ["random", "exponential"])
@pytest.mark.parametrize("workers", [2, 3, 8])
def test_active_workers_meet_whom_the_rule_says(peers: Any, workers: int) -> None:
    it, pairs, random = (
        course("ad-psgd", 1, workers, peers=peers),
        Bipartite(workers, peers),
        Random("ad-psgd 3 1"),
    )
    assert drawn(it.begin()) == []
    for step in range(12):
        pair = ("beside", [Pair(pairs.active_peer(1, step, random))])
        assert drawn(it.step()) == [*([TakeIn(True)] if step else []), UPDATE, pair]
    assert drawn(it.finish()) == [TakeIn(True), Goodbye(tuple(range(0, workers, 2)))]


def test_passive_workers_answer_until_all_have_said_goodbye() -> None:
    it = course("ad-psgd", 2, 5)
    assert drawn(it.begin()) == [AnswerPairs((1, 3))]
    assert drawn(it.step()) == [UPDATE]
    answers = iter((CHANGED, None))
    assert drawn(it.finish(), lambda _: next(answers)) == [AwaitGoodbyes()] * 2


def test_a_role_is_that_of_the_place_in_the_view() -> None:
    it = course("ad-psgd", 3, 4)
    drawn(it.step())
    it.on_view(View(1, (0, 2, 3), (0, 0, 0)))  # place 2: passive from now on
    assert drawn(it.step()) == [UPDATE, AnswerPairs((2,))]
    assert drawn(it.step()) == [UPDATE]
    it.on_view(View(2, (2, 3), (0, 0)))
    assert drawn(it.step()) == [UPDATE, ("beside", [Pair(2)])]


def test_a_worker_that_ends_does_not_wait_for_goodbyes_of_a_view_that_is_over() -> None:
    """It had not begun to answer in its new role when the view changed again, without it."""
    it = course("ad-psgd", 2, 4)
    assert isinstance(it, Pairs)
    drawn(it.step())
    it.on_view(View(1, (0, 2, 3), (0, 0, 0)))
    it.on_view(View(2, (2, 3), (0, 0)))

    def changed(act: Act) -> Any:
        assert isinstance(act, AnswerPairs)
        it.pair(View(3, (2, 3), (0, 0)), (3,))
        return CHANGED

    assert drawn(it.finish(), changed) == [AnswerPairs((3,))]


# ---- sums ----------------------------------------------------------------------------------------


def test_a_sum_that_did_not_happen_is_made_again_before_the_update() -> None:
    it = course("all-reduce")
    answers = iter((CHANGED, CHANGED, None, None))
    assert drawn(it.step(), lambda _: next(answers)) == [SumGradients(0)] * 3 + [UPDATE]
    assert it.report() == 1


def test_others_sums_are_kept_whole_until_nobody_trains() -> None:
    it = course("all-reduce")
    drawn(it.step())
    answers = iter((Summed(2), CHANGED, Summed(1), Summed(0), CHANGED, None))
    assert drawn(it.finish(), lambda _: next(answers)) == [
        SumGradients(1, trains=False),
        SumGradients(2, trains=False),
        SumGradients(2, trains=False),
        SumGradients(3, trains=False),
        Adopt(1),
        Adopt(1),
    ]


# ---- servers -------------------------------------------------------------------------------------


def test_exchanges_are_pushes_skips_and_a_farewell() -> None:
    it = course("ps-bsp")
    answers = iter((Pulled(0, 0), CHANGED, Pulled(0, 0), Pulled(0, 0)))
    acts = drawn(it.step(), lambda _: next(answers))
    acts += drawn(it.step(skipped=True), lambda _: next(answers))
    acts += drawn(it.finish(), lambda _: next(answers))
    assert acts == [
        Exchange("push", 0),
        Exchange("skip", 1),
        Exchange("skip", 1),
        Exchange("leave", 2),
    ]


@given(
    st.integers(1, 5),
    st.sampled_from([UpdateRule(0), UpdateRule(2), UpdateRule(None, scale_updates=False)]),
    st.integers(0, 1 << 32),
)
@settings(max_examples=examples(200))
def test_a_shard_counts_every_push_once(workers: int, rule: UpdateRule, seed: int) -> None:
    """Workers push, skip and leave in any order; a slow account is kept beside."""
    random = Random(seed)
    shard = Shard(range(workers), rule)
    steps = dict.fromkeys(range(workers), 0)
    may_ask, left, kinds = set(range(workers)), set[int](), dict[int, list[str]]()
    added: list[int] = []
    waiting_added: list[int] = []
    applied = 0
    for _ in range(60):
        if not may_ask:
            break
        rank = random.choice(sorted(may_ask))
        may_ask.discard(rank)
        kind: Any = random.choices(("push", "skip", "leave"), (6, 2, 1))[0]
        if kind == "leave":
            left.add(rank)
        else:
            kinds.setdefault(rank, []).append(kind)
            steps[rank] += 1
        for deed in shard.take(rank, kind):
            match deed:
                case Add():
                    added.append(deed.rank)
                    waiting_added.append(deed.rank)
                case Apply():
                    assert waiting_added, "an update has something in it"
                    expected = len(waiting_added) if rule.staleness == 0 else 1
                    assert deed.divisor == expected
                    assert deed.share == rule.buffer_share(workers)
                    if rule.staleness == 0:
                        assert waiting_added == sorted(set(waiting_added)), "in order, once each"
                    waiting_added, applied = [], applied + 1
                case Answer():
                    if not deed.is_last:
                        may_ask.add(deed.rank)
                        slowest = min(steps[r] for r in steps if r not in left)
                        assert deed.staleness == steps[deed.rank] - slowest
                        assert rule.staleness is None or deed.staleness <= rule.staleness
        assert shard.version == applied
    living = [r for r in steps if r not in left]
    complete = min((steps[r] for r in living), default=1 << 30) if rule.staleness == 0 else 1 << 30
    for rank, pushed in kinds.items():
        most = pushed.count("push")
        sure = pushed[:complete].count("push")
        assert sure <= added.count(rank) <= most, "none lost, none doubled"
    assert shard.skipped <= sum(pushed.count("skip") for pushed in kinds.values())


def test_the_last_to_leave_gives_everybody_the_final_weights() -> None:
    shard = Shard(range(3), UpdateRule(0))
    assert shard.take(1, "leave") == []
    shard.take(0, "push")
    deeds = shard.take(2, "push")
    assert deeds[0] == Add(2) or deeds[0] == Add(0)
    assert shard.take(0, "leave") == []
    found = shard.take(2, "leave")
    assert [deed for deed in found if isinstance(deed, Answer)] == [
        Answer(rank, 0, is_last=True, was_held=True) for rank in (0, 1, 2)
    ]


# ---- outer steps ---------------------------------------------------------------------------------


def test_an_outer_step_follows_each_mean() -> None:
    it = course("diloco", interval=2, outer_lr=0.5, outer_momentum=0.8)
    assert drawn(it.begin()) == [Anchor()]
    acts = [act for _ in range(4) for act in drawn(it.step()) if not isinstance(act, Tell)]
    assert [type(act) for act in acts] == [Update, Update, Mean, OuterStep] * 2
    for mean, step in zip(acts[2::4], acts[3::4], strict=True):
        assert step == OuterStep(mean.number, 0.5, 0.8)
        assert not mean.outer


def test_what_averages_hide_is_the_outer_step_too() -> None:
    it = course("diloco", interval=1, overlap="next-steps")
    (beside,) = [act[1] for act in drawn(it.step()) if isinstance(act, tuple)]
    assert [type(act) for act in beside] == [Mean, OuterStep]


def test_a_mean_that_did_not_happen_has_no_outer_step() -> None:
    it = course("diloco", interval=1)
    after = View(1, (0, 1, 3), (0, 0, 1), from_step=1)

    def lose(act: Act) -> Any:
        if isinstance(act, Mean):
            it.on_view(after)
            return CHANGED
        return usual(act)

    assert not any(isinstance(act, OuterStep) for act in drawn(it.step(), lose))
    outer = [act.outer for _ in range(3) for act in drawn(it.step()) if isinstance(act, Mean)]
    assert outer == [True, False, False], "members may differ until their first mean"


def test_outer_steps_are_checked() -> None:
    for options in ({"outer_lr": 0}, {"outer_momentum": 1.0}, {"overlap": "next-forward"}):
        with pytest.raises(UsageError):
            course("diloco", **options)
