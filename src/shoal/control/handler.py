"""The control plane's handling of each message: state and a message in, replies out.

Owns the sessions, the workers' liveness and the counters. Knows no socket and no clock: the service
brings bytes, identities and the time, and sends the replies. Malformed or misplaced messages are
counted and answered, never raised. docs/papers.md, 3.4 (group generator as a service).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

import shoal
from shoal.control.appointment import Appointment
from shoal.control.departures import departure_of, how_it_left
from shoal.control.fact_table import FactTable
from shoal.control.group_run import Answer, GroupRun
from shoal.control.liveness import Liveness
from shoal.control.message_handler import MessageHandler
from shoal.control.messages import (
    Apply,
    Arrive,
    Arrived,
    Decided,
    Done,
    Dump,
    DumpRequest,
    Failed,
    Follow,
    Goodbye,
    GroupRequest,
    Heard,
    Heartbeat,
    Join,
    Leave,
    Left,
    Lost,
    Moved,
    Prepare,
    Prepared,
    Proposed,
    ReadFacts,
    Refresh,
    RefusalKind,
    Refused,
    Reply,
    Reported,
    Request,
    Sampled,
    SetFact,
    Shown,
    ShowRequest,
    StandBy,
    StandbyLost,
    Standing,
    Succeeded,
    Successor,
    Unfollow,
    Welcome,
    WorkerRequest,
)
from shoal.control.refusal import Refusal
from shoal.groups import waiting_for
from shoal.membership import Arrivals, CutOff, Decision, Proposal, TooFew
from shoal.membership import Refusal as NotTakenIn
from shoal.units import NANOSECONDS_PER_MILLISECOND, NANOSECONDS_PER_SECOND, ns_to_seconds
from shoal.watch import JobNow, Picture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shoal.control.terms import Terms
    from shoal.membership import Event, Membership, View

MAX_SESSIONS = 64
"""Sessions that may be open at once; more are a leak in the caller."""

_ABSENT: Final = (
    "The control plane was lost, and this worker did not come over in time to the one that stood"
    " by."
)

PATIENCE_NS: Final = 60 * NANOSECONDS_PER_SECOND
"""How long members may prepare to go on with newcomers, while training goes on."""


class ControlHandler(MessageHandler):
    """The control plane of one job, without its sockets; `membership` knows the members.

    `terms` are those of the job, and `keeper` the rank beside which it runs. A former standby
    brings its knowledge of the workers (`liveness`, `picture`), and the number of the last
    preparation.
    """

    def __init__(
        self,
        membership: Membership,
        terms: Terms,
        now_ns: int,
        *,
        keeper: int = 0,
        liveness: Liveness | None = None,
        picture: Picture | None = None,
        after_preparation: int = 0,
    ) -> None:
        super().__init__()
        self._membership = membership
        self._terms = terms
        self._arrivals = Arrivals(PATIENCE_NS, after_preparation)
        self._started_ns = now_ns
        self._liveness = liveness or Liveness(membership.view.members, terms.timeout_ns)
        hosts = dict(zip(membership.view.members, membership.view.hosts, strict=True))
        self._appointment = Appointment(keeper, hosts.get(keeper, -1))
        self._runs: dict[str, GroupRun] = {}
        self._facts = FactTable()
        self._picture = picture or Picture(ns_to_seconds(now_ns))
        if picture is None:
            self._note("began", f"The job begins with {terms.size} workers.", now_ns)
        self._lost: Lost | None = None
        """Why the job is over."""
        self._outside: dict[bytes, Lost] = {}
        """Why lost workers do not take part any more, by their connections: a new process may come
        in as the rank of one of them."""
        self._told: set[bytes] = set()
        self._moved: set[bytes] = set()
        """The connections of workers that have gone over to another control plane."""

    @property
    def is_fixed(self) -> bool:
        """Whether the job ends with its first loss."""
        return self._membership.is_fixed

    @property
    def is_deserted(self) -> bool:
        """Whether no worker is there any more."""
        return not self._liveness.alive()

    def tick(self, now_ns: int) -> list[Answer]:
        """Notice workers that have gone silent."""
        answers: list[Answer] = []
        for lost in self._liveness.silent(now_ns):
            answers += self._lose(lost, now_ns, has_ended=False)
        answers += self._heed(self._arrivals.poll(now_ns), now_ns)
        answers += self._heed(self._membership.poll(now_ns), now_ns)
        return answers + self._appoint()

    def disconnected(self, identity: bytes, now_ns: int) -> list[Answer]:
        """Note that a connection has closed: fatal if a worker that is alive was watched on it."""
        rank = self._liveness.rank_of(identity)
        if rank is None:
            return []
        reason = f"Rank {rank} closed its connection unexpectedly: its process has ended."
        has_ended = identity not in self._moved
        return self._lose(Lost(rank, reason), now_ns, has_ended=has_ended)

    def shut_down(self, rank: int | None, reason: str) -> list[Answer]:
        """Tell all workers that are still there that the control plane ends."""
        return self._tell(Lost(rank, reason), self._liveness.alive())

    def dump(self, now_ns: int) -> Dump:
        """Return the control plane's whole state."""
        return Dump(
            view=self._membership.view,
            up_ms=(now_ns - self._started_ns) // NANOSECONDS_PER_MILLISECOND,
            handled=self._handled,
            workers=self._liveness.dump(now_ns),
            sessions=tuple(run.dump(now_ns) for run in self._runs.values()),
            lost=self._lost,
            rejected={str(kind): count for kind, count in sorted(self._rejected.items())},
            strangers=self.strangers,
        )

    def show(self, now_ns: int, date_s: float) -> Callable[[], bytes]:
        """Return a function for any thread that makes a `Snapshot` of the job, in JSON."""
        view = self._membership.view
        requests: dict[int, int] = {}
        for run in self._runs.values():
            requests = run.compared_requests() or requests  # of the newest run that has begun
        job = JobNow(
            epoch=view.epoch,
            members=view.members,
            hosts=view.hosts,
            states=self._liveness.states(),
            requests=requests,
            lost="" if self._lost is None else self._lost.reason,
        )
        picture, now_s = self._picture.copy(), ns_to_seconds(now_ns)
        return lambda: msgspec.json.encode(picture.snapshot(job, now_s, date_s))

    def _act(self, identity: bytes, message: Request, now_ns: int) -> list[Answer]:
        if isinstance(message, DumpRequest):
            return [(identity, self.dump(now_ns))]
        if isinstance(message, ShowRequest):
            return [(identity, Shown(self.show(now_ns, message.date_s)()))]
        if isinstance(message, Sampled):
            self._on_sampled(identity, message, now_ns)
            return []
        if isinstance(message, SetFact | ReadFacts):
            return [(identity, self._lost or self._facts.act(message))]
        if isinstance(message, Arrive):
            return self._on_arrive(identity, message, now_ns)
        self._check_rank(message.rank)
        return self._act_for_worker(identity, message, now_ns)

    def _on_sampled(self, identity: bytes, message: Sampled, now_ns: int) -> None:
        """Take in a sample of the worker that is watched over this connection; it gets no answer.

        So a sample is never refused, either: a refusal would be taken for another message's answer.
        """
        if self._liveness.rank_of(identity) == message.rank:
            self._picture.take(message.rank, message.sample, ns_to_seconds(now_ns))

    def _act_for_worker(self, identity: bytes, message: WorkerRequest, now_ns: int) -> list[Answer]:
        match message:
            case Heartbeat():
                return self._on_heartbeat(identity, message, now_ns)
            case Goodbye():
                return self._on_goodbye(identity, message, now_ns)
            case Failed():
                return self._on_failed(identity, message, now_ns)
            case Reported():
                return self._on_reported(identity, message, now_ns)
            case Prepared():
                return self._on_prepared(identity, message, now_ns)
            case Refresh(rank, reason):
                self._check_watched(identity, rank)
                events = self._membership.refresh(rank, reason, now_ns)
                return [(identity, Done()), *self._heed(events, now_ns)]
            case Standing() | StandbyLost():
                return self._on_standing(identity, message)
            case Follow() | Moved() | Unfollow():
                return self._on_change_of_place(identity, message, now_ns)
        if self._lost is not None:
            return [(identity, self._lost)]
        return self._act_while_it_runs(identity, message, now_ns)

    def _act_while_it_runs(
        self, identity: bytes, message: GroupRequest | Join | Apply | Leave, now_ns: int
    ) -> list[Answer]:
        match message:
            case GroupRequest():
                return self._on_group_request(identity, message, now_ns)
            case Join():
                return self._on_join(identity, message)
            case Apply(rank, host):
                self._check_watched(identity, rank)
                if rank in self._membership:
                    raise Refusal(RefusalKind.DUPLICATE, f"Rank {rank} takes part already.")
                self._arrivals.come(rank, host)
                return [(identity, Done()), *self._heed((), now_ns)]
            case Leave():
                answers = self._run(message.session).leave(identity, message.rank, now_ns)
                self._drop_sessions()
                return [(identity, Done()), *answers]

    def _note(self, kind: str, text: str, now_ns: int) -> None:
        """Show viewers of the job what has happened."""
        self._picture.note(kind, text, ns_to_seconds(now_ns))

    def _run(self, name: str) -> GroupRun:
        if (run := self._runs.get(name)) is None:
            raise Refusal(RefusalKind.NOT_JOINED, f"No session {name!r} is open: join it first.")
        return run

    def _on_group_request(
        self, identity: bytes, message: GroupRequest, now_ns: int
    ) -> list[Answer]:
        """Ask the session; break the circle of waits across sessions that this may have closed."""
        run, rank = self._run(message.session), message.rank
        answers = run.request(identity, rank, message.step, now_ns)
        if answers or len(self._runs) == 1:
            return answers
        held = waiting_for(rank, self._awaited).intersection(run.awaited(rank))
        return run.part(rank, held, now_ns) if held else []

    def _awaited(self, rank: int) -> list[int]:
        """Return the workers that `rank` waits for, in whichever session."""
        return [other for run in self._runs.values() for other in run.awaited(rank)]

    def _on_join(self, identity: bytes, message: Join) -> list[Answer]:
        if self._liveness.is_lost(message.rank):  # perhaps it sent this before it died
            reason = f"Rank {message.rank} is lost: the others go on without it."
            return [(identity, Lost(message.rank, reason))]
        run = self._runs.get(message.session)
        if run is None:
            if len(self._runs) >= MAX_SESSIONS:
                sentence = f"{MAX_SESSIONS} sessions are open: leave one before joining another."
                raise Refusal(RefusalKind.TOO_MANY, sentence)
            run = self._runs[message.session] = GroupRun(message)
            run.epoch = self._membership.epoch_of_groups
        run.join(identity, message)
        return [(identity, Done())]

    def _on_arrive(self, identity: bytes, message: Arrive, now_ns: int) -> list[Answer]:
        if self._lost is not None:
            return [(identity, self._lost)]
        if self.is_fixed:
            sentence = (
                "Nobody can join this job: it needs the workers that it began with, to the end;"
                " begin one with shoal.init(min_workers=...)."
            )
            raise Refusal(RefusalKind.MISMATCH, sentence)
        if message.version != shoal.__version__:
            sentence = (
                f"This process runs version {message.version} of Shoal and the job that it came to"
                f" join {shoal.__version__}; install the same one everywhere."
            )
            raise Refusal(RefusalKind.MISMATCH, sentence)
        rank = self._liveness.admit(identity, message.rank, now_ns)
        self._picture.forget(rank)
        self._note("arrived", f"Rank {rank} has come to join.", now_ns)
        arrived = Arrived(rank, self._terms.size, self._membership.view, self._terms.timeout_ms)
        return [(identity, arrived), *self._successor_for([identity])]

    def _on_prepared(self, identity: bytes, message: Prepared, now_ns: int) -> list[Answer]:
        self._check_watched(identity, message.rank)
        events: list[Event] = []
        if message.error:
            events += self._arrivals.failed(message.number, message.error, message.code)
        for rank, host in self._arrivals.prepared(message.rank, message.number).items():
            reason = f"Rank {rank} has joined."
            events += self._membership.join(rank, host, reason, now_ns, way=message.number)
        return [(identity, Done()), *self._heed(events, now_ns)]

    def _on_heartbeat(self, identity: bytes, message: Heartbeat, now_ns: int) -> list[Answer]:
        lost = self._outside.get(identity) or self._lost
        is_new = False
        self._picture.hear(message.rank, message.blocked_ms)
        if lost is None or self._liveness.rank_of(identity) is not None:
            is_new = self._liveness.heartbeat(identity, message.rank, now_ns, message.progress)
        if lost is not None and identity not in self._told:
            return self._tell(lost, [identity])
        if not is_new:
            return [(identity, Heard())]
        return [(identity, Welcome(self._terms.timeout_ms)), *self._successor_for([identity])]

    def _on_goodbye(self, identity: bytes, message: Goodbye, now_ns: int) -> list[Answer]:
        rank = message.rank
        self._check_watched(identity, rank)
        self._liveness.goodbye(rank, is_finished=message.is_finished)
        answers: list[Answer] = [(identity, Done())]
        if self.is_fixed:
            how = how_it_left(is_finished=message.is_finished)
            self._facts.act(SetFact(departure_of(rank), how))
        if not message.is_finished:
            answers += [(other, Left(rank)) for other in self._liveness.alive()]
        if self._lost is None:  # otherwise no session forms groups any more
            for run in self._runs.values():
                answers += run.remove(rank, now_ns)
            self._drop_sessions()
            reason = f"Rank {rank} has {'finished' if message.is_finished else 'left'}."
            self._note("finished" if message.is_finished else "left", reason, now_ns)
            self._arrivals.gone(rank)
            self._appointment.gone(rank)
            events = self._membership.leave(rank, reason, now_ns, has_finished=message.is_finished)
            answers += self._heed(events, now_ns)
        return answers

    def _on_failed(self, identity: bytes, message: Failed, now_ns: int) -> list[Answer]:
        self._check_watched(identity, message.rank)
        if message.culprit is None:
            self._told.add(identity)
            lost = Lost(message.rank, f"Rank {message.rank} gave up: {message.reason}")
            return [*self._lose(lost, now_ns, has_ended=True), (identity, Done())]
        self._check_rank(message.culprit)
        if self._lost is not None:
            # Workers that stop because of a loss break their connections to healthy workers.
            return [(identity, Done())]
        is_old = message.epoch < self._membership.view.epoch
        if not self.is_fixed and (is_old or message.culprit not in self._membership):
            return [(identity, Done())]  # the culprit is gone; another process may have its rank
        sentence = f"Rank {message.rank} reports rank {message.culprit}: {message.reason}"
        lost = Lost(message.culprit, sentence)
        return [*self._lose(lost, now_ns, has_ended=False), (identity, Done())]

    def _on_reported(self, identity: bytes, message: Reported, now_ns: int) -> list[Answer]:
        self._check_watched(identity, message.rank)
        events = self._membership.report(message.rank, message.number, message.report, now_ns)
        return [(identity, Done()), *self._heed(events, now_ns)]

    def _check_rank(self, rank: int) -> None:
        if not self._liveness.knows(rank):
            sentence = f"There is no rank {rank} in a job of {self._terms.size} workers."
            raise Refusal(RefusalKind.NO_SUCH_WORKER, sentence)

    def _check_watched(self, identity: bytes, rank: int) -> None:
        if self._liveness.rank_of(identity) != rank:
            sentence = f"Rank {rank} is not watched over this connection: send a heartbeat first."
            raise Refusal(RefusalKind.NOT_JOINED, sentence)

    def _lose(self, lost: Lost, now_ns: int, *, has_ended: bool) -> list[Answer]:
        """Mark a worker as lost, once; return what follows for the job.

        That its process `has_ended` may become known later than that it is lost.
        """
        if lost.rank is None:
            return []
        if self._liveness.is_lost(lost.rank):
            events = self._membership.ended(lost.rank, now_ns) if has_ended else []
            return self._heed(events, now_ns)
        self._note("lost", lost.reason, now_ns)
        self._liveness.lose(lost.rank)
        self._arrivals.gone(lost.rank)
        self._appointment.gone(lost.rank)
        self._outside[self._liveness.identity_of(lost.rank)] = lost
        events = self._membership.lose(lost.rank, lost.reason, now_ns, has_ended=has_ended)
        return self._heed(events, now_ns)

    def _heed(self, events: Iterable[Event], now_ns: int) -> list[Answer]:
        """Act on events of the membership; let newcomers in when no change is under way."""
        answers: list[Answer] = []
        for event in events:
            match event:
                case TooFew(change):
                    answers += self._end(Lost(change.rank, change.reason))
                case CutOff(reason):
                    answers += self._leave_outside(reason)
                case Proposal():
                    answers += self._to(event.members, Proposed(event))
                case Decision():
                    self._note("view", event.view.sentence, now_ns)
                    answers += self._to(event.view.members, Decided(event))
                    answers += self._go_on_in(event.view, now_ns)
                case NotTakenIn(rank, reason, code):
                    answers += self._to([rank], Refused(reason, code))
        if self._membership.proposal is None and self._lost is None:
            preparation = self._arrivals.begin(self._membership.view.members, now_ns)
            if preparation is not None:
                answers += self._to(preparation.ranks, Prepare(preparation))
        return answers

    def _end(self, lost: Lost) -> list[Answer]:
        """Tell all live workers, and those that wait for a group, that the job cannot go on."""
        self._lost = self._lost or lost
        answers = self._tell(lost, self._liveness.alive())
        for run in self._runs.values():
            answers += [(identity, lost) for identity in run.abandon()]
        return answers

    def take_over(
        self, absent: Iterable[int], events: Iterable[Event], now_ns: int
    ) -> list[Answer]:
        """Begin in place of a control plane that is lost, without the ranks `absent`."""
        text = f"The control plane has moved to the machine of rank {self._appointment.keeper}."
        self._note("moved", text, now_ns)
        for rank in absent:
            identity = self._liveness.identity_of(rank)
            self._liveness.lose(rank)
            self._outside[identity] = Lost(rank, _ABSENT)
        answers: list[Answer] = [(identity, Succeeded()) for identity in self._liveness.alive()]
        return answers + self._heed(events, now_ns)

    def _on_change_of_place(
        self, identity: bytes, message: Follow | Moved | Unfollow, now_ns: int
    ) -> list[Answer]:
        """Act on a worker that goes over to another control plane, or comes late to this one."""
        rank = message.rank
        if not isinstance(message, Follow):
            self._check_watched(identity, rank)
            self._moved.add(identity)
            reason = f"Rank {rank} has heard nothing of this control plane, and left it."
            return self._lose(Lost(rank, reason), now_ns, has_ended=False)
        if self._liveness.rank_of(identity) == rank or not self._liveness.is_lost(rank):
            return self._on_heartbeat(identity, Heartbeat(rank), now_ns)
        return [(identity, Lost(rank, _ABSENT))]

    def _leave_outside(self, reason: str) -> list[Answer]:
        """Tell each live worker that it is out, for others may go on without it."""
        self._lost = Lost(None, reason)
        there = self._liveness.alive()
        self._told.update(there)
        return [(each, Lost(self._liveness.rank_of(each), reason)) for each in there]

    def _appoint(self) -> list[Answer]:
        """Ask a worker to stand by, once all are there."""
        if self.is_fixed or self._lost is not None or self._liveness.are_expected:
            return []
        members = self._membership.view.members
        rank = self._appointment.ask(
            self._membership.view, [each for each in members if self._liveness.is_alive(each)]
        )
        if rank is None:
            return []
        return self._to([rank], StandBy(self._terms))

    def _on_standing(self, identity: bytes, message: Standing | StandbyLost) -> list[Answer]:
        self._check_watched(identity, message.rank)
        answers: list[Answer] = [(identity, Done())]
        match message:
            case Standing(rank, endpoint):
                if self._appointment.stands(rank, endpoint):
                    answers += self._successor_for(self._liveness.alive())
            case StandbyLost(_, endpoint):
                self._appointment.lost(endpoint)
        return answers

    def _successor_for(self, identities: Iterable[bytes]) -> list[Answer]:
        """Return the standby's address, for these connections, if there is one."""
        if not self._appointment.endpoint:
            return []
        successor = Successor(self._appointment.endpoint)
        return [(identity, successor) for identity in identities]

    def _to(self, members: Iterable[int], reply: Reply) -> list[Answer]:
        """Return `reply` for the connections on which `members` are watched."""
        return [(self._liveness.identity_of(rank), reply) for rank in members]

    def _go_on_in(self, view: View, now_ns: int) -> list[Answer]:
        """Let the generators go on without the workers that are gone."""
        answers: list[Answer] = []
        for run in self._runs.values():
            run.epoch = view.epoch
            answers += run.keep(view.members, now_ns)
        self._drop_sessions()
        return answers

    def _tell(self, lost: Lost, identities: Iterable[bytes]) -> list[Answer]:
        answers: list[Answer] = [(identity, lost) for identity in identities]
        self._told.update(identity for identity, _ in answers)
        return answers

    def _drop_sessions(self) -> None:
        """Forget the sessions that all workers have left."""
        finished, members = self._liveness.finished(), self._membership.view.members
        for name in [n for n, s in self._runs.items() if s.is_over(members, finished)]:
            del self._runs[name]
