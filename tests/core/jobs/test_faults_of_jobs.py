"""Which faults are drawn, and how what becomes of a job is judged."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.jobs.chaos.faults import (
    PHASES,
    SYNCS,
    Case,
    Fault,
    Phase,
    Role,
    all_cases,
    case_of,
    draw,
)
from shoal.jobs.chaos.outcomes import LARGEST, Ended, Told, is_as_promised, judge

KILL = Case("all-reduce", Role.WORKER, Phase.AVERAGING, Fault.KILL, 0)
DONE = Told(Ended.FINISHED, model="a", largest=1.0, states={5: "x", 6: "y"})
GONE = Told(Ended.RAISED, "exit code -9: ")


def ends(case: Case, told: dict[int, Told], *struck: int) -> list[Ended]:
    return [each.ended for each in judge(case, told, struck)]


def is_kept(case: Case, told: dict[int, Told], *struck: int, fired: bool = True) -> bool:
    """Return whether what the pages promise of a case is what has come of it."""
    return is_as_promised(case, judge(case, told, struck), fired=fired)


def test_all_kinds_are_drawn_before_one_comes_again() -> None:
    kinds = all_cases()
    cases = draw(3, len(kinds) + 5)
    assert len({case.words for case in cases[: len(kinds)]}) == len(kinds)
    assert {case.number for case in cases[: len(kinds)]} != {cases[-1].number}
    assert {(case.role, case.phase) for case in kinds} == {
        (role, phase) for role, phases in PHASES.items() for phase in phases
    }


@given(seed=st.integers(0, 1000), count=st.integers(1, 50))
def test_a_seed_says_all(seed: int, count: int) -> None:
    cases = draw(seed, count)
    assert cases == draw(seed, count)
    assert len(set(cases)) == count
    for case in cases:
        assert case_of(str(case)) == case
        assert case.chance.random() == case.chance.random()


def test_only_what_is_asked_for_is_drawn() -> None:
    cases = draw(0, 30, frozenset({"ripples", "ds-sync", "donor", "kill"}))
    assert {case.words for case in cases} == {
        (sync, Role.DONOR, Phase.TRANSFER, Fault.KILL) for sync in ("ripples", "ds-sync")
    }
    with pytest.raises(UsageError, match="There is no doner; words are "):
        draw(0, 1, frozenset({"doner"}))
    with pytest.raises(UsageError, match="No fault is all of donor, start"):
        draw(0, 1, frozenset({"donor", "start"}))
    for text in ("ripples", "ripples/donor/start/kill/3", "ripples/donor/transfer/kill/x"):
        with pytest.raises(UsageError, match="There is no fault "):
            case_of(text)


@pytest.mark.parametrize("sync", ["all-reduce", "ps-bsp", "ripples"])
def test_what_was_saved_has_to_load(sync: str) -> None:
    case = Case(sync, Role.RANK_0, Phase.CHECKPOINT, Fault.KILL, 0)
    saved = msgspec.structs.replace(DONE, saved="x", saved_steps=5)
    of_another = msgspec.structs.replace(saved, saved_steps=6)
    fine, wrong = ([Ended.STRUCK, ended] for ended in (Ended.FINISHED, Ended.WRONG))
    assert ends(case, {0: GONE, 1: saved}, 0) == fine
    assert ends(case, {0: GONE, 1: DONE}, 0) == wrong, "no checkpoint is whole"
    assert ends(case, {0: GONE, 1: of_another}, 0) == (fine if sync == "ripples" else wrong)


def test_survivors_have_to_finish_alike() -> None:
    told = {0: DONE, 1: GONE, 2: DONE}
    assert ends(KILL, told, 1) == [Ended.FINISHED, Ended.STRUCK, Ended.FINISHED]
    assert is_kept(KILL, told, 1)
    assert ends(KILL, told) == [Ended.FINISHED, Ended.RAISED, Ended.FINISHED]
    assert not is_kept(KILL, told), "nobody was to die"


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": "b"},
        {"states": {6: "z"}},
        {"largest": 2 * LARGEST},
        {"largest": float("nan")},
    ],
)
def test_wrong_sums_are_found(wrong: dict[str, object]) -> None:
    told = {0: DONE, 1: GONE, 2: msgspec.structs.replace(DONE, **wrong)}
    assert Ended.WRONG in ends(KILL, told, 1)
    assert not is_kept(KILL, told, 1)


def test_averages_may_differ_on_the_way() -> None:
    case = msgspec.structs.replace(KILL, sync="ripples")
    told = {0: DONE, 2: msgspec.structs.replace(DONE, states={6: "z"})}
    assert ends(case, told) == [Ended.FINISHED] * 2


@pytest.mark.parametrize("sync", SYNCS)
def test_what_is_promised(sync: str) -> None:
    named, hung = Told(Ended.NAMED, "WorkerLost: "), Told(Ended.HUNG)
    start = Case(sync, Role.WORKER, Phase.START, Fault.KILL, 0)
    assert is_kept(start, {0: named, 1: GONE}, 1)
    assert not is_kept(start, {0: DONE, 1: GONE}, 1)
    assert is_kept(start, {0: DONE, 1: DONE}, fired=False)
    assert not is_kept(start, {0: named, 1: DONE}, fired=False)
    later = Case(sync, Role.WORKER, Phase.BACKWARD, Fault.KILL, 0)
    assert not is_kept(later, {0: named, 1: GONE}, 1)
    control = Case(sync, Role.CONTROL, Phase.FIRST_STEP, Fault.FREEZE, 0)
    assert is_kept(control, {0: named, 1: named})
    assert not is_kept(control, {0: named, 1: hung})
    pause = Case(sync, Role.WORKER, Phase.BACKWARD, Fault.PAUSE, 0)
    assert is_kept(pause, {0: DONE, 1: DONE})
    assert not is_kept(pause, {0: DONE, 1: named})


def test_views_change_by_deaths_and_by_newcomers() -> None:
    changes = [case for case in all_cases() if case.phase is Phase.VIEW_CHANGE]
    assert {case.has_death for case in changes if case.role is Role.WORKER} == {True, False}
    for case in all_cases():
        assert not (case.has_death and case.has_newcomer)
        comes, dies = case.bystanders(4)
        assert 0 < comes != dies > 0
