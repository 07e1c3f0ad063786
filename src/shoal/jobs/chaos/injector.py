"""Runs one job with one fault, and proves that the fault has fired.

Owns the processes: the workers, a newcomer, and the control plane's. A fault counts if its process
stood in the phase, and was seen dead or stopped after the signal; nothing is left afterwards, and
what had to be killed for that is in the row.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from shoal.carriers import COMPILER
from shoal.decoding import decode_json
from shoal.jobs import fork_server
from shoal.jobs.chaos.chaos_worker import STEPS_TO_THE_END, WIND_DOWN, chaos_worker
from shoal.jobs.chaos.control_processes import MARK, ControlProcesses
from shoal.jobs.chaos.faults import SERVICES, Case, Fault, Phase, Role
from shoal.jobs.chaos.notes import POLL_S, Notes
from shoal.jobs.chaos.outcomes import Ended, Row, Told, is_as_promised, judge
from shoal.jobs.chaos.places import ARMED, GO_ON, REACHED, Reached
from shoal.jobs.launching.launcher import free_port

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.process import BaseProcess
    from types import TracebackType

SIZE: Final = 4
PAUSE_S: Final = 3.0
DELAY_S: Final = 2.0
_NOT_UNDERSTOOD: Final = "What a worker says is not understood"
_TRAINS_S: Final = 60.0
"""The seconds within which a job trains, or comes to a phase."""
_SETTLES_S: Final = 20.0
_ENDS_S: Final = 60.0
_STANDS_BY_S: Final = 10.0
_LEAVES_S: Final = 10.0
_SEEN_S: Final = 5.0


def strike(case: Case) -> Row:
    """Run the job of `case`, and return what became of it."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder, _Job(case, folder) as job:
        job.start()
        reached = job.await_place()
        fired = reached is not None and job.strike(reached)
        went_on_after_s = job.await_steps()
        job.wind_down()
        told = job.told()
        left = job.left()
    outcomes = judge(case, told, job.struck)
    return Row(
        sync=case.sync,
        role=case.role,
        phase=case.phase,
        fault=case.fault,
        number=case.number,
        fired=fired,
        place="" if reached is None else f"{reached.place}, rank {reached.rank}",
        workers=outcomes,
        left=left,
        is_as_promised=is_as_promised(case, outcomes, fired=fired) and not left,
        went_on_after_s=went_on_after_s,
        seconds=round(time.monotonic() - began, 2),
    )


class _Job:
    """The processes of one case. A context manager: leaving it ends them all."""

    def __init__(self, case: Case, folder: str) -> None:
        self._case, self._folder = case, folder
        self._notes = Notes(folder)
        self._control = ControlProcesses(Path(folder, "job"))
        # torch imports its compiler when any optimizer is first used: once here, not in each worker
        modules = ["shoal.jobs.chaos.chaos_worker", COMPILER, fork_server.TRANSPORT_CODE]
        self._context = fork_server.start(modules)
        self._port = free_port(0)
        self._processes: dict[int, BaseProcess] = {}
        self._frozen: int | None = None
        self._struck_at = 0.0
        self.struck: set[int] = set()
        """Ranks that were killed, or frozen for good."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and not isinstance(error, Exception):
            fork_server.kill()  # as it may be loading torch, and make workers later
        started = [process for process in self._processes.values() if process.pid is not None]
        for process in started:
            process.kill()
        for pid in self._control.running():
            _send(pid, signal.SIGKILL)
        for process in started:
            process.join(_SEEN_S)

    def start(self) -> None:
        """Start the workers that the job begins with."""
        for rank in range(SIZE):
            self._start(rank)

    def _start(self, rank: int) -> None:
        environment = {
            "RANK": str(rank),
            "WORLD_SIZE": str(SIZE),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(SIZE),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._port),
            "GLOO_SOCKET_IFNAME": "lo",
            MARK: f"{self._folder}/job",
        }
        process = self._context.Process(
            target=chaos_worker,
            args=(self._case, rank, SIZE, self._folder, environment),
            daemon=True,
        )
        self._processes[rank] = process
        process.start()

    def await_place(self) -> Reached | None:
        """Return who has come to the place of the fault; None if nobody does."""
        if self._case.phase not in (Phase.START, Phase.FIRST_STEP) or self._case.has_newcomer:
            self._until(lambda: all(map(self._steps, range(SIZE))), _TRAINS_S)
            if self._case.role in SERVICES:
                self._until(lambda: self._control.is_followed_by(SIZE), _STANDS_BY_S)
        self._notes.write(ARMED)
        if self._case.has_newcomer:
            self._start(SIZE)
        if self._case.has_death:
            _, victim = self._case.bystanders(SIZE)
            self._processes[victim].kill()
            self.struck.add(victim)
        if self._case.phase is Phase.FINISH:
            if self._case.has_newcomer:
                self._until(lambda: self._steps(SIZE) > 0, _TRAINS_S)
            self._notes.write(WIND_DOWN)
        self._until(lambda: self._notes.has(REACHED), _TRAINS_S)
        found = self._notes.read(REACHED)
        return decode_json(found, Reached, _NOT_UNDERSTOOD) if found else None

    def strike(self, reached: Reached) -> bool:
        """Strike; return whether that was seen. Who has come to the place goes on after it."""
        self._struck_at = time.monotonic()
        seen = [self._strike(victim) for victim in self._victims(reached)]
        if self._case.role in SERVICES or self._case.fault in (Fault.PAUSE, Fault.DELAY):
            self._notes.write(GO_ON)
        else:
            self.struck.add(reached.rank)
        if self._case.role not in SERVICES and self._case.fault is Fault.FREEZE:
            self._frozen = reached.rank
        return all(seen) and bool(seen)

    def _victims(self, reached: Reached) -> list[int]:
        """Return the processes that are to be struck; none if there are none."""
        match self._case.role:
            case Role.CONTROL:
                return self._control.serving()
            case Role.STANDBY:
                return self._control.standing_by()
            case Role.CONTROLS:
                return [*self._control.serving(), *self._control.standing_by()]
        return [reached.pid]

    def _strike(self, pid: int) -> bool:
        """Strike a process; return whether that was seen."""
        match self._case.fault:
            case Fault.KILL:
                _send(pid, signal.SIGKILL)
                seen = _becomes(pid, "Z", "X", "")
            case Fault.FREEZE:
                _send(pid, signal.SIGSTOP)
                seen = _becomes(pid, "T")
            case Fault.PAUSE:
                _send(pid, signal.SIGSTOP)
                seen = _becomes(pid, "T")
                time.sleep(PAUSE_S)
                seen = seen and _state(pid) == "T"
                _send(pid, signal.SIGCONT)
            case Fault.DELAY:
                time.sleep(DELAY_S)
                seen = _state(pid) not in ("Z", "X", "")
        return seen

    def await_steps(self) -> float | None:
        """Wait until all that live have made a step; return how long after the signal that was."""
        before = {rank: self._steps(rank) for rank in self._processes if rank not in self.struck}

        def get_on() -> bool:
            return all(self._is_over(rank) or self._steps(rank) > before[rank] for rank in before)

        self._until(get_on, _SETTLES_S)
        have = all(self._steps(rank) > steps for rank, steps in before.items())
        return round(time.monotonic() - self._struck_at, 3) if have else None

    def wind_down(self) -> None:
        """Let the others get on for some steps, and then end; wait until they have."""
        enough = {rank: self._steps(rank) + STEPS_TO_THE_END for rank in self._processes}

        def get_on() -> bool:
            return all(self._is_over(rank) or self._steps(rank) >= enough[rank] for rank in enough)

        self._until(get_on, _SETTLES_S)
        if not self._notes.has(WIND_DOWN):
            self._notes.write(WIND_DOWN)
        self._until(lambda: all(map(self._is_over, enough)), _ENDS_S)

    def told(self) -> dict[int, Told]:
        """Return what each worker says at its end, or what is seen of it."""
        told = {}
        for rank, process in self._processes.items():
            process.join(0 if rank == self._frozen else _LEAVES_S)
            said = self._notes.read(f"told-{rank}")
            if process.exitcode is None:
                told[rank] = Told(Ended.HUNG, self._last_words(rank))
            elif said:
                told[rank] = decode_json(said, Told, _NOT_UNDERSTOOD)
            else:
                words = f"exit code {process.exitcode}: {self._last_words(rank)}"
                told[rank] = Told(Ended.RAISED, words)
        return told

    def left(self) -> list[str]:
        """Return the command lines of processes that outlive the job though nobody froze them."""
        if self._frozen is not None:
            self._processes[self._frozen].kill()
        self._until(lambda: not self._unstopped(), _LEAVES_S)
        return [_command(pid) for pid in self._unstopped()]

    def _unstopped(self) -> list[int]:
        """Return the services that run: those that were frozen cannot end by themselves."""
        return [pid for pid in self._control.running() if _state(pid) != "T"]

    def _is_over(self, rank: int) -> bool:
        return rank == self._frozen or not self._processes[rank].is_alive()

    def _steps(self, rank: int) -> int:
        return int(self._notes.read(f"steps-{rank}") or 0)

    def _last_words(self, rank: int) -> str:
        return self._notes.read(f"output-{rank}").decode(errors="replace")[-2000:]

    def _until(self, condition: Callable[[], bool], within_s: float) -> None:
        end = time.monotonic() + within_s
        while not condition() and time.monotonic() < end:
            time.sleep(POLL_S)


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _state(pid: int) -> str:
    """Return the letter of a process's state; nothing if it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def _becomes(pid: int, *states: str) -> bool:
    end = time.monotonic() + _SEEN_S
    while _state(pid) not in states:
        if time.monotonic() > end:
            return False
        time.sleep(POLL_S)
    return True


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    return ""
