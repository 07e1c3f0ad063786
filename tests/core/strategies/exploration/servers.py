"""Histories of a parameter server, each shard of which dies with the worker that serves it.

A request arrives at a shard, an answer at a worker, a copy at the next server, and a shard at who
serves it from now on at any time that it could. Weights are the pushes that they hold, in order. A
history is bad, too, if a push is in them twice, if one is not that a worker knows to be over, or if
workers end with different weights.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from exploration.history import TRAINING, Event, History, Running, Worker
from shoal.errors import ProtocolError
from shoal.strategies import Add, Answer, Apply, Holding, Pulled, Shard, next_exchanges

if TYPE_CHECKING:
    from shoal.membership import View
    from shoal.strategies.acts import Exchange

Pushes = tuple[tuple[int, int], ...]
"""Each by its rank and the number of its exchange."""


@dataclass(frozen=True)
class State:
    """The weights of a shard at one time."""

    weights: Pushes = ()
    holding: Holding = field(default_factory=Holding)


@dataclass
class Served:
    """A shard at the worker that serves it."""

    epoch: int
    machine: Shard
    weights: Pushes = ()
    collected: list[tuple[int, int]] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)
    """By rank, the number of the exchange whose push is here."""

    @property
    def state(self) -> State:
        return State(self.weights, self.machine.holding)


@dataclass
class Seat:
    """What one worker has of the servers', and serves of them."""

    served: dict[int, Served] = field(default_factory=dict)
    copies: dict[int, State] = field(default_factory=dict)
    pulled: dict[int, State] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)
    answered: set[int] = field(default_factory=set)
    pushed: set[int] = field(default_factory=set)
    """The numbers of exchanges with a push that are over."""
    exempt: int | None = None
    """The first exchange of a newcomer, whose iteration may be complete under BSP."""

    def states(self, shard: int, *, with_pulled: bool) -> list[State]:
        found = [self.copies.get(shard), self.pulled.get(shard) if with_pulled else None]
        if shard in self.served:
            found.append(self.served[shard].state)
        return [state for state in found if state is not None]


class ServersHistory(History):
    """Pushes to shards that real machines serve, and pulls."""

    hands_on_later = False

    def prepare(self, view: View) -> None:
        self.rule = self.definition.rule
        self.num_shards = len(view)
        self.seats: dict[int, Seat] = defaultdict(Seat)
        self.answers: dict[tuple[int, int, int], State] = {}
        """By epoch, rank and shard, on their way."""
        self.sources: dict[int, tuple[int, State]] = {}
        """By shard, who has the weights from which the view goes on, and these."""
        self.wrong = ""
        for shard in range(self.num_shards):
            owner = view.members[shard]
            self.seats[owner].served[shard] = Served(0, Shard(view.members, self.rule))
            for rank in view.members:
                self.seats[rank].pulled[shard] = State()

    def step_of(self, worker: Worker) -> Generator[Any, Any, None]:
        return worker.course.step(skipped=self.random.random() < 0.15)

    def owner_of(self, shard: int, view: View) -> Worker:
        return self.workers[view.members[shard % len(view)]]

    def serves(self, worker: Worker, shard: int, epoch: int) -> bool:
        is_here = worker.is_alive and not worker.is_frozen and not worker.has_left
        served = self.seats[worker.rank].served.get(shard)
        return is_here and worker.epoch == epoch and served is not None and served.epoch == epoch

    # ---- events ----------------------------------------------------------------------------------

    def run(self) -> str:
        try:
            return super().run() or self.wrong
        except ProtocolError as error:
            return f"a shard refuses a request: {error}"

    def begin(self, worker: Worker, name: str, running: Running) -> None:
        seat = self.seats[worker.rank]
        seat.asked, seat.answered = set(), set()

    def events_of(self, worker: Worker, name: str, running: Running) -> list[Event]:
        seat, found = self.seats[worker.rank], []
        for shard in range(self.num_shards):
            if shard not in seat.asked:
                owner = self.owner_of(shard, worker.course.view)
                if self.serves(owner, shard, worker.epoch):
                    found.append(("ask", worker, running.pending, shard))
            elif (worker.epoch, worker.rank, shard) in self.answers:
                found.append(("arrive", worker, name, shard))
        return found

    def events(self) -> list[Event]:
        found = super().events()
        for worker in self.workers.values():
            if not worker.is_alive or worker.is_frozen or worker.has_left or worker.epoch < 0:
                continue
            view = worker.course.view
            for shard in range(view.place_of(worker.rank), self.num_shards, len(view)):
                if not self.serves(worker, shard, worker.epoch):
                    is_there = self.workers[self.sources[shard][0]].is_well
                    if is_there and worker.epoch == self.view.epoch and worker.is_well:
                        found.append(("take_over", worker, shard))
                elif self.random.random() < 0.3:
                    found += self._copies(worker, shard, view)
        return found

    def _copies(self, owner: Worker, shard: int, view: View) -> list[Event]:
        """Let the next member have a copy, unless it has fenced."""
        other = self.workers[view.members[(view.place_of(owner.rank) + 1) % len(view)]]
        if not other.is_alive or other.is_frozen or other.epoch != owner.epoch or other is owner:
            return []
        has = self.seats[other.rank].copies.get(shard, State())
        is_old = has.weights != self.seats[owner.rank].served[shard].weights
        return [("copy", owner, shard, other)] if is_old else []

    def copy(self, owner: Worker, shard: int, other: Worker) -> None:
        self.seats[other.rank].copies[shard] = self.seats[owner.rank].served[shard].state

    def ask(self, worker: Worker, act: Exchange, shard: int) -> None:
        self.seats[worker.rank].asked.add(shard)
        owner = self.owner_of(shard, worker.course.view)
        served = self.seats[owner.rank].served[shard]
        served.numbers[worker.rank] = act.number
        self._obey(owner, shard, served, served.machine.take(worker.rank, act.kind))

    def _obey(self, owner: Worker, shard: int, served: Served, deeds: list[Any]) -> None:
        for deed in deeds:
            match deed:
                case Add():
                    served.collected.append((deed.rank, served.numbers[deed.rank]))
                case Apply():
                    self._check(owner, served, deed)
                    served.weights += tuple(served.collected)
                    served.collected = []
                case Answer():
                    self.answers[served.epoch, deed.rank, shard] = served.state

    def _check(self, owner: Worker, served: Served, deed: Apply) -> None:
        expected = len(served.collected) if self.rule.staleness == 0 else 1
        if deed.divisor != expected:
            self.wrong = f"{deed} of {served.collected}"
        if deed.share != self.rule.buffer_share(len(owner.course.view)):
            self.wrong = f"{deed} in {owner.course.view}"

    def arrive(self, worker: Worker, name: str, shard: int) -> None:
        seat = self.seats[worker.rank]
        seat.pulled[shard] = self.answers.pop((worker.epoch, worker.rank, shard))
        seat.answered.add(shard)
        if len(seat.answered) < self.num_shards:
            return
        act = worker.running[name].pending
        if act.kind == "push":
            seat.pushed.add(act.number)
        self.go_on(worker, name, Pulled(0, 0))

    def take_over(self, worker: Worker, shard: int) -> None:
        """Serve a shard in the new view, from the weights that whoever has them sends."""
        source, state = self.sources[shard]
        served, before = self.seats[worker.rank].served, None
        if source == worker.rank and shard in served and served[shard].state == state:
            before = served[shard]
        if before is not None and self.without == "a clock from the reports":
            before.epoch = worker.epoch
            for rank in [each for each in before.machine._live if each not in self.view.members]:
                self._obey(worker, shard, before, before.machine.take(rank, "leave"))
            return
        machine = before.machine if before else Shard(self.view.members, self.rule)
        holding = None if before else state.holding
        if self.without == "what weights hold":
            holding = Holding(state.holding.version)
        machine.on_view(self.decision, TRAINING, holding)
        served[shard] = Served(worker.epoch, machine, state.weights)
        if before is not None and self.without == "throwing half a sum away":
            served[shard].collected = before.collected

    # ---- views -----------------------------------------------------------------------------------

    def decided(self) -> None:
        """Find the newest weights of every shard among all that members have."""
        self.sources = {}
        with_pulled = self.without != "what members have pulled"
        for shard in range(self.num_shards):
            found = [
                (rank, state)
                for rank in self.decision.reports
                for state in self.seats[rank].states(shard, with_pulled=with_pulled)
            ]
            found.sort(key=lambda each: each[1].holding.age)
            self.sources[shard] = found[-1] if found else (self.view.members[0], State())

    def installed(self, worker: Worker, *, is_fresh: bool) -> None:
        """Give a newcomer the weights, and the number of its first exchange."""
        if is_fresh:
            first = next_exchanges(self.decision, TRAINING)[worker.rank]
            worker.course.num_exchanges = first
            pulled = {shard: state for shard, (_, state) in self.sources.items()}
            exempt = first if self.rule.staleness == 0 else None
            self.seats[worker.rank] = Seat(pulled=pulled, exempt=exempt)

    def verdict(self) -> str:
        well = [w for w in self.workers.values() if w.is_well and not w.has_left]
        for shard in range(self.num_shards) if well else ():
            ends = {self.seats[worker.rank].pulled[shard].weights for worker in well}
            if len(ends) > 1:
                return f"weights of shard {shard} differ: {ends}"
            weights = next(iter(ends))
            if len(set(weights)) < len(weights):
                return f"shard {shard} holds a push twice: {weights}"
            for worker in well:
                seat = self.seats[worker.rank]
                expected = {(worker.rank, number) for number in seat.pushed - {seat.exempt}}
                if not expected <= set(weights):
                    return f"shard {shard} has lost {expected - set(weights)}"
        return ""
