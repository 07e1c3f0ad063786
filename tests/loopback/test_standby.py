"""What a control plane that stands by does with messages, without sockets; and who is asked to."""

from __future__ import annotations

import msgspec
import pytest

from control_handlers import handler_of
from shoal.control.appointment import Appointment
from shoal.control.handler import ControlHandler
from shoal.control.messages import (
    Assigned,
    Decided,
    Done,
    DumpRequest,
    Follow,
    Goodbye,
    GroupRequest,
    Heard,
    Heartbeat,
    Join,
    Lost,
    Moved,
    Prepare,
    Proposed,
    RefusalKind,
    Rejected,
    Reported,
    Sampled,
    StandBy,
    StandbyLost,
    Standing,
    Succeeded,
    Successor,
    Unfollow,
    Welcome,
)
from shoal.control.standby import Standby
from shoal.control.terms import Terms
from shoal.groups import GeneratorConfig
from shoal.membership import Position, Report, View
from shoal.watch import Snapshot
from told import told

TIMEOUT_NS = 1_000
TERMS = Terms(3, TIMEOUT_NS, 1)


def watch(rank: int) -> bytes:
    return b"watch%d" % rank


def ask(rank: int) -> bytes:
    return b"ask%d" % rank


def followed(*ranks: int) -> Standby:
    """Return one that stands by beside rank 1, and that these ranks of three follow."""
    standby = Standby(TERMS, 1, 0)
    for rank in ranks:
        ((_, answer),) = standby.handle(watch(rank), Follow(rank, Position(View.first(3))), 0)
        assert isinstance(answer, Welcome)
    return standby


def move(standby: Standby, rank: int, now_ns: int = 0) -> list[tuple[bytes, object]]:
    """Let a rank come over; return what is said of it."""
    message = Follow(rank, Position(View.first(3), preparation=4), has_moved=True)
    (first, *others) = standby.handle(watch(rank), message, now_ns)
    assert first == (watch(rank), Heard())
    return list(others)


def test_it_takes_over_when_most_have_come() -> None:
    called: list[int] = []
    standby = Standby(TERMS, 1, 0, lambda: called.append(1))
    for rank in range(3):
        standby.handle(watch(rank), Follow(rank, Position(View.first(3))), 0)
    assert move(standby, 0) == []
    assert standby.next() is standby
    told = move(standby, 2)
    assert called == [1]
    assert [who for who, it in told if isinstance(it, Succeeded)] == [watch(0), watch(1), watch(2)]
    (proposal,) = {it.proposal for _, it in told if isinstance(it, Proposed)}
    assert proposal.members == (0, 1, 2)
    handler = standby.next()
    assert isinstance(handler, ControlHandler)
    for rank in range(3):
        told = handler.handle(watch(rank), Reported(rank, proposal.number, Report()), 0)
    assert {it.decision.view.epoch for _, it in told if isinstance(it, Decided)} == {2}
    assert handler.handle(watch(1), Heartbeat(1), 0) == [(watch(1), Heard())]


def test_nobody_meets_in_its_groups_before_all_have_agreed() -> None:
    """They have the numbers that the lost one's groups had, in the view that is still there."""
    standby = followed(0, 1, 2)
    move(standby, 0)
    (proposal,) = {it.proposal for _, it in move(standby, 2) if isinstance(it, Proposed)}
    handler = standby.next()
    config = GeneratorConfig.random_mode(3)
    for rank in range(3):
        handler.handle(ask(rank), Join("run", rank, 0, config, 0), 0)

    def group() -> Assigned:
        for rank in range(3):
            answers = handler.handle(ask(rank), GroupRequest("run", rank, 0), 0)
        return next(it for _, it in answers if isinstance(it, Assigned))

    assert group().epoch == 1, "the view is the first, and the next one the third"
    for rank in range(3):
        told = handler.handle(watch(rank), Reported(rank, proposal.number, Report()), 0)
    assert {it.decision.view.epoch for _, it in told if isinstance(it, Decided)} == {2}
    assert group().epoch == 2


def test_it_goes_on_without_those_that_have_ended_or_are_silent() -> None:
    standby = followed(0, 1, 2)
    assert standby.disconnected(watch(0), 0) == []
    move(standby, 1)
    told = move(standby, 2)
    (proposal,) = {it.proposal for _, it in told if isinstance(it, Proposed)}
    assert proposal.members == (1, 2)

    standby = followed(0, 1, 2)
    late_ns = 2 * TIMEOUT_NS
    move(standby, 1, late_ns)
    told = move(standby, 2, late_ns)
    assert {it.proposal.members for _, it in told if isinstance(it, Proposed)} == {(1, 2)}
    handler = standby.next()
    ((_, lost),) = handler.handle(watch(0), Heartbeat(0), late_ns)
    assert isinstance(lost, Lost)
    assert lost.rank == 0
    assert "did not come over in time" in lost.reason
    again = Follow(0, Position(View.first(3)), has_moved=True)
    ((_, lost),) = handler.handle(b"another connection", again, late_ns)
    assert isinstance(lost, Lost)


def test_whoever_comes_alone_learns_that_the_others_go_on() -> None:
    standby = followed(0, 1, 2)
    assert move(standby, 2) == []
    assert standby.tick(2 * TIMEOUT_NS) == []
    ((who, lost),) = standby.tick(2 * TIMEOUT_NS + 1)
    assert who == watch(2)
    assert isinstance(lost, Lost)
    assert lost.rank == 2
    assert standby.tick(9 * TIMEOUT_NS) == [], "once"


def test_members_that_are_yet_to_follow_may_stand_still_for_a_moment() -> None:
    standby = followed(1, 2)
    move(standby, 1)
    assert move(standby, 2) == [], "rank 0 may be on the way"
    assert standby.tick(TIMEOUT_NS - 1) == []
    told = standby.handle(watch(0), Follow(0, Position(View.first(3))), TIMEOUT_NS - 1)
    assert {who for who, it in told if isinstance(it, Succeeded)} == {watch(0), watch(1), watch(2)}


def test_it_takes_over_without_those_that_never_follow() -> None:
    standby = followed(1, 2)
    move(standby, 1, TIMEOUT_NS - 2)
    assert move(standby, 2, TIMEOUT_NS - 1) == []
    told = standby.tick(TIMEOUT_NS)
    assert {it.proposal.members for _, it in told if isinstance(it, Proposed)} == {(1, 2)}


def test_it_shows_what_it_was_told_before_it_took_over() -> None:
    standby = followed(0, 1, 2)
    for rank in range(3):
        sample = told(40.0, step=20, loss=0.5)
        assert standby.handle(watch(rank), Sampled(rank, sample), rank) == []
    assert standby.handle(b"a stranger", Sampled(1, told(40.0, step=99)), 3) == []
    later = Position(View(2, (0, 1, 2), (0, 0, 0), why="Rank 2 has joined."))
    standby.handle(watch(0), Follow(0, later), 4)
    move(standby, 0)
    move(standby, 1)
    handler = standby.next()
    assert isinstance(handler, ControlHandler)
    shown = msgspec.json.decode(handler.show(5, 5.0)(), type=Snapshot)
    assert [each.step for each in shown.workers] == [20, 20, 20]
    assert [point.loss for point in shown.curve] == [0.5]
    assert [each.kind for each in shown.events] == ["view", "moved"]
    assert "Rank 2 has joined." in shown.events[0].text


def test_it_serves_nobody_until_then_and_ends_with_its_followers() -> None:
    standby = followed(0, 1)
    ((_, refused),) = standby.handle(b"a newcomer", DumpRequest(), 0)
    assert isinstance(refused, Rejected)
    assert refused.kind is RefusalKind.STANDS_BY
    assert standby.handle(watch(0), Heartbeat(0), 0) == [(watch(0), Heard())]
    assert not standby.is_deserted
    assert standby.handle(watch(0), Goodbye(0), 0) == [(watch(0), Done())]
    assert standby.handle(watch(1), Unfollow(1), 0) == [(watch(1), Done())]
    assert standby.is_deserted
    assert standby.disconnected(watch(1), 0) == []
    standby.handle(watch(2), Follow(2, Position(View.first(3))), 0)
    assert not standby.is_deserted
    standby.tick(TIMEOUT_NS + 1)
    assert standby.is_deserted, "whose end nobody saw is silent"
    assert standby.shut_down(None, "it ends") == []
    assert not standby.is_fixed


def test_preparations_go_on_being_counted() -> None:
    standby = followed(0, 1, 2)
    move(standby, 1)
    told = move(standby, 2)
    handler = standby.next()
    assert isinstance(handler, ControlHandler)
    (proposal,) = {it.proposal for _, it in told if isinstance(it, Proposed)}
    handler._arrivals.come(7, 1)
    for rank in range(3):
        told = list(handler.handle(watch(rank), Reported(rank, proposal.number, Report()), 0))
    (preparation,) = {it.preparation for _, it in told if isinstance(it, Prepare)}
    assert preparation.number == 5, "facts and ways of the fourth may still be there"


def started(size: int) -> ControlHandler:
    handler = handler_of(size, TIMEOUT_NS, min_members=1)
    for rank in range(size):
        handler.handle(watch(rank), Heartbeat(rank), 0)
    return handler


def asked(handler: ControlHandler) -> list[bytes]:
    """Return who is asked to stand by now."""
    return [who for who, it in handler.tick(0) if isinstance(it, StandBy)]


def test_a_member_is_asked_to_stand_by_once_all_are_there() -> None:
    handler = handler_of(2, TIMEOUT_NS, min_members=1)
    handler.handle(watch(1), Heartbeat(1), 0)
    assert asked(handler) == [], "rank 0 has not come"
    handler.handle(watch(0), Heartbeat(0), 0)
    assert asked(handler) == [watch(1)]
    assert asked(handler) == [], "once"
    told = handler.handle(watch(1), Standing(1, "tcp://it"), 0)
    assert told == [(watch(1), Done()), *((watch(r), Successor("tcp://it")) for r in (0, 1))]


def test_nobody_is_asked_in_a_job_of_fixed_size() -> None:
    handler = handler_of(2, TIMEOUT_NS)
    for rank in range(2):
        handler.handle(watch(rank), Heartbeat(rank), 0)
    assert asked(handler) == []


def test_another_one_is_asked_if_the_first_cannot_or_is_gone() -> None:
    handler = started(4)
    assert asked(handler) == [watch(1)]
    handler.handle(watch(1), Standing(1, ""), 0)
    assert asked(handler) == [watch(2)]
    handler.disconnected(watch(2), 0)
    assert asked(handler) == [watch(3)]
    handler.handle(watch(3), Standing(3, "tcp://it"), 0)
    handler.handle(watch(0), StandbyLost(0, "tcp://another"), 0)
    assert asked(handler) == []
    handler.handle(watch(0), StandbyLost(0, "tcp://it"), 0)
    assert asked(handler) == [watch(3)]


def test_those_who_come_later_hear_who_stands_by() -> None:
    handler = started(3)
    asked(handler)
    handler.handle(watch(1), Standing(1, "tcp://it"), 0)
    arrived = handler.handle(b"new", Heartbeat(2), 0)
    assert isinstance(arrived[0][1], Rejected), "rank 2 is there"
    handler.handle(watch(2), Goodbye(2), 0)
    ((_, welcome), (_, successor)) = handler.handle(b"new", Heartbeat(2), 0)
    assert isinstance(welcome, Welcome)
    assert successor == Successor("tcp://it")


def test_those_who_go_over_may_go_on_without_the_rest() -> None:
    handler = started(5)
    for rank in (2, 3, 4):
        told = handler.handle(watch(rank), Moved(rank), 0)
        assert handler.disconnected(watch(rank), 0) == [], "that is not the end of its process"
    (proposal,) = {it.proposal for _, it in told if isinstance(it, Proposed)}
    for rank in (0, 1):
        handler.handle(watch(rank), Heartbeat(rank), TIMEOUT_NS)
        answers = handler.handle(watch(rank), Reported(rank, proposal.number, Report()), 0)
        assert not any(isinstance(it, Decided) for _, it in answers), "most may be well elsewhere"
    told = [answer for answer in handler.tick(TIMEOUT_NS) if isinstance(answer[1], Lost)]
    assert [(who, it.rank) for who, it in told if isinstance(it, Lost)] == [
        (watch(0), 0),
        (watch(1), 1),
    ]
    assert "may go on without this one" in told[0][1].reason  # type: ignore[union-attr]


def test_an_appointment_forgets_who_is_unfit_when_another_process_comes() -> None:
    appointment, view = Appointment(0, 0), View.first(2)
    assert appointment.ask(view, {0, 1}) == 1
    assert not appointment.stands(0, "tcp://it"), "it was not asked"
    assert not appointment.stands(1, "")
    assert appointment.ask(view, {0, 1}) is None
    appointment.gone(1)
    assert appointment.ask(view, {0, 1}) == 1


@pytest.mark.parametrize("reply", [Succeeded(), Successor("tcp://it")])
def test_replies_are_what_they_were(reply: Succeeded | Successor) -> None:
    from shoal.control.messages import decode_reply, encode

    assert decode_reply(encode(reply)) == reply
