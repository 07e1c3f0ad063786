"""What the control plane does for processes that come to join a job, without sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import shoal
from control_handlers import handler_of
from shoal.control.messages import (
    Apply,
    Arrive,
    Arrived,
    Decided,
    Done,
    Failed,
    Goodbye,
    GroupRequest,
    Heard,
    Heartbeat,
    Join,
    Lost,
    Prepare,
    Prepared,
    Proposed,
    RefusalKind,
    Refused,
    Rejected,
    Reported,
)
from shoal.groups import GeneratorConfig
from shoal.membership import Report, Stage

if TYPE_CHECKING:
    from shoal.control.group_run import Answer
    from shoal.control.handler import ControlHandler

TIMEOUT_NS = 1_000
NEW = b"a process that has just started"
VERSION = shoal.__version__


def watch(rank: int) -> bytes:
    """Name of the connection over which `rank` is watched."""
    return b"watch%d" % rank


def started(size: int, min_members: int | None = 1) -> ControlHandler:
    handler = handler_of(size, TIMEOUT_NS, min_members=min_members)
    for rank in range(size):
        handler.handle(watch(rank), Heartbeat(rank), 0)
    return handler


def refusal(answers: list[Answer]) -> tuple[RefusalKind, str]:
    ((_, reply),) = answers
    assert isinstance(reply, Rejected)
    return reply.kind, reply.reason


def arrive(handler: ControlHandler, rank: int | None, identity: bytes = NEW) -> Arrived:
    ((answered, reply),) = handler.handle(identity, Arrive(rank, VERSION), 0)
    assert answered == identity
    assert isinstance(reply, Arrived)
    return reply


def prepare(handler: ControlHandler, rank: int, identity: bytes = NEW) -> Prepare:
    """Let a newcomer apply; return what all are asked to prepare then."""
    done, *asked = handler.handle(identity, Apply(rank, 1), 0)
    assert done == (identity, Done())
    (preparation,) = {reply for _, reply in asked}
    assert isinstance(preparation, Prepare)
    assert identity in {each for each, _ in asked}
    return preparation


def settle(handler: ControlHandler, answers: list[Answer]) -> list[Answer]:
    """Let everybody report who is asked to, newcomers nothing; return what comes of it."""
    proposals = {reply.proposal for _, reply in answers if isinstance(reply, Proposed)}
    newest = max(proposals, key=lambda each: each.number)
    asked = {i for i, reply in answers if isinstance(reply, Proposed) if reply.proposal == newest}
    found: list[Answer] = []
    for identity in sorted(asked):
        rank = handler._liveness.rank_of(identity)
        assert rank is not None
        report = None if identity == NEW else Report({"run-1": Stage(9)})
        found += handler.handle(identity, Reported(rank, newest.number, report), 1)[1:]
    return found


def admitted(handler: ControlHandler, rank: int) -> list[Answer]:
    """Let all prepare for a newcomer, and report; return what they are told then."""
    preparation = prepare(handler, rank).preparation
    answers: list[Answer] = []
    for each in preparation.ranks:
        identity = NEW if each == rank else watch(each)
        answers += handler.handle(identity, Prepared(each, preparation.number), 1)[1:]
    return settle(handler, answers)


def test_a_newcomer_becomes_a_member_when_all_are_ready_for_it() -> None:
    handler = started(2)
    arrived = arrive(handler, None)
    assert (arrived.rank, arrived.size, arrived.view.members) == (2, 2, (0, 1))
    assert handler.handle(NEW, Heartbeat(2), 1) == [(NEW, Heard())]
    preparation = prepare(handler, 2).preparation
    assert preparation.ranks == (0, 1, 2)
    for rank in (0, 1):
        answers = handler.handle(watch(rank), Prepared(rank, preparation.number), 1)
        assert answers == [(watch(rank), Done())], "nothing that is under way is touched"
    answers = handler.handle(NEW, Prepared(2, preparation.number), 1)[1:]
    decided = settle(handler, answers)
    assert {identity for identity, _ in decided} == {watch(0), watch(1), NEW}
    (decision,) = {reply.decision.way for _, reply in decided if isinstance(reply, Decided)}
    assert decision == preparation.number
    (reply, *_) = [reply for _, reply in decided if isinstance(reply, Decided)]
    assert reply.decision.newcomers == (2,)
    assert reply.decision.view.members == (0, 1, 2)
    assert reply.decision.view.hosts == (0, 0, 1)
    assert reply.decision.view.why == "Rank 2 has joined."


def test_a_process_takes_the_place_of_a_lost_one_which_stays_out() -> None:
    handler = started(3)
    settle(handler, handler.disconnected(watch(2), 0))
    assert arrive(handler, 2).rank == 2
    admitted(handler, 2)
    assert handler.dump(1).view.members == (0, 1, 2)
    ((identity, told),) = handler.handle(watch(2), Heartbeat(2), 2)
    assert (identity, type(told)) == (watch(2), Lost), "who comes back hears that it is out"
    assert refusal(handler.handle(watch(2), Reported(2, 9, Report()), 2))[0] is (
        RefusalKind.NOT_JOINED
    )
    assert handler.disconnected(watch(2), 2) == [], "and the other one lives on"
    assert handler.handle(NEW, Heartbeat(2), 2) == [(NEW, Heard())]


def test_one_that_has_left_may_come_back() -> None:
    handler = started(3)
    settle(handler, handler.handle(watch(1), Goodbye(1, is_finished=False), 0))
    assert arrive(handler, 1).rank == 1
    admitted(handler, 1)
    assert handler.dump(1).view.members == (0, 1, 2)


@pytest.mark.parametrize("rank", [0, 5])
def test_two_processes_cannot_be_one_rank(rank: int) -> None:
    handler = started(2)
    if rank == 5:
        arrive(handler, 5, b"the first one")
    kind, words = refusal(handler.handle(NEW, Arrive(rank, VERSION), 0))
    assert kind is RefusalKind.DUPLICATE
    assert f"another process came to join as rank {rank}" in words


def test_who_does_not_fit_is_refused_and_nobody_else_hears_of_it() -> None:
    kind, words = refusal(started(2).handle(NEW, Arrive(2, "0.0.9"), 0))
    assert kind is RefusalKind.MISMATCH
    assert words.startswith("This process runs version 0.0.9 of Shoal and the job")
    kind, words = refusal(started(2, None).handle(NEW, Arrive(2, VERSION), 0))
    assert kind is RefusalKind.MISMATCH
    assert "needs the workers that it began with" in words


def test_a_member_cannot_apply_again() -> None:
    handler = started(2)
    assert refusal(handler.handle(watch(1), Apply(1, 0), 0))[0] is RefusalKind.DUPLICATE


def test_a_way_that_cannot_be_opened_is_the_newcomers_business() -> None:
    handler = started(2)
    arrive(handler, 2)
    number = prepare(handler, 2).preparation.number
    told = handler.handle(watch(0), Prepared(0, number, "Rank 2 cannot be reached.", 7), 1)
    reason = "Rank 2 was not taken in: Rank 2 cannot be reached."
    assert told == [(watch(0), Done()), (NEW, Refused(reason, 7))]
    assert handler.dump(1).view.epoch == 0


def test_a_newcomer_that_dies_on_its_way_disturbs_nobody() -> None:
    handler = started(2)
    arrive(handler, 2)
    number = prepare(handler, 2).preparation.number
    assert handler.disconnected(NEW, 1) == []
    for rank in (0, 1):
        answers = handler.handle(watch(rank), Prepared(rank, number), 1)
        assert answers == [(watch(rank), Done())]


def test_a_member_that_dies_meanwhile_lets_the_others_prepare_anew() -> None:
    handler = started(3)
    arrive(handler, 3)
    prepare(handler, 3)
    proposed = handler.disconnected(watch(1), 1)
    assert {type(reply) for _, reply in proposed} == {Proposed}, "first they go on without it"
    decided = settle(handler, proposed)
    asked = {(identity, reply.preparation.ranks) for identity, reply in decided
             if isinstance(reply, Prepare)}  # fmt: skip
    assert asked == {(watch(0), (0, 2, 3)), (watch(2), (0, 2, 3)), (NEW, (0, 2, 3))}


def test_who_comes_when_all_others_end_is_refused() -> None:
    handler = started(1)
    arrive(handler, 1)
    preparation = prepare(handler, 1).preparation
    handler.handle(NEW, Prepared(1, preparation.number), 0)
    answers = handler.handle(watch(0), Prepared(0, preparation.number), 0)
    (number,) = {reply.proposal.number for _, reply in answers if isinstance(reply, Proposed)}
    handler.handle(NEW, Reported(1, number, None), 0)
    ending = Reported(0, number, Report({"run-1": Stage(9, is_ending=True)}))
    told = [reply for identity, reply in handler.handle(watch(0), ending, 0) if identity == NEW]
    assert told == [Refused("Rank 1 came when all others were ending.", 2)]


def test_a_rank_that_came_back_takes_part_in_groups_again() -> None:
    handler = started(2)
    config = GeneratorConfig(group_size=2)
    for rank in (0, 1):
        handler.handle(b"ask%d" % rank, Join("run", rank, 0, config, 1), 0)
    settle(handler, handler.disconnected(watch(1), 0))
    arrive(handler, 1)
    admitted(handler, 1)
    again = handler.handle(b"asks anew", Join("run", 1, 1, config, 1), 1)
    assert again == [(b"asks anew", Done())]
    assert refusal(handler.handle(b"ask1", GroupRequest("run", 1, 0), 1))[0] is (
        RefusalKind.NOT_JOINED
    ), "the one that was lost"


def test_what_is_said_of_a_lost_worker_is_not_its_successors() -> None:
    handler = started(3)
    settle(handler, handler.disconnected(watch(2), 0))
    arrive(handler, 2)
    late = Failed(0, 2, "their connection broke.", epoch=0)
    assert handler.handle(watch(0), late, 1) == [(watch(0), Done())]
    admitted(handler, 2)
    assert handler.handle(watch(0), late, 1) == [(watch(0), Done())]
    assert handler.handle(NEW, Heartbeat(2), 2) == [(NEW, Heard())], "it lives"
    now = Failed(0, 2, "their connection broke.", epoch=handler.dump(2).view.epoch)
    assert {type(reply) for _, reply in handler.handle(watch(0), now, 2)} == {Proposed, Done}
