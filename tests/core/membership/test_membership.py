"""Proposals, reports and decisions, by examples and in any order of events."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import ProtocolError, UsageError
from shoal.membership import (
    Change,
    Decision,
    Kind,
    Membership,
    Proposal,
    Refusal,
    Report,
    Stage,
    TooFew,
    View,
)
from thoroughness import examples

SECOND = 10**9


def of_three() -> Membership:
    return Membership(View(0, (0, 1, 2), (0, 0, 1)), 5 * SECOND)


def at(number: int, *, is_ending: bool = False) -> Report:
    return Report({"run": Stage(number, is_ending=is_ending)})


def test_a_loss_is_proposed_reported_and_decided() -> None:
    membership = of_three()
    (proposal,) = membership.lose(1, "Rank 1 was silent.", 0)
    assert proposal == Proposal(1, (0, 2), (Change(Kind.LOST, 1, "Rank 1 was silent."),))
    assert membership.view.epoch == 0, "nothing is decided yet"
    assert membership.report(0, 1, at(4), 1) == []
    (decision,) = membership.report(2, 1, at(6), 2)
    assert isinstance(decision, Decision)
    assert decision.view == membership.view == View(1, (0, 2), (0, 1), why="Rank 1 was silent.")
    assert decision.view_of("run").from_step == 6
    assert decision.view_of("another").from_step == 0
    assert decision.changes == proposal.changes
    assert decision.reports == {0: at(4), 2: at(6)}
    assert membership.proposal is None
    assert membership.lose(1, "again", 3) == [], "it takes part no more"


def test_whoever_is_lost_meanwhile_is_left_out_of_a_new_proposal() -> None:
    membership = of_three()
    membership.lose(1, "first", 0)
    membership.report(0, 1, Report(), 0)
    (proposal,) = membership.lose(2, "second", 0)
    assert proposal.members == (0,)
    assert [change.rank for change in proposal.changes] == [1, 2]
    assert membership.report(0, 1, Report(), 0) == [], "that was of the first proposal"
    (decision,) = membership.report(0, 2, Report(), 0)
    assert decision.view.members == (0,)


def test_whoever_does_not_report_in_time_is_lost() -> None:
    membership = of_three()
    membership.lose(1, "gone", 0)
    membership.report(0, 1, Report(), 0)
    assert membership.poll(5 * SECOND - 1) == []
    (proposal,) = membership.poll(5 * SECOND)
    assert proposal.members == (0,)
    assert "did not report within 5 s" in proposal.changes[1].reason


def test_newcomers_come_in_unless_the_job_is_ending() -> None:
    membership = of_three()
    (proposal,) = membership.join(7, 3, "Rank 7 has started.", 0)
    assert proposal.members == (0, 1, 2, 7)
    with pytest.raises(ProtocolError, match="takes part already"):
        membership.join(7, 3, "again", 0)
    assert membership.report(7, 1, None, 0) == []
    for rank in (0, 1):
        assert membership.report(rank, 1, at(3), 0) == []
    (decision,) = membership.report(2, 1, at(2), 0)
    view = View(1, (0, 1, 2, 7), (0, 0, 1, 3), from_step=3, why="Rank 7 has started.")
    assert decision.view_of("run") == view
    assert set(decision.reports) == {0, 1, 2}
    assert decision.newcomers == (7,)

    membership.join(8, 3, "late", 0)
    membership.report(8, 2, None, 0)
    for rank in (0, 1, 2):
        membership.report(rank, 2, at(9, is_ending=True), 0)
    refusal, again = membership.report(7, 2, at(9, is_ending=True), 0)
    assert isinstance(refusal, Refusal)
    assert refusal.rank == 8
    assert isinstance(again, Proposal)
    assert again.members == (0, 1, 2, 7)


def test_nobody_comes_in_before_all_have_begun() -> None:
    membership = of_three()
    membership.join(7, 3, "Rank 7 has started.", 0)
    membership.report(7, 1, None, 0)
    for rank in (0, 1, 2):
        events = membership.report(rank, 1, Report(num_begun=1), 0)
    refusal, _ = events
    assert refusal == Refusal(7, "Rank 7 came before the job had begun to train: start it again.")


def test_nobody_comes_in_once_there_is_more_than_one_training() -> None:
    membership = of_three()
    membership.join(7, 3, "Rank 7 has started.", 0)
    membership.report(7, 1, None, 0)
    membership.report(0, 1, Report({"run": Stage(9)}, num_begun=1), 0)
    membership.report(1, 1, Report({"run": Stage(9)}, num_begun=2), 0)  # it is making the next one
    events = membership.report(2, 1, Report({"run": Stage(9), "another": Stage()}, num_begun=2), 0)
    refusal, again = events
    assert isinstance(refusal, Refusal)
    assert refusal.reason.startswith("Rank 7 came when the job had made more than one Distributed")
    assert isinstance(again, Proposal)
    assert again.members == (0, 1, 2)


def test_a_training_that_is_over_does_not_end_the_job() -> None:
    membership = of_three()
    membership.lose(1, "gone", 0)
    over = Stage(9, is_ending=True, has_ended=True)
    membership.report(0, 1, Report({"run": over}), 0)
    (decision,) = membership.report(2, 1, Report({"run": over, "another": Stage(3)}), 0)
    assert isinstance(decision, Decision)
    assert not decision.is_over, "rank 2 knows more than rank 0"
    assert decision.stages_of("another") == {0: Stage(), 2: Stage(3)}
    membership.lose(2, "gone, too", 0)
    (decision,) = membership.report(0, 2, Report({"run": over, "another": over}), 0)
    assert isinstance(decision, Decision)
    assert decision.is_over


def test_a_newcomer_that_is_lost_before_it_came_in_is_forgotten() -> None:
    membership = of_three()
    membership.join(7, 3, "new", 0)
    (proposal,) = membership.lose(7, "gone", 0)
    assert proposal.changes == ()
    assert proposal.members == (0, 1, 2)


def test_below_its_least_number_of_members_there_is_no_job() -> None:
    membership = Membership(View.first(3), SECOND, min_members=2)
    (proposal,) = membership.lose(0, "gone", 0)
    assert isinstance(proposal, Proposal)
    assert membership.lose(1, "gone too", 0) == [TooFew(Change(Kind.LOST, 1, "gone too"))]


def test_who_has_finished_is_not_missed_and_who_left_before_is() -> None:
    membership = Membership(View.first(4), SECOND, min_members=2)
    for rank in (0, 3):
        (proposal,) = membership.leave(rank, "finished", 0)
        assert isinstance(proposal, Proposal)
    assert isinstance(membership.lose(2, "gone", 0)[0], Proposal), "rank 1 is about to finish too"

    membership = Membership(View.first(3), SECOND, min_members=2)
    (proposal,) = membership.leave(0, "left", 0, has_finished=False)
    assert isinstance(proposal, Proposal)
    (too_few,) = membership.leave(1, "left", 0, has_finished=False)
    assert too_few == TooFew(Change(Kind.LEFT, 1, "left"))


def test_a_job_of_fixed_size_knows_one_view() -> None:
    membership = Membership(View.first(3), SECOND, is_fixed=True)
    assert membership.leave(2, "done", 0) == []
    with pytest.raises(ProtocolError, match="no member of a fixed job"):
        membership.join(3, 0, "new", 0)
    assert membership.lose(1, "gone", 0) == [TooFew(Change(Kind.LOST, 1, "gone"))]
    assert membership.view == View.first(3)


def test_a_view_needs_members() -> None:
    with pytest.raises(UsageError, match="A view needs members"):
        View(0, (), ())
    membership = Membership(View(0, (4,), (0,)), SECOND)
    assert membership.leave(4, "done", 0) == []
    assert membership.proposal is None


@given(st.integers(0, 1 << 32))
@settings(max_examples=examples(300))
def test_in_any_order_of_events_all_that_live_get_the_same_views(seed: int) -> None:
    """Members report late or never, are lost, leave and join; decisions follow one another."""
    random, now = Random(seed), 0
    membership = Membership(View(0, tuple(range(4)), (0, 0, 1, 1)), 5 * SECOND)
    living, next_rank, decided = set(range(4)), 4, [membership.view]
    for _ in range(60):
        now += random.choice((0, SECOND, 3 * SECOND))
        events = list(membership.poll(now))
        proposal = membership.proposal
        match random.choice(
            ["lose", "leave", "join", "report", "report", "report", "report", "poll"]
        ):
            case "lose" if len(living) > 1:
                events += membership.lose(random.choice(sorted(living)), "lost", now)
            case "leave" if len(living) > 1:
                events += membership.leave(random.choice(sorted(living)), "left", now)
            case "join":
                events += membership.join(next_rank, 2, "new", now)
                next_rank += 1
            case "report" if proposal is not None:
                rank = random.choice(proposal.members)
                report = at(random.randrange(9), is_ending=random.random() < 0.2)
                said = report if rank in membership.view.members else None
                events += membership.report(rank, proposal.number, said, now)
        for event in events:
            match event:
                case Proposal():
                    living = set(event.members)
                case Refusal():
                    living.discard(event.rank)
                case Decision():
                    assert set(event.view.members) == living
                    assert event.view.epoch == decided[-1].epoch + 1
                    old, new = set(decided[-1].members), set(event.view.members)
                    kinds = {change.rank: change.kind for change in event.changes}
                    assert {r for r, k in kinds.items() if k is not Kind.JOINED} == old - new
                    assert {r for r, k in kinds.items() if k is Kind.JOINED} == new - old
                    rounds = [each.stages["run"].next_round for each in event.reports.values()]
                    assert event.view_of("run").from_step == max(rounds, default=0)
                    decided.append(event.view)
        if not living:
            break


def test_members_agree_anew_if_one_asks_for_it() -> None:
    membership = Membership(View.first(2), SECOND)
    assert membership.refresh(5, "It has measured something.", 0) == [], "it does not take part"
    change = Change(Kind.MEASURED, 0, "It has measured something.")
    assert membership.refresh(0, change.reason, 0) == [Proposal(1, (0, 1), (change,))]
    assert membership.refresh(1, "It, too.", 0) == [], "they do so"
    membership.report(0, 1, Report(), 0)
    (decision,) = membership.report(1, 1, Report(), 0)
    assert isinstance(decision, Decision)
    assert decision.view == View(1, (0, 1), (0, 0), why="It has measured something.")
    assert Membership(View.first(2), SECOND, is_fixed=True).refresh(0, "no", 0) == []
