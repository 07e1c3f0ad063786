"""Processes in virtual time: generators that wait, and what they wait for.

A process yields a whole number of picoseconds to let them pass, or a `Signal` to wait until it is
given. What is due at the same time goes on in the order in which it began to wait, transfers that
are over first; so the same processes always take the same course. Knows the network only as what
says when transfers are over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Generator, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, TypeAlias

from shoal.errors import UsageError
from shoal.sim.network import YieldingNetwork
from shoal.switching import NEVER

if TYPE_CHECKING:
    from shoal.sim.network import Network

_TURNS_PER_TICK = 4096


def check_countable(when: float) -> None:
    """Raise `UsageError` for a time, picoseconds, that virtual time cannot count to."""
    if when > NEVER:
        message = (
            "This takes longer than virtual time can count, 106 days: simulate fewer steps, or"
            " shorter ones."
        )
        raise UsageError(message)


class Signal:
    """Something that happens once; processes wait for it."""

    __slots__ = ("given", "value", "waiting")

    def __init__(self) -> None:
        self.given = False
        self.value: Any = None
        self.waiting: list[Process] = []


Process: TypeAlias = Generator[int | Signal, Any, None]


class VirtualTime:
    """Runs processes over a network. Times are picoseconds."""

    def __init__(self, network: Network) -> None:
        self.now = 0
        self.network = network
        self.transfers_begun = 0
        self._ready: deque[tuple[Process, Any]] = deque()
        self._sleeping: list[tuple[int, int, Process]] = []
        self._order = 0
        self._transfers: dict[int, Signal] = {}
        self._awaited: set[Process] = set()
        self._is_stopped = False

    def stop(self) -> None:
        """Let `run` return before anything else happens."""
        self._is_stopped = True

    def begin(self, process: Process, *, awaited: bool = False) -> None:
        """Let a process take its course from now on; time stops when all `awaited` have ended."""
        if awaited:
            self._awaited.add(process)
        self._ready.append((process, None))

    def end(self, process: Process) -> None:
        """Let a process go no further that waits or has not begun, nor what it alone waits for."""
        process.close()
        self._end(process)
        if isinstance(self.network, YieldingNetwork):
            for number, signal in self._transfers.items():
                if signal.waiting == [process]:
                    self.network.give_up(self.now, number)

    def give(self, signal: Signal, value: Any = None) -> None:
        """Let the processes that wait for `signal` go on, and have `value`."""
        signal.given, signal.value = True, value
        for process in signal.waiting:
            self._ready.append((process, value))
        signal.waiting.clear()

    def transfer(
        self,
        sources: Sequence[int],
        targets: Sequence[int],
        sizes: Sequence[float],
        *,
        most: float = float("inf"),
    ) -> Signal:
        """Start flows between hosts now; the signal is given when the last one is over.

        None of them exceeds `most` bits per second.
        """
        return self.over(self.network.start(self.now, sources, targets, sizes, most=most))

    def over(self, transfer: int) -> Signal:
        """Return the signal that is given when a transfer of the network is over."""
        self.transfers_begun += 1
        signal = self._transfers[transfer] = Signal()
        return signal

    def is_anyone_asleep(self, *, but: Container[Process]) -> bool:
        """Return whether a process lets time pass, other than those of `but`."""
        return any(process not in but for _, _, process in self._sleeping)

    def run(self, until: int = NEVER, *, tick: Callable[[], None] | None = None) -> None:
        """Let time pass until nothing is left to do, up to `until`, or until it is stopped.

        Calls `tick` now and then. Raises `UsageError` if transfers stand still for ever, or if
        something is to happen later than virtual time can count.
        """
        turns, ready, sleeping, transfers = 0, self._ready, self._sleeping, self._transfers
        while self.now <= until and not self._is_stopped:
            self._go_on()
            turns += 1
            if tick is not None and turns % _TURNS_PER_TICK == 0:
                tick()
            awake = sleeping[0][0] if sleeping else NEVER
            if transfers:
                over = self.network.run(min(until, awake))
                if over:
                    self.now = self.network.now
                    for number in over:
                        self.give(transfers.pop(number))
                    continue
            if awake > until:
                if until == NEVER:
                    check_countable(awake)
                break
            if awake == NEVER:
                if transfers:
                    message = (
                        "Transfers stand still: a link on their way is down or loses so much, or"
                        " takes so long, that a sender has given up, having heard nothing for 100"
                        " s; or they take longer than virtual time can count, 106 days."
                    )
                    raise UsageError(message)
                return
            self.now = awake
            while sleeping and sleeping[0][0] == awake:
                ready.append((heappop(sleeping)[2], None))

    def _go_on(self) -> None:
        """Let every process that need not wait go on until it has to."""
        ready, sleeping, now = self._ready, self._sleeping, self.now
        while ready and not self._is_stopped:
            process, value = ready.popleft()
            while True:
                try:
                    wanted = process.send(value)
                except StopIteration:
                    self._end(process)
                    break
                if isinstance(wanted, Signal):
                    if not wanted.given:
                        wanted.waiting.append(process)
                        break
                    value = wanted.value
                elif wanted > 0:
                    self._order += 1
                    heappush(sleeping, (now + wanted, self._order, process))
                    break
                else:
                    value = None

    def _end(self, process: Process) -> None:
        if process in self._awaited:
            self._awaited.remove(process)
            if not self._awaited:
                self.stop()
