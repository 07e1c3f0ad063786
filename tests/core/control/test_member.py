"""A worker as a member: what a proposal stops, when a decision counts, who waits for whom."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

import pytest

from shoal.control import Member
from shoal.errors import DeadlineExceeded, ViewChanging, WorkerLost
from shoal.membership import Change, Decision, GoingOn, Kind, Proposal, Report, Stage, View

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LOST = Change(Kind.LOST, 2, "Rank 2 is gone.")
OLD, NEW = View(0, (0, 1, 2), (0, 0, 1)), View(1, (0, 1), (0, 0))
PROPOSAL = Proposal(1, NEW.members, (LOST,))
ENDING = Report({"run": Stage(4, is_ending=True)})
DECISION = Decision(NEW, (LOST,), {0: Report({"run": Stage(4)}), 1: Report({"run": Stage(5)})})


class Training:
    """A participant that writes down what it is told."""

    def __init__(self, log: list[object], number: int = 4) -> None:
        self.log, self.number = log, number
        self.is_ending = self.has_ended = False

    def report(self) -> int:
        self.log.append("report")
        return self.number

    def install(self, view: View, rounds: Mapping[int, int]) -> None:
        self.log.append((view.epoch, view.from_step, dict(rounds)))

    def catch_up(self, view: View) -> None:
        self.log.append(f"{self.number} catches up in {view.epoch}")


def member_of(log: list[object], deadline_s: float = 20.0) -> Member:
    member = Member(OLD, deadline_s, GoingOn())
    member.is_ready = True
    member.fence = lambda proposal: log.append(("fence", proposal.number))
    member.unfence = lambda decision: log.append(("unfence", decision.view.epoch))
    member.enter("run", Training(log))
    return member


def in_thread(act: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Start `act`; return its thread, and a list that gets what it returns."""
    returned: list[object] = []
    thread = threading.Thread(target=lambda: returned.append(act()), daemon=True)
    thread.start()
    return thread, returned


def test_a_change_fences_reports_and_installs_in_this_order() -> None:
    log: list[object] = []
    member = member_of(log)
    assert member.propose(PROPOSAL) == Report({"run": Stage(4)})
    assert log == [("fence", 1), "report"]
    assert member.is_fenced
    assert not member.is_in(OLD)
    member.decide(DECISION)
    assert log[2:] == [("unfence", 1), (1, 5, {0: 4, 1: 5})]
    assert member.view == NEW
    assert member.is_in(NEW)


def test_a_decision_waits_for_what_began_in_the_old_view() -> None:
    log: list[object] = []
    member = member_of(log)
    assert member.begin(epoch=0)
    assert member.begin(epoch=0), "two threads may have something under way"
    member.propose(PROPOSAL)
    member.decide(DECISION)
    member.end()
    assert member.view == OLD
    member.end()
    assert member.view == NEW


def test_what_was_drawn_in_an_old_view_does_not_begin() -> None:
    member = member_of([])
    member.propose(PROPOSAL)
    thread, returned = in_thread(lambda: member.begin(epoch=0))
    thread.join(0.05)
    assert thread.is_alive(), "the view is about to change: it waits"
    member.decide(DECISION)
    thread.join(10)
    assert returned == [False]
    assert member.begin(epoch=1)


def test_a_new_proposal_takes_the_place_of_a_decision_that_is_not_installed() -> None:
    log: list[object] = []
    member = member_of(log)
    assert member.begin(epoch=0)
    member.propose(PROPOSAL)
    member.decide(DECISION)
    again = Proposal(2, (0,), (LOST, Change(Kind.LOST, 1, "Rank 1 is gone.")))
    assert member.propose(again) == Report({"run": Stage(4)}), "it reports where it still is"
    member.end()
    assert member.view == OLD
    assert member.is_fenced
    member.decide(Decision(View(2, (0,), (0,)), again.changes, {0: Report({"run": Stage(4)})}))
    assert member.view.epoch == 2
    assert [entry for entry in log if entry[0] == "unfence"] == [("unfence", 2)]  # type: ignore[index]


def patient_member(patience_s: float) -> Member:
    member = Member(OLD, 20.0, GoingOn(3, patience_s))
    member.is_ready = True
    return member


def test_too_few_members_begin_a_training_and_wait_for_others_then() -> None:
    member = patient_member(0.05)
    member.propose(PROPOSAL)
    member.decide(DECISION)
    assert member.begin(epoch=NEW.epoch), "no newcomer can come before a training has begun"
    member.end()
    member.enter("run", Training([]))
    with pytest.raises(WorkerLost, match="Fewer than 3 workers"):
        member.begin(epoch=NEW.epoch)


def test_too_few_members_wait_for_others() -> None:
    member = patient_member(20.0)
    member.enter("run", Training([]))
    member.propose(PROPOSAL)
    member.decide(DECISION)
    assert member.view == NEW
    thread, begun = in_thread(lambda: member.begin(epoch=NEW.epoch))
    thread.join(0.1)
    assert thread.is_alive(), "rank 2 is missed"
    more = View(2, (0, 1, 3), (0, 0, 1))
    joined = Change(Kind.JOINED, 3, "Rank 3 has joined.")
    member.propose(Proposal(2, more.members, (joined,)))
    member.decide(
        Decision(more, (joined,), {0: Report({"run": Stage(4)}), 1: Report({"run": Stage(4)})})
    )
    thread.join(20.0)
    assert begun == [False], "nothing begins in a view that is over"
    assert member.begin(epoch=2)


@pytest.mark.parametrize(
    "decision",
    [
        Decision(NEW, (LOST,), DECISION.reports, num_finished=1),
        Decision(NEW, (LOST,), {0: ENDING, 1: ENDING}),
    ],
)
def test_who_has_finished_or_is_about_to_is_not_missed(decision: Decision) -> None:
    member = patient_member(20.0)
    member.enter("run", Training([]))
    member.propose(PROPOSAL)
    member.decide(decision)
    assert member.begin(epoch=NEW.epoch)


def test_patience_ends() -> None:
    member = patient_member(0.05)
    member.enter("run", Training([]))
    member.propose(PROPOSAL)
    member.decide(DECISION)
    with pytest.raises(WorkerLost, match=r"Fewer than 3 workers .* within 0.05 s") as caught:
        member.settled_view()
    assert caught.value.rank == 2


def test_a_view_that_is_never_agreed_on_ends_the_wait() -> None:
    member = member_of([], deadline_s=0.05)
    member.propose(PROPOSAL)
    with pytest.raises(DeadlineExceeded, match=r"Ranks \(0, 1\) did not agree within 0.05 s"):
        member.settled_view()


@pytest.mark.parametrize(
    ("ending", "ended", "of_all"),
    [
        ((True, False), (False, False), (False, False)),
        ((True, False), (True, False), (False, False)),
        ((True, True), (True, False), (True, False)),
        ((True, True), (True, True), (True, True)),
    ],
)
def test_a_report_is_of_all_trainings(
    ending: tuple[bool, bool], ended: tuple[bool, bool], of_all: tuple[bool, bool]
) -> None:
    member = Member(OLD, 20.0, GoingOn())
    member.is_ready = True
    for name, number, each, over in zip(("run", "other"), (4, 7), ending, ended, strict=True):
        member.begin_training()
        training = Training([], number)
        member.enter(name, training)
        training.is_ending, training.has_ended = each, over
    said = member.propose(PROPOSAL)
    assert said is not None
    stages = {"run": Stage(4, ending[0], ended[0]), "other": Stage(7, ending[1], ended[1])}
    assert said == Report(stages, num_begun=2)
    assert (said.is_ending, said.has_ended) == of_all


def test_who_waits_for_a_view_hears_that_there_is_none() -> None:
    member = member_of([])
    member.propose(PROPOSAL)
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            member.settled_view()
        except WorkerLost as error:
            raised.append(error)

    thread, _ = in_thread(wait)
    lost = WorkerLost("Too few are left.", 1)
    member.fail(lost)
    thread.join(10)
    assert raised == [lost]


def test_a_loss_before_all_are_ready_ends_the_job() -> None:
    member = Member(OLD, 20.0, GoingOn())
    member.propose(PROPOSAL)
    with pytest.raises(WorkerLost, match=r"Rank 2 is gone\. That was before all workers"):
        member.check()


def test_a_training_that_is_made_late_goes_on_where_the_others_are() -> None:
    log: list[object] = []
    member = Member(OLD, 20.0, GoingOn())
    member.is_ready = True
    member.enter("in the first view", Training(log))
    assert log == [], "there it begins with what it is"
    member.propose(PROPOSAL)
    member.decide(DECISION)
    log.clear()
    member.enter("run", Training(log))  # made in this view, for which the others have reported
    assert log == [(1, 5, {0: 4, 1: 5})]


def test_trainings_catch_up_in_their_order_and_anew_if_the_view_ends_meanwhile() -> None:
    log: list[object] = []
    member = Member(OLD, 20.0, GoingOn())
    member.is_ready = True
    over, first, second = Training([], 0), Training(log, 1), Training(log, 2)
    over.is_ending = over.has_ended = True
    for name, each in (("over", over), ("first", first), ("second", second)):
        member.enter(name, each)
    member.propose(PROPOSAL)
    member.decide(DECISION)
    newest = View(2, (0,), (0,))

    def lose_another(view: View) -> None:
        log.append(f"2 is interrupted in {view.epoch}")
        second.catch_up = catch_up  # type: ignore[method-assign]
        member.propose(Proposal(2, newest.members, (LOST,)))
        member.decide(Decision(newest, (LOST,), {0: Report()}))
        raise ViewChanging

    catch_up = second.catch_up
    second.catch_up = lose_another  # type: ignore[method-assign]
    log.clear()
    for _ in range(2):  # the second time they have done so
        assert member.catch_up() == newest
    caught = [each for each in log if isinstance(each, str) and " in " in each]
    assert caught == [
        "1 catches up in 1",
        "2 is interrupted in 1",
        "1 catches up in 2",
        "2 catches up in 2",
    ]
    assert not [each for each in over.log if isinstance(each, str) and " in " in each]


def test_a_training_that_is_over_goes_when_the_next_one_begins() -> None:
    log: list[object] = []
    member = Member(OLD, 20.0, GoingOn())
    member.is_ready = True
    first = Training(log, 7)
    member.enter("run-1", first)
    over = weakref.ref(first)
    first.is_ending = first.has_ended = True
    del first
    assert over() is not None, "until then others may need it"
    member.enter("run-2", Training(log, 2))
    assert over() is None
    report = member.propose(PROPOSAL)
    assert report is not None
    assert report.stages == {"run-1": Stage(7, is_ending=True, has_ended=True), "run-2": Stage(2)}
    assert not report.has_ended, "another training goes on"
