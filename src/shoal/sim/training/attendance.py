"""Who takes part in a simulated job while workers die, stand still and come: the runtime's rules.

What is decided, the job's control plane decides: `control.ControlHandler` itself, in virtual time.
This file only carries its messages, each as long as half an answer of it takes, and lets workers
do what `control.Member` does: end what is under way, report, go on in the next view. A member hands
its state on to a newcomer over the simulated network (`train.handing_on`).

Knows no strategy: those end and begin what workers do together (`AbstractExecutor`). Times are
picoseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import shoal
from shoal.control import (
    Apply,
    Arrive,
    Arrived,
    ControlHandler,
    Decided,
    Heartbeat,
    Lost,
    Prepare,
    Prepared,
    Proposed,
    Refused,
    Rejected,
    Reported,
    WorkerState,
)
from shoal.errors import UsageError
from shoal.membership import Report, Stage
from shoal.sim.training.event_log import EventLog
from shoal.sim.training.executor import TRAINING
from shoal.sim.training.lives import Lives
from shoal.sim.virtual_time import Signal
from shoal.switching import PICOSECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shoal.control import Answer, Reply, Request, Terms
    from shoal.membership import Decision, Preparation, Proposal, View
    from shoal.scenario import WorkerEvent
    from shoal.sim.training.executor import AbstractExecutor
    from shoal.sim.training.world import World
    from shoal.sim.virtual_time import Process

_PER_NANOSECOND: Final = 1_000


@final
class Attendance:
    """The members of a world's job, which goes on by these `terms` whatever `events` happen.

    Raises `UsageError` in the run if the terms do not let the job go on.
    """

    def __init__(
        self,
        world: World,
        executor: AbstractExecutor,
        terms: Terms,
        events: Sequence[WorkerEvent],
    ) -> None:
        self.lives = Lives(world.time)
        self.log = EventLog(world, events)
        self._world, self._executor, self._terms = world, executor, terms
        self._membership = terms.membership(world.view)
        self._handler = ControlHandler(self._membership, terms, 0)
        self._way = world.control_delay // 2
        self._proposal: Proposal | None = None
        self._settled = Signal()
        self._lines: dict[int, bytes] = {}
        """The connections of those who run, as the control plane knows them."""
        self._watched: set[int] = set()
        """The ranks whose heartbeats the control plane waits for."""
        self._lost: set[int] = set()
        """The ranks that live, are out, and do not know it yet."""
        self._unheard: dict[int, list[Reply]] = {}
        """What workers have not heard yet since they stand still."""
        self._ending: set[int] = set()
        self._ended: set[int] = set()
        self._lacking: set[int] = set()
        """The members that have no state to go on from yet."""
        self._owing: dict[int, int] = {}
        """The member that has not begun to hand its state on, by the newcomer that lacks it."""
        self._handing_on: list[Process] = []
        """What sends states to newcomers."""
        self._taken_in: dict[int, Signal] = {}
        """What newcomers wait for: True if they have what they go on from."""
        for rank in world.view.members:
            self._open_line(rank)
            self._watched.add(rank)
            self._tell(rank, Heartbeat(rank))

    @property
    def is_fenced(self) -> bool:
        """Whether the view is about to change, so that nothing may begin or count in it."""
        return self._proposal is not None

    @property
    def is_anyone_training(self) -> bool:
        """Whether a member makes steps of its own."""
        return not self._ending.issuperset(self._world.view.members)

    def is_in(self, view: View) -> bool:
        """Return whether `view` is the present one, and not about to change."""
        return not self.is_fenced and self._world.view.epoch == view.epoch

    def settled(self) -> Process:
        """Wait until the view is not about to change."""
        while self.is_fenced:
            yield self._settled

    def happen(self) -> Process:
        """Let the events happen when they are due."""
        for number, event in enumerate(self.log.events):
            yield max(0, round(event.at_s * PICOSECONDS) - self._world.time.now)
            if event.what == "join":
                self.log.fire(number, [event.rank])
                self._come(event.rank)
                continue
            why_not = self._why_not(event)
            if why_not:
                self.log.remark(number, why_not)
                continue
            others = [rank for rank in self._world.view.members if rank != event.rank]
            self.log.fire(number, [rank for rank in others if rank not in self._ending])
            if event.what == "kill":
                self._kill(event.rank)
            else:
                self._freeze(event.rank)
                lasts = round(event.lasts_s * PICOSECONDS)
                self._world.time.begin(self._thaw(event.rank, self._lines[event.rank], lasts))

    def _why_not(self, event: WorkerEvent) -> str:
        """Return why an event has nobody to happen to; nothing if it has."""
        if event.rank not in self._lines:
            return "the worker was not there"
        if event.what == "freeze" and self.lives.is_standing(event.rank):
            return "the worker stood still already"
        return ""

    def note_step(self, rank: int) -> None:
        """Note that a worker has made a step."""
        self.log.note_step(rank)

    def note_ending(self, rank: int) -> None:
        """Note that a worker makes no more steps of its own."""
        self._ending.add(rank)
        self.log.forget(rank)

    def note_ended(self, rank: int) -> None:
        """Note that a worker knows that nobody trains any more."""
        self._ended.add(rank)
        self.at_border(rank)

    def check_ended(self) -> None:
        """Raise `UsageError` if nobody has come to the end.

        And `AssertionError` if somebody who could train waits for ever.
        """
        if not self._ending:
            raise self.over("Nobody is left.")
        waiting = [
            rank
            for rank in self._lines
            if rank not in self._ending and not self.lives.is_standing(rank)
        ]
        assert not waiting, waiting

    def at_border(self, rank: int) -> None:
        """Let a worker hand its state on if a newcomer waits for it: nothing is half done here."""
        if self._owing and not self.is_fenced:
            for taker in [each for each, donor in self._owing.items() if donor == rank]:
                del self._owing[taker]
                self._hand_on(rank, taker)

    # What happens to workers.

    def _open_line(self, rank: int) -> None:
        self._lines[rank] = f"{rank} since {self._world.time.now}".encode()
        self._unheard[rank] = []

    def _kill(self, rank: int) -> None:
        """Let a worker's process end; the control plane hears of that at once."""
        line = self._lines.pop(rank)
        self._end(rank)
        if self.lives.is_standing(rank):
            self.lives.go_on(rank)
        self._world.time.begin(self._close(line))

    def _end(self, rank: int) -> None:
        self.lives.end(rank)
        self.log.forget(rank)
        self._watched.discard(rank)
        self._taken_in.pop(rank, None)

    def _close(self, line: bytes) -> Process:
        yield self._way
        self._carry(self._handler.disconnected(line, self._now_ns))

    def _freeze(self, rank: int) -> None:
        """Let a worker stand still; its last heartbeat was when it was due last."""
        if not any(map(self.lives.is_standing, self._lines)):
            self._world.time.begin(self._look_for_silence())
        self.lives.stop(rank)
        beat = self._terms.heartbeat_ns
        now = self._now_ns
        self._handler.handle(self._lines[rank], Heartbeat(rank), now - now % beat)

    def _thaw(self, rank: int, line: bytes, lasts: int) -> Process:
        """Let a worker go on after `lasts`; one that was lost meanwhile comes again."""
        yield lasts
        if self._lines.get(rank) != line or not self.lives.is_standing(rank):
            return  # it was killed, or goes on already
        self.lives.go_on(rank)
        if rank in self._lost:
            self._come(rank)
            return
        self._tell(rank, Heartbeat(rank))
        unheard, self._unheard[rank] = self._unheard[rank], []
        for reply in unheard:
            self._hear(rank, reply)

    def _look_for_silence(self) -> Process:
        """Look who is silent, as often as the control plane does, while somebody stands still.

        The heartbeats of the others come in time; nobody carries them.
        """
        tick = self._terms.tick_ms * PICOSECONDS // 1_000
        while any(map(self.lives.is_standing, self._lines)) or self._membership.proposal:
            yield tick - self._world.time.now % tick
            for rank, line in self._lines.items():
                if not self.lives.is_standing(rank):
                    self._handler.handle(line, Heartbeat(rank), self._now_ns)
            self._carry(self._handler.tick(self._now_ns))
            for each in self._handler.dump(self._now_ns).workers:
                if each.state is WorkerState.LOST and each.rank in self._watched:
                    self._lose(each.rank)

    def _lose(self, rank: int) -> None:
        """Let a worker end that is lost and lives; once it can hear that it is out it comes again.

        Nothing that it still does counts.
        """
        self._end(rank)
        self._lost.add(rank)
        if not self.lives.is_standing(rank):
            self._come(rank)

    def _come(self, rank: int) -> None:
        """Let a process come to the job as `rank`."""
        self._open_line(rank)
        self._lost.discard(rank)
        self._ending.discard(rank)
        self._ended.discard(rank)
        self.lives.begin(rank, self._join(rank), awaited=True)

    def _join(self, rank: int) -> Process:
        taken_in = self._taken_in[rank] = Signal()
        self._tell(rank, Arrive(rank, shoal.__version__))
        if (yield taken_in):
            yield from self._executor.worker(rank)

    # What the control plane says, and is told.

    @property
    def _now_ns(self) -> int:
        return self._world.time.now // _PER_NANOSECOND

    def _tell(self, rank: int, message: Request) -> None:
        """Let the control plane hear of a message once it has come there."""
        self._world.time.begin(self._send(self._lines[rank], message))

    def _send(self, line: bytes, message: Request) -> Process:
        if self._world.time.now:
            yield self._way
        self._carry(self._handler.handle(line, message, self._now_ns))

    def _carry(self, answers: Iterable[Answer]) -> None:
        answers = list(answers)
        if answers:
            self._world.time.begin(self._deliver(answers))

    def _deliver(self, answers: Sequence[Answer]) -> Process:
        yield self._way
        rank_of = {line: rank for rank, line in self._lines.items()}
        for line, reply in answers:
            if (rank := rank_of.get(line)) is None:
                continue
            if self.lives.is_standing(rank):
                self._unheard[rank].append(reply)
            else:
                self._hear(rank, reply)

    def _hear(self, rank: int, reply: Reply) -> None:
        match reply:
            case Arrived():
                self._watched.add(rank)
                self._tell(rank, Apply(rank, self._world.host_of[rank]))
            case Prepare(preparation):
                self.lives.begin(rank, self._prepare(rank, preparation))
            case Proposed(proposal):
                self._fence(proposal)
                self._tell(rank, Reported(rank, proposal.number, self._report(rank)))
            case Decided(decision):
                self._install(decision)
            case Refused(reason) | Rejected(_, reason):
                self._refuse(rank, reason)
            case Lost(_, reason):
                raise self.over(
                    f"{reason} Fewer workers are left than min_workers says, or too few to know"
                    " that no others go on."
                )

    def over(self, why: str) -> UsageError:
        """Return the error with which the job ends now."""
        seconds = self._world.time.now / PICOSECONDS
        return UsageError(f"The job ends after {seconds:g} s of virtual time: {why}")

    def _refuse(self, rank: int, reason: str) -> None:
        if (taken_in := self._taken_in.pop(rank, None)) is not None:
            self.log.remark_on(rank, reason)
            self._lines.pop(rank)
            self._world.time.give(taken_in, value=False)

    def _prepare(self, rank: int, preparation: Preparation) -> Process:
        """Open the ways among those to come: there and back to the farthest."""
        host_of, network = self._world.host_of, self._world.time.network
        ways = [network.delay(host_of[rank], host_of[other]) for other in preparation.ranks]
        yield 2 * max(ways)
        self._tell(rank, Prepared(rank, preparation.number))

    def _fence(self, proposal: Proposal) -> None:
        """Let nothing of the view complete any more."""
        if not self.is_fenced:
            self._executor.drop()
            for process in self._handing_on:  # whoever is in the next view gets it from one there
                self._world.time.end(process)
            self._handing_on.clear()
        self._proposal = proposal

    def _report(self, rank: int) -> Report | None:
        if rank in self._taken_in:
            return None
        stage = Stage(
            self._executor.courses[rank].report(),
            is_ending=rank in self._ending,
            has_ended=rank in self._ended,
        )
        return Report({TRAINING: stage}, self._executor.notes(rank))

    def _install(self, decision: Decision) -> None:
        """Let all go on in the view that is decided; the first to hear of it does so for all."""
        world = self._world
        if decision.view.epoch <= world.view.epoch:
            return
        if not decision.reports:
            raise self.over("All who had a model were lost before one handed it on.")
        self._proposal = None
        world.view = decision.view_of(TRAINING)
        self.lives.gone -= set(world.view.members)
        self._lacking = set(decision.newcomers)
        # one gives it all: it is the newcomer's port that the others would share
        self._owing = {taker: givers[0] for taker, givers in decision.donors(TRAINING).items()}
        world.learner.attend([rank for rank in world.view.members if rank not in self._lacking])
        for taker, donor in self._owing.items():  # nobody is behind before it has begun
            world.times[taker].ahead = world.times[donor].position - world.times[taker].steps
        self._executor.install(decision)
        world.count("views")
        self.log.note_view(decision.changes)
        settled, self._settled = self._settled, Signal()
        world.time.give(settled)
        for rank in self._ended.intersection(self._owing.values()):
            self.at_border(rank)

    def _hand_on(self, donor: int, taker: int) -> None:
        """Begin to send what a newcomer lacks, as it is now."""
        self._world.learner.hand_on(donor, taker)
        state = self._executor.handed_on(donor)
        position = self._world.times[donor].position
        process = self._send_state(donor, taker, state, position)
        self._handing_on.append(process)
        self._world.time.begin(process)

    def _send_state(self, donor: int, taker: int, state: dict[str, Any], position: int) -> Process:
        world, began = self._world, self._world.time.now
        size = world.model.bytes * (1 + world.learner.state_per_parameter)
        yield world.send(donor, [taker], [size])
        yield from self.lives.held_up((donor, taker), began)
        self._lacking.discard(taker)
        members = world.view.members
        world.learner.attend([rank for rank in members if rank not in self._lacking])
        world.times[taker].come_back(position, world.time.now)
        self._executor.take_over(taker, state)
        world.count("handed_on_bytes", size)
        world.time.give(self._taken_in.pop(taker), value=True)
