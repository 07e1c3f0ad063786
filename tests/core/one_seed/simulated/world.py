"""Virtual time, and threads of which one runs at a time: which one, and when, the seed says.

Tasks are threads of the operating system that hand a baton on wherever they wait, so what runs in
them may be anything, autograd too. Processes hold tasks, and hosts processes: a process dies or
stands still with all of its tasks, and a host is cut off with all of its processes.
"""

from __future__ import annotations

import gc
import heapq
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

NS = 1_000_000_000
_SWITCH_NS = 20_000
"""The most that a task computes between two waits."""


class Over(BaseException):
    """The history is over, or the process of this task is dead: nothing more happens in it."""


def _taken_lock() -> threading.Lock:
    """Return a lock that is taken: whoever takes it waits until somebody lets it go."""
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass(eq=False)
class Host:
    """A machine: whoever is on it is cut off from all others, or not."""

    number: int
    is_cut_off: bool = False


@dataclass(eq=False)
class Process:
    """One process; `owner` is the one that has started it."""

    world: World
    host: Host
    name: str
    owner: Process | None = None
    is_dead: bool = False
    is_frozen: bool = False
    offset_ns: int = 0
    rate: float = 1.0
    at_death: list[Callable[[], None]] = field(default_factory=list)
    session: Any = None

    def __post_init__(self) -> None:
        self.offset_ns = self.world.random.randrange(NS)
        self.rate = self.world.random.uniform(0.99, 1.01)

    @property
    def runs(self) -> bool:
        return not self.is_dead and not self.is_frozen

    def clock_ns(self) -> int:
        """Return what this process's monotonic clock shows."""
        return self.offset_ns + round(self.world.now_ns * self.rate)

    def world_ns(self, clock_ns: int) -> int:
        """Return when that is on the world's clock."""
        return round((clock_ns - self.offset_ns) / self.rate) + 1

    def die(self) -> None:
        """End, as by SIGKILL: nothing that was in its memory leaves any more."""
        if not self.is_dead:
            self.is_dead = True
            for act in self.at_death:
                act()


class Task:
    """A thread of a process. It runs as long as it has the baton."""

    def __init__(self, process: Process, body: Callable[[], None], name: str) -> None:
        self.process, self.name = process, name
        self.ready: Callable[[], object] | None = None
        self.until_ns: int | None = 0
        self.has_ended = False
        self.error: BaseException | None = None
        self._body = body
        self.baton = _taken_lock()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        world = self.process.world
        self.baton.acquire()
        try:
            if not world.is_over:
                self._body()
        except Over:
            pass
        except BaseException as error:  # noqa: BLE001 - it is the history's to judge
            self.error = error
        self.has_ended = world.is_news = True
        world.tasks.remove(self)
        if world.is_over:
            world.unwound.release()
        else:
            world.hand_on()


class World:
    """What happens, and in which order."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_ns = 0
        self.tasks: list[Task] = []
        self.spawned: list[Task] = []
        self.current: Task | None = None
        self.is_over = False
        self.num_switches = 0
        self.horizon_ns = 0
        self.verdict: Callable[[], str | None] = lambda: None
        """Returns what ends the history, once something does."""
        self.is_news = True
        """Whether anything has happened that may end it."""
        self.outcome = ""
        self.unwound = _taken_lock()
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._num_events = 0
        self._is_between = False
        self._main = _taken_lock()
        self.hosts: list[Host] = []
        self.unblocked: list[Callable[[], None]] = []
        """What waits for a host to be reached again."""

    # ---- what tasks do ---------------------------------------------------------------------------

    @property
    def process(self) -> Process:
        """The process of the task that runs."""
        assert self.current is not None
        return self.current.process

    def spawn(self, process: Process, body: Callable[[], None], name: str) -> Task:
        task = Task(process, body, name)
        self.tasks.append(task)
        self.spawned.append(task)
        task.thread.start()
        return task

    def block(self, ready: Callable[[], object] | None, until_ns: int | None = None) -> None:
        """Let others run until `ready` is true or the time `until_ns` has come."""
        if self.is_over:
            raise Over
        task = self.current
        assert task is not None
        assert not self._is_between, "what no task does waits for nothing"
        task.ready, task.until_ns = ready, until_ns
        following = self._next()
        if following is not task:
            self._give(following)
            task.baton.acquire()
            if self.is_over:
                raise Over

    def pause(self) -> None:
        """Let another task run, perhaps."""
        if not self._is_between and self.random.random() < 0.2:
            self.block(None, self.now_ns)

    def after(self, delay_ns: int, act: Callable[[], None]) -> None:
        """Let something happen that no task does."""
        self._num_events += 1
        heapq.heappush(self._events, (self.now_ns + delay_ns, self._num_events, act))

    def latency_ns(self) -> int:
        """Return how long a message takes: mostly little, now and then much."""
        usual = self.random.expovariate(1 / 200_000)
        return round(usual * (50 if self.random.random() < 0.02 else 1))

    # ---- the course of things --------------------------------------------------------------------

    def run(self, seconds: float) -> str:
        """Let all that has been spawned run; return what ended it."""
        self.horizon_ns = round(seconds * NS)
        gc.disable()  # what it finalizes, and when, no seed says
        self.hand_on()
        self._main.acquire()
        self.is_over = True
        gc.enable()
        for task in list(self.tasks):
            self.current = task
            task.baton.release()
            self.unwound.acquire()
        return self.outcome

    def hand_on(self) -> None:
        self._give(self._next())

    def _give(self, task: Task | None) -> None:
        if task is None:
            self._main.release()
            return
        self.num_switches += 1
        self.current = task
        task.baton.release()

    def _next(self) -> Task | None:
        """Return the task that runs next; None if the history is over."""
        while True:
            now = self.now_ns
            self._is_between = True
            while self._events and self._events[0][0] <= now:
                heapq.heappop(self._events)[2]()
                self.is_news = True
            self._is_between = False
            if self.is_news and (found := self.verdict()) is not None:
                self.outcome = found
                return None
            self.is_news = False
            able = [
                task
                for task in self.tasks
                if task.process.runs
                and (
                    (task.until_ns is not None and task.until_ns <= now)
                    or (task.ready is not None and task.ready())
                )
            ]
            if able:
                self.now_ns += self.random.randrange(_SWITCH_NS)
                return self.random.choice(able)
            times = [
                task.until_ns
                for task in self.tasks
                if task.until_ns is not None and task.process.runs
            ]
            if self._events:
                times.append(self._events[0][0])
            if not times or min(times) > self.horizon_ns:
                self.outcome = "nothing can happen any more" if not times else "it has no end"
                return None
            self.now_ns = max(now, min(times))

    # ---- machines --------------------------------------------------------------------------------

    def can_reach(self, one: Host, other: Host) -> bool:
        return one is other or not (one.is_cut_off or other.is_cut_off)

    def heal(self, host: Host) -> None:
        """Let a host be reached again, and what was sent meanwhile arrive."""
        host.is_cut_off = False
        waiting, self.unblocked = self.unblocked, []
        for act in waiting:
            act()


class Current:
    """The world of the history that runs: stand-ins ask here."""

    world: World


def world() -> World:
    return Current.world
