"""The faults of a history: what strikes when, as far as what is promised covers it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulated import stand_ins
from simulated.stage import DEADLINE_S
from simulated.world import NS, Process

if TYPE_CHECKING:
    from simulated.job import Job, Worker

FAULTS = (
    "kill",
    "freeze",
    "pause",
    "leave",
    "cut_off",
    "kill_control",
    "freeze_control",
    "pause_control",
    "kill_standby",
    "kill_both_controls",
    "join_in",
    "join_in",
)


class Faults:
    """What is to strike a job, and what has."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.fired: list[str] = []
        """What has struck, in order."""
        self._calm_until_ns = 0
        """The time until which nothing else strikes."""
        self._rested_at_ns: dict[Process, int] = {}
        """When a process that has been paused may be paused again."""
        self.planned = sorted(self._plan())

    def _plan(self) -> list[tuple[int, int, str]]:
        """Return what is to strike: after which step of anybody's, in which order."""
        count = self.job.random.choice((0, 1, 1, 2, 2, 3))
        last = self.job.num_steps
        steps = [*range(last + 1), *[last] * (last // 2)]  # much is agreed on at the end
        return [
            (self.job.random.choice(steps), place, self.job.random.choice(FAULTS))
            for place in range(count)
        ]

    def strike(self, step: int) -> None:
        """Let what is due after a step strike, soon."""
        while self.planned and self.planned[0][0] <= step:
            _, _, fault = self.planned.pop(0)
            self._later(fault)

    def _later(self, fault: str) -> None:
        delay_ns = round(self.job.random.expovariate(1 / 0.01) * NS)
        self.job.world.after(delay_ns, lambda: self._try(fault))

    def _try(self, fault: str) -> None:
        """Let a fault strike, if what is promised covers it just now; else later."""
        if self.job.is_done:
            return
        is_calm = self.job.world.now_ns < self._calm_until_ns
        if not is_calm and getattr(self, f"_{fault}")():
            self.fired.append(fault)
            if self.job.is_patient and fault in ("kill", "leave", "freeze", "cut_off"):
                self.job.world.after(NS, self._replace)
        else:
            self._later(fault)

    @property
    def _well(self) -> list[Worker]:
        return [each for each in self.job.workers if each.is_well]

    def _may_lose(self, *workers: Worker, silently: bool) -> bool:
        """Return whether the others have a quorum then, and somebody of those that began is left.

        Newcomers that are not members yet count for nobody.
        """
        rest = [each for each in self._well if each not in workers and _is_member(each)]
        if not rest or not all(_is_member(each) or each.is_newcomer for each in self._well):
            return False
        silent = {each.rank for each in self.job.workers if each.is_silent}
        if silently:
            silent |= {each.rank for each in workers}
        return len(rest) > len(silent)

    def _kill(self) -> bool:
        """Kill a worker."""
        victim = self.job.random.choice(self._well)
        if not self._may_lose(victim, silently=False):
            return False
        victim.was_disturbed = True
        victim.process.die()
        return True

    def _freeze(self) -> bool:
        """Let a worker stand still for good, or come to itself once it is out."""
        victim = self.job.random.choice(self._well)
        if not self._may_lose(victim, silently=True):
            return False
        victim.was_disturbed = victim.is_silent = victim.process.is_frozen = True
        if self.job.random.random() < 0.5:
            self.job.world.after(round(2 * DEADLINE_S * NS), lambda: self._thaw(victim.process))
        return True

    def _pause(self) -> bool:
        """Let a worker stand still for less than it takes to be lost."""
        return self._stand_still(self.job.random.choice(self._well).process)

    def _stand_still(self, process: Process) -> bool:
        """Pause a process, unless it has hardly gone on: two pauses together are too long a one."""
        now_ns = self.job.world.now_ns
        if now_ns < self._rested_at_ns.get(process, 0):
            return False
        length_ns = round(0.3 * DEADLINE_S * NS)
        self._rested_at_ns[process] = now_ns + 3 * length_ns
        process.is_frozen = True
        self.job.world.after(length_ns, lambda: self._thaw(process))
        return True

    @staticmethod
    def _thaw(process: Process) -> None:
        process.is_frozen = False

    def _cut_off(self) -> bool:
        """Cut a host off, with all that is on it: a control plane maybe."""
        host = self.job.random.choice(self.job.hosts)
        there = [
            each
            for each in self.job.workers
            if each.process.host is host and not (each.outcome or each.process.is_dead)
        ]
        if host.is_cut_off or not self._may_lose(*there, silently=True):
            return False
        serving, standing = self._serving(), self._standing_by()
        if serving is None or not serving.runs or serving.host.is_cut_off:
            return False  # a successor is about to be needed, and may be there
        if serving.host is host and (
            not self._replaceable() or standing is None or standing.host is host
        ):
            return False
        for each in there:
            each.was_disturbed = each.is_silent = True
        host.is_cut_off = True
        if self.job.random.random() < 0.5:
            self.job.world.after(round(2 * DEADLINE_S * NS), lambda: self.job.world.heal(host))
        return True

    def _leave(self) -> bool:
        """Let a worker leave at the end of its step, as `shoal.leave_on` has it."""
        leaver = self.job.random.choice(self._well)
        if not leaver.steps or not self._may_lose(leaver, silently=False):
            return False
        leaver.was_disturbed = leaver.process.session.endings.is_leaving = True
        return True

    def _kill_control(self) -> bool:
        """Kill the control plane that serves, once another one stands by for all."""
        serving = self._replaceable()
        if serving is not None:
            serving.die()
        return serving is not None

    def _freeze_control(self) -> bool:
        """Let the control plane that serves stand still for good."""
        serving = self._replaceable()
        if serving is not None:
            serving.is_frozen = True
        return serving is not None

    def _pause_control(self) -> bool:
        """Let the control plane that serves stand still for less than it takes to be lost."""
        serving = self._serving()
        if serving is None or not serving.runs:
            return False
        return self._stand_still(serving)

    def _kill_standby(self) -> bool:
        """Kill the control plane that stands by, while the other one is well."""
        standing = self._standing_by()
        if standing is None or self._replaceable() is None:
            return False
        standing.die()
        return True

    def _kill_both_controls(self) -> bool:
        """Kill the control plane that serves and the one that stands by, whose workers live on."""
        serving, standing = self._replaceable(), self._standing_by()
        owners = [each.process for each in self._well]
        if serving is None or standing is None or standing.owner not in owners:
            return False
        if not all(_is_member(each) for each in self._well):
            return False  # a newcomer knows of one at most
        if self._is_somebody_missing:
            return False  # that is noticed three timeouts later, and the deadline is only two
        serving.die()
        standing.die()
        self._calm_until_ns = self.job.world.now_ns + round(DEADLINE_S * NS)
        return True

    @property
    def _is_somebody_missing(self) -> bool:
        """Whether some member is silent, and the others have yet to go on without it."""
        views = [each.process.session.view for each in self._well if _is_member(each)]
        silent = {each.rank for each in self.job.workers if each.is_silent}
        return any(silent & set(view.members) for view in views)

    def _replaceable(self) -> Process | None:
        """Return the control plane that serves, if all follow another one that can be reached."""
        serving = self._serving()
        if serving is None or serving.host.is_cut_off or not serving.runs:
            return None
        if not all(_is_member(each) or each.is_newcomer for each in self._well):
            return None  # before all have opened their transport a job needs all it began with
        return serving if self._has_successor() else None

    def _join_in(self) -> bool:
        """Let another process come to the job, perhaps as the rank of one that is dead."""
        if len(self.job.workers) > 3 * self.job.size or not self._serving():
            return False
        gone = [each for each in self.job.workers if each.outcome not in ("", "finished")]
        dead = [each.rank for each in self.job.workers if each.process.is_dead or each in gone]
        free = [rank for rank in dead if all(each.rank != rank for each in self._well)]
        rank = self.job.random.choice([max(each.rank for each in self.job.workers) + 1, *free])
        hosts = [host for host in self.job.hosts if not host.is_cut_off]
        self.job.start(rank, self.job.random.choice(hosts), is_newcomer=True)
        return True

    def _replace(self) -> None:
        """Start workers until as many are there as the job needs."""
        if self.job.is_done:
            return
        if len(self._well) < self.job.size:
            self._join_in()
        self.job.world.after(NS, self._replace)

    def where_control_is(self) -> str:
        """Return the address that a newcomer finds where the job's is written down."""
        known = [each.process.session for each in self._well if each.process.session is not None]
        return str(known[0].control.endpoint) if known else self.job.endpoint

    def _control_at(self, endpoint: str) -> Process | None:
        socket = stand_ins.network().listening.get(endpoint)
        return None if socket is None or socket.process.is_dead else socket.process

    def _serving(self) -> Process | None:
        return self._control_at(self.where_control_is())

    def _standing_by(self) -> Process | None:
        known = [each.process.session for each in self._well if each.process.session is not None]
        return self._control_at(known[0].control.standby) if known else None

    def _has_successor(self) -> bool:
        """Return whether a control plane stands by that all follow, and can be reached."""
        standing = self._standing_by()
        if standing is None or standing.host.is_cut_off or not standing.runs:
            return False
        endpoint = {
            each.process.session and each.process.session.control.standby
            for each in self._well
            if not each.is_newcomer or each.steps
        }
        return len(endpoint) == 1

    # ---- one history -----------------------------------------------------------------------------


def _is_member(worker: Worker) -> bool:
    """Return whether a worker goes on if others are lost: it has opened its transport."""
    session = worker.process.session
    return session is not None and session.member.is_ready and not session.member.is_newcomer
