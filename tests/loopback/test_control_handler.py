"""What the control plane does with messages, without sockets: rules, losses, and any garbage."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from control_handlers import handler_of
from shoal.control.handler import MAX_SESSIONS, ControlHandler
from shoal.control.messages import (
    Assigned,
    Decided,
    Done,
    Dump,
    DumpRequest,
    Failed,
    Goodbye,
    GroupRequest,
    Heard,
    Heartbeat,
    Join,
    Leave,
    Lost,
    Proposed,
    RefusalKind,
    Rejected,
    Reported,
    Request,
    Sampled,
    Shown,
    ShowRequest,
    Welcome,
    WorkerState,
    encode,
)
from shoal.groups import GeneratorConfig
from shoal.membership import Report, Stage
from shoal.watch import Snapshot, WorkerSample
from thoroughness import examples

if TYPE_CHECKING:
    from shoal.control.group_run import Answer

CONFIG = GeneratorConfig(group_size=3)
TIMEOUT_NS = 1_000


def ask(rank: int) -> bytes:
    """Name of the connection over which `rank` asks."""
    return b"ask%d" % rank


def watch(rank: int) -> bytes:
    """Name of the connection over which `rank` is watched."""
    return b"watch%d" % rank


def started(world_size: int, *sessions: str, min_members: int | None = None) -> ControlHandler:
    """Return a handler with all workers watched and in `sessions`."""
    handler = handler_of(world_size, TIMEOUT_NS, min_members=min_members)
    for rank in range(world_size):
        assert handler.handle(watch(rank), Heartbeat(rank), 0) == [(watch(rank), Welcome(0))]
        for name in sessions:
            joined = handler.handle(ask(rank), Join(name, rank, 0, CONFIG, 1), 0)
            assert joined == [(ask(rank), Done())]
    return handler


def refusal(answers: list[Answer]) -> tuple[RefusalKind, str]:
    ((_, reply),) = answers
    assert isinstance(reply, Rejected)
    return reply.kind, reply.reason


def test_a_group_is_answered_to_all_members_at_once() -> None:
    handler = started(3, "run")
    assert handler.handle(ask(1), GroupRequest("run", 1, 0), 1) == []
    assert handler.handle(ask(0), GroupRequest("run", 0, 0), 2) == []
    answers = handler.handle(ask(2), GroupRequest("run", 2, 0), 3)
    assert {identity for identity, _ in answers} == {ask(0), ask(1), ask(2)}
    replies = [reply for _, reply in answers]
    assert all(reply is replies[0] for reply in replies)  # so that it is encoded once
    assert isinstance(replies[0], Assigned)
    assert replies[0].members == (0, 1, 2)
    assert replies[0].session == "run"


def test_nobody_waits_for_one_who_died_while_it_was_joining() -> None:
    handler = started(2, min_members=1)
    assert handler.handle(ask(0), Join("run", 0, 0, CONFIG, 1), 0) == [(ask(0), Done())]
    (_, proposed), *_ = handler.disconnected(watch(1), 0)
    assert isinstance(proposed, Proposed)
    handler.handle(watch(0), Reported(0, proposed.proposal.number, Report()), 0)
    ((_, lost),) = handler.handle(ask(1), Join("run", 1, 0, CONFIG, 1), 0)
    assert isinstance(lost, Lost)
    ((_, alone),) = handler.handle(ask(0), GroupRequest("run", 0, 0), 1)
    assert isinstance(alone, Assigned)
    assert alone.members == (0,)


def test_members_that_owe_another_group_are_told() -> None:
    handler = handler_of(2, TIMEOUT_NS)
    config = GeneratorConfig.random_mode(2)
    for rank in range(2):
        handler.handle(ask(rank), Join("run", rank, 0, config, 0), 0)
    rng = random.Random(0)
    waiting: set[int] = set()
    owing = 0
    for now_ns in range(200):
        rank = rng.choice([rank for rank in range(2) if rank not in waiting])
        waiting.add(rank)
        for identity, reply in handler.handle(ask(rank), GroupRequest("run", rank, 0), now_ns):
            assert isinstance(reply, Assigned)
            waiting.discard(int(identity[-1:]))
            owing += reply.more
    assert 0 < owing < 200


def test_sessions_do_not_mix() -> None:
    handler = started(2, "one", "two")
    assert handler.handle(ask(0), GroupRequest("one", 0, 0), 1) == []
    # rank 0 waits in the first for rank 1, so in the second rank 1 does not wait for rank 0
    ((identity, alone),) = handler.handle(ask(1), GroupRequest("two", 1, 0), 1)
    assert (identity, alone) == (ask(1), Assigned("two", 0, (1,), "parted", more=False))
    answers = handler.handle(ask(1), GroupRequest("one", 1, 0), 1)
    assert [identity for identity, _ in answers] == [ask(0), ask(1)]


@pytest.mark.parametrize(
    ("join", "words"),
    [
        (Join("run", 2, 0, GeneratorConfig(group_size=4), 1), "with group_size=4 where rank 0 has"),
        (Join("run", 2, 0, CONFIG, 9), "with seed=9 where rank 0 has seed=1"),
    ],
)
def test_a_join_with_other_rules_is_refused_with_the_difference(join: Join, words: str) -> None:
    handler = handler_of(3, TIMEOUT_NS)
    handler.handle(ask(0), Join("run", 0, 0, CONFIG, 1), 0)
    kind, reason = refusal(handler.handle(ask(2), join, 0))
    assert kind is RefusalKind.MISMATCH
    assert words in reason
    assert reason.startswith("Rank 2 joins session 'run'")


def test_a_session_is_dropped_when_all_have_left_or_finished() -> None:
    handler = started(3, "run")
    handler.handle(ask(0), Leave("run", 0), 1)
    kind, _ = refusal(handler.handle(ask(0), Join("run", 0, 0, CONFIG, 1), 1))
    assert kind is RefusalKind.DUPLICATE
    handler.handle(ask(1), Leave("run", 1), 1)
    assert len(handler.dump(1).sessions) == 1
    handler.handle(watch(2), Goodbye(2), 1)
    assert handler.dump(1).sessions == ()
    assert handler.handle(ask(0), Join("run", 0, 0, CONFIG, 5), 1) == [(ask(0), Done())]


def test_a_worker_that_leaves_or_finishes_strands_nobody() -> None:
    handler = started(3, "run")
    handler.handle(ask(0), GroupRequest("run", 0, 0), 1)
    handler.handle(ask(1), GroupRequest("run", 1, 0), 1)
    answers = handler.handle(watch(2), Goodbye(2), 2)
    assert answers[0] == (watch(2), Done())
    assert {identity for identity, _ in answers[1:]} == {ask(0), ask(1)}


def test_silence_is_a_loss_told_once_to_everyone_else() -> None:
    handler = started(3, "run")
    handler.handle(ask(0), GroupRequest("run", 0, 0), 1)
    for rank in (0, 2):
        assert handler.handle(watch(rank), Heartbeat(rank), TIMEOUT_NS) == [(watch(rank), Heard())]
    assert handler.tick(TIMEOUT_NS) == []
    answers = handler.tick(TIMEOUT_NS + 1)
    assert [identity for identity, _ in answers] == [watch(0), watch(2), ask(0)]
    lost = answers[0][1]
    assert isinstance(lost, Lost)
    assert lost.rank == 1
    assert "Rank 1 was silent" in lost.reason
    assert handler.tick(TIMEOUT_NS + 2) == []
    for message in (GroupRequest("run", 2, 0), Join("new", 2, 0, CONFIG, 0), Leave("run", 2)):
        assert handler.handle(ask(2), message, TIMEOUT_NS + 2) == [(ask(2), lost)]


def test_a_lost_worker_that_wakes_up_is_told_once() -> None:
    handler = started(2)
    handler.handle(watch(0), Heartbeat(0), TIMEOUT_NS)
    handler.tick(TIMEOUT_NS + 1)
    ((identity, lost),) = handler.handle(watch(1), Heartbeat(1), TIMEOUT_NS + 2)
    assert identity == watch(1)
    assert isinstance(lost, Lost)
    assert lost.rank == 1
    assert handler.handle(watch(1), Heartbeat(1), TIMEOUT_NS + 3) == [(watch(1), Heard())]


def test_a_worker_that_connects_after_a_loss_is_told_instead_of_welcomed() -> None:
    handler = handler_of(2, TIMEOUT_NS)
    handler.handle(watch(0), Heartbeat(0), 0)
    handler.disconnected(watch(0), 0)
    ((_, reply),) = handler.handle(watch(1), Heartbeat(1), 1)
    assert isinstance(reply, Lost)


def test_a_closed_connection_is_a_loss_unless_its_worker_said_goodbye() -> None:
    handler = started(3)
    handler.handle(watch(0), Goodbye(0), 1)
    assert handler.disconnected(watch(0), 0) == []
    assert handler.disconnected(b"nobody", 0) == []
    assert [identity for identity, _ in handler.disconnected(watch(1), 0)] == [watch(2)]
    states = [worker.state for worker in handler.dump(1).workers]
    assert states == [WorkerState.FINISHED, WorkerState.LOST, WorkerState.ALIVE]


def test_a_finished_worker_may_be_silent_and_may_come_back() -> None:
    handler = started(2)
    handler.handle(watch(0), Goodbye(0), 1)
    handler.handle(watch(1), Heartbeat(1), 5 * TIMEOUT_NS)
    assert handler.tick(5 * TIMEOUT_NS) == []
    assert handler.handle(b"again", Heartbeat(0), 5 * TIMEOUT_NS) == [(b"again", Welcome(0))]


def test_workers_may_say_goodbye_after_a_loss_while_others_waited() -> None:
    handler = started(3, "run")
    handler.handle(ask(0), GroupRequest("run", 0, 0), 1)
    handler.disconnected(watch(2), 0)
    for rank in (1, 0):
        goodbye = handler.handle(watch(rank), Goodbye(rank), 2)
        assert goodbye == [(watch(rank), Done())]


def test_failures_are_passed_on_with_their_culprit() -> None:
    handler = started(3)
    answers = handler.handle(watch(0), Failed(0, 2, "connection reset"), 1)
    lost = Lost(2, "Rank 0 reports rank 2: connection reset")
    assert answers == [(watch(0), lost), (watch(1), lost), (watch(0), Done())]
    assert handler.dump(1).lost == lost


def test_after_a_loss_facts_are_passed_on_and_blame_is_not() -> None:
    handler = started(4)
    handler.disconnected(watch(3), 0)
    assert handler.handle(watch(0), Failed(0, 1, "reset"), 1) == [(watch(0), Done())]
    assert handler.dump(1).workers[1].state is WorkerState.ALIVE
    lost = Lost(2, "Rank 2 gave up: disk full")
    answers = handler.handle(watch(2), Failed(2, None, "disk full"), 1)
    assert answers == [(watch(0), lost), (watch(1), lost), (watch(2), Done())]
    first = handler.dump(1).lost
    assert first is not None
    assert first.rank == 3


def test_the_end_of_the_service_reaches_those_who_are_still_there() -> None:
    handler = started(3)
    handler.handle(watch(1), Goodbye(1), 1)
    lost = Lost(0, "gone")
    assert handler.shut_down(0, "gone") == [(watch(0), lost), (watch(2), lost)]


@pytest.mark.parametrize(
    ("identity", "message", "kind"),
    [
        (ask(0), GroupRequest("other", 0, 0), RefusalKind.NOT_JOINED),
        (ask(1), GroupRequest("run", 0, 0), RefusalKind.NOT_JOINED),
        (ask(1), Leave("run", 0), RefusalKind.NOT_JOINED),
        (ask(0), GroupRequest("run", 2, 0), RefusalKind.NO_SUCH_WORKER),
        (ask(0), Join("run", 0, 0, CONFIG, 1), RefusalKind.DUPLICATE),
        (b"twin", Heartbeat(0), RefusalKind.DUPLICATE),
        (b"twin", Goodbye(0), RefusalKind.NOT_JOINED),
        (watch(1), Failed(0, None, "spoof"), RefusalKind.NOT_JOINED),
        (watch(0), Failed(0, 2, "nobody"), RefusalKind.NO_SUCH_WORKER),
    ],
)
def test_misplaced_messages_are_refused_and_counted(
    identity: bytes, message: Request, kind: RefusalKind
) -> None:
    handler = started(2, "run")
    before = handler.dump(0).workers
    assert refusal(handler.handle(identity, message, 0))[0] is kind
    assert handler.dump(0).rejected == {str(kind): 1}
    assert handler.dump(0).workers == before


def test_a_second_request_before_the_answer_is_refused_and_the_first_stands() -> None:
    handler = started(2, "run")
    handler.handle(ask(0), GroupRequest("run", 0, 0), 0)
    assert refusal(handler.handle(ask(0), GroupRequest("run", 0, 0), 0))[0] is RefusalKind.DUPLICATE
    assert len(handler.handle(ask(1), GroupRequest("run", 1, 0), 0)) == 2


def test_the_number_of_sessions_is_bounded() -> None:
    handler = handler_of(1, TIMEOUT_NS)
    for number in range(MAX_SESSIONS):
        handler.handle(ask(0), Join(f"run-{number}", 0, 0, CONFIG, 0), 0)
    kind, _ = refusal(handler.handle(ask(0), Join("another", 0, 0, CONFIG, 0), 0))
    assert kind is RefusalKind.TOO_MANY


def test_the_dump_says_who_waits_for_how_long() -> None:
    handler = started(3, "run")
    ms = 1_000_000
    handler.handle(ask(2), GroupRequest("run", 2, 7), 1 * ms)
    handler.handle(ask(1), GroupRequest("run", 1, 4), 3 * ms)
    ((_, dump),) = handler.handle(b"anyone", DumpRequest(), 5 * ms)
    assert isinstance(dump, Dump)
    (session,) = dump.sessions
    assert [(it.rank, it.step, it.waited_ms) for it in session.waiting] == [(2, 7, 4), (1, 4, 2)]
    assert session.generator.counters.requests == 2
    assert [worker.silent_ms for worker in dump.workers] == [5, 5, 5]


@settings(max_examples=examples(500))
@given(st.binary(max_size=80))
def test_any_bytes_get_one_answer(payload: bytes) -> None:
    handler = handler_of(2, TIMEOUT_NS)
    assert [identity for identity, _ in handler.receive(b"x", payload, 0)] == [b"x"]


def test_twenty_thousand_damaged_messages_get_an_answer_and_are_counted() -> None:
    handler = started(2, "run")
    rng = random.Random(1)
    originals: list[bytes] = [
        encode(message)
        for message in (
            Join("run", 0, 0, CONFIG, 1),
            GroupRequest("run", 1, 5),
            Failed(0, None, "why"),
            DumpRequest(),
        )
    ]
    for _ in range(20_000):
        payload = bytearray(rng.choice(originals))
        for _ in range(rng.randint(1, 3)):
            match rng.randrange(3):
                case 0:
                    payload[rng.randrange(len(payload))] = rng.randrange(256)
                case 1:
                    payload.insert(rng.randrange(len(payload)), rng.randrange(256))
                case _:
                    del payload[rng.randrange(len(payload))]
        answers = handler.receive(b"stranger", bytes(payload), 0)
        for identity, reply in answers:
            encode(reply)
            assert identity == b"stranger"
    rejected = handler.dump(0).rejected
    assert rejected["malformed"] > 10_000
    assert rejected["not joined"] > 100
    assert handler.dump(0).lost is None


CONNECTIONS = st.sampled_from([ask(0), ask(1), ask(2), watch(0), watch(1), watch(2), b"other"])
RANKS = st.integers(0, 3)
NAMES = st.sampled_from(["one", "two"])
MESSAGES: st.SearchStrategy[Request] = st.one_of(
    st.builds(Join, NAMES, RANKS, st.integers(0, 1), st.just(CONFIG), st.just(0)),
    st.builds(GroupRequest, NAMES, RANKS, st.just(0)),
    st.builds(Leave, NAMES, RANKS),
    st.builds(Heartbeat, RANKS),
    st.builds(Goodbye, RANKS),
    st.builds(DumpRequest),
)


def test_an_elastic_job_goes_on_without_a_lost_worker() -> None:
    handler = started(4, "run", min_members=2)
    for rank in (0, 3):
        assert handler.handle(ask(rank), GroupRequest("run", rank, 0), 0) == []
    proposed = handler.disconnected(watch(2), 0)
    assert {identity for identity, _ in proposed} == {watch(0), watch(1), watch(3)}
    (proposal,) = {reply.proposal for _, reply in proposed}  # type: ignore[union-attr]
    assert proposal.members == (0, 1, 3)
    answers: list[Answer] = []
    for rank in proposal.members:
        said = Reported(rank, proposal.number, Report({"run": Stage(rank)}))
        done, *more = handler.handle(watch(rank), said, 1)
        assert done == (watch(rank), Done())
        answers += more
    decided = [(identity, reply) for identity, reply in answers if isinstance(reply, Decided)]
    assert {identity for identity, _ in decided} == {watch(0), watch(1), watch(3)}
    view = decided[0][1].decision.view
    assert (view.epoch, view.members) == (1, (0, 1, 3))

    answers += handler.handle(ask(1), GroupRequest("run", 1, 0), 2)
    groups = [reply for _, reply in answers if isinstance(reply, Assigned)]
    assert groups, "the generator goes on"
    assert all(2 not in group.members and group.epoch == 1 for group in groups)
    assert handler.dump(2).lost is None
    ((_, told),) = handler.handle(watch(2), Heartbeat(2), 3)
    assert isinstance(told, Lost), "it is out, should it live"


def test_a_worker_that_was_silent_for_too_long_learns_that_it_is_out() -> None:
    handler = started(3, min_members=1)
    for rank in (0, 1):
        handler.handle(watch(rank), Heartbeat(rank), TIMEOUT_NS)
    proposed = [who for who, it in handler.tick(TIMEOUT_NS + 1) if isinstance(it, Proposed)]
    assert proposed == [watch(0), watch(1)]
    ((identity, lost),) = handler.handle(watch(2), Heartbeat(2), TIMEOUT_NS + 2)
    assert identity == watch(2)
    assert isinstance(lost, Lost)
    assert lost.rank == 2
    assert refusal(handler.handle(watch(7), Heartbeat(7), 0))[0] is RefusalKind.NO_SUCH_WORKER


def test_below_its_least_number_of_workers_an_elastic_job_ends_for_all() -> None:
    handler = started(3, min_members=2)
    assert all(isinstance(reply, Proposed) for _, reply in handler.disconnected(watch(2), 0))
    ended = handler.disconnected(watch(1), 1)
    assert [(identity, type(reply)) for identity, reply in ended] == [(watch(0), Lost)]
    assert handler.dump(1).lost is not None


def test_whoever_has_finished_leaves_the_view() -> None:
    handler = started(3, min_members=1)
    done, *proposed = handler.handle(watch(0), Goodbye(0), 0)
    assert done == (watch(0), Done())
    assert {identity for identity, _ in proposed} == {watch(1), watch(2)}


class AnyOrder(RuleBasedStateMachine):
    """Any messages over any connections: every question gets its one answer, in its time."""

    def __init__(self) -> None:
        super().__init__()
        self.handler = started(3, "one")
        self.now_ns = 0
        self.open: Counter[bytes] = Counter()
        self.losses: Counter[tuple[bytes, int | None]] = Counter()
        self.groups: dict[tuple[str, int], Assigned] = {}

    def settle(self, asker: bytes | None, answers: list[Answer]) -> None:
        """Account for `answers` to a question of `asker`, if any."""
        for identity, reply in answers:
            if isinstance(reply, Assigned):
                known = self.groups.setdefault((reply.session, reply.group_id), reply)
                assert known.members == reply.members
                assert known.reason == reply.reason
            if isinstance(reply, Lost):
                self.losses[identity, reply.rank] += 1
            if self.open[identity]:
                self.open[identity] -= 1
            else:
                assert isinstance(reply, Lost), (asker, identity, reply)

    @rule(identity=CONNECTIONS, message=MESSAGES)
    def send(self, identity: bytes, message: Request) -> None:
        """Send a message; the questions among them await an answer."""
        self.now_ns += 1
        answers = self.handler.handle(identity, message, self.now_ns)
        if not isinstance(message, Heartbeat) or any(identity == to for to, _ in answers):
            self.open[identity] += 1
        self.settle(identity, answers)

    @rule(rank=st.integers(0, 2), more=st.integers(1, 3))
    def synchronize(self, rank: int, more: int) -> None:
        """Ask for groups as a well-behaved worker would, which random messages rarely do."""
        for other in range(rank, rank + more):
            self.send(ask(other % 3), GroupRequest("one", other % 3, 0))

    @rule(rank=st.integers(0, 2))
    def finish(self, rank: int) -> None:
        """Say goodbye as a well-behaved worker would."""
        self.send(watch(rank), Goodbye(rank))

    @rule(rank=st.integers(0, 2))
    def vanish(self, rank: int) -> None:
        """Close the connection a worker is watched over."""
        self.settle(None, self.handler.disconnected(watch(rank), 0))

    @rule(passed_ns=st.sampled_from([1, TIMEOUT_NS // 2, TIMEOUT_NS + 1]))
    def wait(self, passed_ns: int) -> None:
        """Let time pass."""
        self.now_ns += passed_ns
        self.settle(None, self.handler.tick(self.now_ns))

    @rule(payload=st.binary(max_size=20))
    def send_garbage(self, payload: bytes) -> None:
        """Send something that is no message."""
        self.open[b"garbage"] += 1
        self.settle(b"garbage", self.handler.receive(b"garbage", payload, self.now_ns))

    @invariant()
    def questions_and_answers_balance(self) -> None:
        """Whoever has no answer yet is in the dump as waiting, and nobody waits after a loss."""
        dump = self.handler.dump(self.now_ns)
        waiting = sum(len(session.waiting) for session in dump.sessions)
        assert dump.lost is None or waiting == 0
        assert sum(self.open.values()) >= waiting
        encode(dump)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=examples(200), stateful_step_count=20)


def sample() -> WorkerSample:
    return WorkerSample(
        training="run-1",
        strategy="all-reduce",
        is_lock_step=True,
        transport="gloo",
        epoch=0,
        step=7,
        num_steps=7,
        at_s=1.0,
        own_s=0.7,
        wait_s=0.0,
        exchange_s=0.1,
    )


def shown(handler: ControlHandler) -> Snapshot:
    ((_, reply),) = handler.handle(b"anybody", ShowRequest(1e9), 5_000_000_000)
    assert isinstance(reply, Shown)
    return msgspec.json.decode(reply.snapshot, type=Snapshot)


def test_a_worker_tells_of_its_training_without_an_answer() -> None:
    handler = started(2)
    assert shown(handler).workers[1].step is None
    assert handler.handle(watch(1), Sampled(1, sample()), 10) == []
    found = shown(handler)
    assert (found.workers[1].step, found.workers[1].state) == (7, "alive")
    assert (found.at_s, found.strategy, found.members) == (1e9, "all-reduce", (0, 1))


@pytest.mark.parametrize(
    ("identity", "rank"), [(ask(1), 1), (watch(0), 1), (b"stranger", 1), (watch(1), 99)]
)
def test_nobody_tells_of_another_ones_training_and_nobody_is_answered(
    identity: bytes, rank: int
) -> None:
    """A refusal would be taken for the answer to what that worker has asked before."""
    handler = started(2)
    assert handler.handle(identity, Sampled(rank, sample()), 10) == []
    assert all(each.step is None for each in shown(handler).workers)


def test_whoever_looks_sees_what_has_happened() -> None:
    handler = started(3, min_members=1)
    handler.disconnected(watch(2), 20)
    handler.handle(watch(0), Reported(0, 1, Report()), 30)
    handler.handle(watch(1), Reported(1, 1, Report()), 30)
    found = shown(handler)
    assert [each.kind for each in found.events] == ["began", "lost", "view"]
    assert found.events[1].text.startswith("Rank 2 closed its connection unexpectedly")
    assert found.members == (0, 1)
    assert [each.state for each in found.workers] == ["alive", "alive", "lost"]


def test_a_job_that_is_over_says_why() -> None:
    handler = started(2)
    handler.handle(watch(1), Failed(1, None, "out of memory"), 10)
    found = shown(handler)
    assert found.lost == "Rank 1 gave up: out of memory"
    assert found.verdicts[0].sentence == found.lost
