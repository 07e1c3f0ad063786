"""A parameter server sharded over the workers' hosts, in virtual time: BSP, SSP and ASP.

As `train.servers`: every worker pushes its gradient to all servers and pulls all weights. What a
shard does with requests is `strategies.shard`'s, who serves it and what it goes on from in another
view `sim.training.serving`'s. An exchange that is under way when the view changes is made again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from shoal.collectives import split_evenly
from shoal.sim.training.executor import AbstractExecutor
from shoal.sim.training.serving import Serving
from shoal.sim.transports.contributions import Contribution
from shoal.sim.virtual_time import Signal
from shoal.strategies import CHANGED, Act, Acts, Add, Answer, Apply, Exchange, Pulled
from shoal.transport import check_messages

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from shoal.membership import Decision
    from shoal.sim.training.world import World
    from shoal.sim.virtual_time import Process
    from shoal.strategies import ParameterServer


@dataclass(slots=True)
class _UnderWay:
    """One worker's exchange, which ends if the view changes."""

    act: Exchange
    process: Process
    over: Signal
    asked: int | None = None
    """The time since when the worker waits for its answer, if it does."""
    gradient: NDArray[np.float32] | None = None
    """What it has pushed, if a part of that got lost on its way."""


@final
class ServersExecutor(AbstractExecutor):
    """Pushes gradients and pulls weights.

    Of a pull the strategy's `pull_bound` may get lost, packet by packet; a worker keeps what it has
    there.
    """

    _definition: ParameterServer

    @property
    def copies(self) -> int:
        """What has been set aside for a worker to pull."""
        return 1

    def prepare(self, world: World) -> None:
        """Start the servers."""
        super().prepare(world)
        self._serving = Serving(world, self._definition.rule)
        self._answers = [Signal() for _ in range(world.size)]
        self._due: dict[int, list[Answer]] = {}
        """The shards' answers to a worker that all of them have to let go on."""
        self._under_way: dict[int, _UnderWay] = {}
        """Exchanges by rank, where workers come and go."""

    def check_holes(self, policy: int) -> None:
        """Refuse what servers would have to count."""
        check_messages(policy)

    def step(self, rank: int, step: int, acts: Acts) -> Process:
        """Compute, and carry out `acts`."""
        self._world.learner.compute_gradient(rank)
        yield self._world.computes(rank, step)
        yield from self.carry_out(rank, acts)

    def do(self, rank: int, act: Act) -> Generator[int | Signal, Any, object]:
        """Carry out one act: push, and pull when the shards let the worker go on."""
        assert isinstance(act, Exchange)
        world = self._world
        attendance, view = world.attendance, world.view
        if attendance is None:
            return (yield from self._exchange(rank, act))
        attendance.at_border(rank)
        over = Signal()
        process = self._carry_out(rank, act, over)
        self._under_way[rank] = _UnderWay(act, process, over)
        world.time.begin(process)
        answer = yield over
        # what is over when the view is about to change did not happen: others have been told so
        return answer if act.kind == "leave" or attendance.is_in(view) else CHANGED

    def _carry_out(self, rank: int, act: Exchange, over: Signal) -> Process:
        answer = yield from self._exchange(rank, act)
        self._under_way.pop(rank, None)
        self._world.time.give(over, answer)

    def _exchange(self, rank: int, act: Exchange) -> Generator[int | Signal, Any, object]:
        world, times = self._world, self._world.times[rank]
        if act.kind == "leave":
            yield from self._go_on(rank)
            yield from self._ask(rank, act)
            return Pulled(0, 0)
        times.begin_exchange(world.time.now)
        yield from self._go_on(rank)
        yield from self._push(rank)
        times.end_exchange(world.time.now)
        asked = world.time.now
        self._note_asked(rank, asked)
        answer = yield from self._ask(rank, act)
        self._note_asked(rank, None)
        held = world.time.now - asked
        times.wait += held
        times.begin_exchange(world.time.now)
        yield from self._pull(rank)
        times.end_exchange(world.time.now)
        return Pulled(held // 1_000, answer.staleness)

    def _go_on(self, rank: int) -> Process:
        """Go on in the present view; a newcomer then is level with those that train."""
        number = yield from self._serving.go_on(rank)
        if number is not None:
            self.courses[rank].take_over({"num_exchanges": number})
        yield from self._serving.all_serve()

    def _note_asked(self, rank: int, since: int | None) -> None:
        if rank in self._under_way:
            self._under_way[rank].asked = since

    def _ask(self, rank: int, act: Exchange) -> Generator[int | Signal, Any, Answer]:
        """Let all shards take a request, and wait until they let the worker go on."""
        answered = self._answers[rank] = Signal()
        answers = []
        for shard in self._serving.live.values():
            for deed in shard.decisions.take(rank, act.kind):
                match deed:
                    case Add():
                        shard.added.append(deed.rank)
                    case Apply():
                        members = shard.decisions.num_members
                        shard.update(1 / self._definition.rule.rate_divisor(members), deed.share)
                    case Answer():
                        answers.append(deed)
        for each in answers:
            due = self._due.setdefault(each.rank, [])
            due.append(each)
            if len(due) == len(self._serving.live):
                self._answer(self._due.pop(each.rank))
        answer: Answer = yield answered
        return answer

    def _answer(self, answers: Sequence[Answer]) -> None:
        """Let a worker go on, with the weights as they are now."""
        slowest = max(answers, key=lambda each: each.staleness)
        if slowest.is_last:  # all have left, which counts for all of them
            self._under_way.pop(slowest.rank, None)
        else:
            self._serving.set_aside(slowest.rank)
        self._world.time.give(self._answers[slowest.rank], slowest)

    def _push(self, rank: int) -> Process:
        world, serving, began = self._world, self._serving, self._world.time.now
        elsewhere = serving.elsewhere(rank)
        if not elsewhere:
            return
        if world.carries_values:
            yield from self._push_values(rank, elsewhere)
        else:
            places = [serving.places[each] for each in elsewhere]
            yield world.push(rank, places, [serving.part_size] * len(places))
        if world.server_cost:  # half for a push, half for a pull
            yield world.server_cost // 2
        yield from self._held_up(rank, began)

    def _pull(self, rank: int) -> Process:
        world, serving, began = self._world, self._serving, self._world.time.now
        elsewhere, copies = serving.elsewhere(rank), serving.coming(rank)
        copied: Signal | None = None
        if copies:
            copied = world.gather(rank, [each for each, _ in copies], [size for _, size in copies])
            world.count("copied_bytes", sum(size for _, size in copies))
        arrived: NDArray[np.float32] | None = None
        if elsewhere and self.pull_bound and world.carries_values:
            arrived = yield from self._pull_values(rank, elsewhere)
        elif elsewhere:
            places = [serving.places[each] for each in elsewhere]
            sizes = [serving.part_size] * len(places)
            yield world.renew(rank, places, sizes, self.pull_bound)
        if copied is not None:
            yield copied
        yield from self._held_up(rank, began)
        serving.hand_over(rank)
        if arrived is not None:
            world.learner.replace_parameters(rank, arrived)
        if elsewhere and world.server_cost:
            yield world.server_cost // 2

    def _held_up(self, rank: int, began: int) -> Process:
        """Take the time for which the worker or a server has stood still since."""
        attendance = self._world.attendance
        if attendance is not None:
            yield from attendance.lives.held_up({rank, *self._serving.places}, began)

    def _push_values(self, rank: int, elsewhere: Sequence[int]) -> Process:
        """Push a gradient; what gets lost on its way counts as zero, and own shards are here.

        With error feedback it is pushed with the next one.
        """
        learner, places = self._world.learner, self._serving.places
        gradient = learner.gradient(rank)
        shards = split_evenly(len(gradient), len(places))
        arrived = gradient.copy()
        for each in elsewhere:
            arrived[shards[each].start : shards[each].stop] = 0
        parts = [shards[each] for each in elsewhere]
        contribution = Contribution(gradient, arrived, parts, rank, self._world.holes)
        targets = [places[each] for each in elsewhere]
        yield self._world.push_values([rank] * len(targets), targets, contribution)
        learner.replace_gradient(rank, arrived)
        if rank in self._under_way:
            self._under_way[rank].gradient = gradient

    def _pull_values(
        self, rank: int, elsewhere: Sequence[int]
    ) -> Generator[int | Signal, Any, NDArray[np.float32]]:
        """Pull weights; where they get lost a worker keeps its own. Statistics arrive whole."""
        learner, places = self._world.learner, self._serving.places
        served, arrived = learner.served(rank), learner.parameters(rank)
        shards = split_evenly(len(served), len(places))
        for own in set(range(len(places))).difference(elsewhere):
            part = slice(shards[own].start, shards[own].stop)
            arrived[part] = served[part]
        version = Contribution(served, arrived, [shards[each] for each in elsewhere], tensor=rank)
        servers = [places[each] for each in elsewhere]
        yield self._world.renew_values(rank, servers, version, self.pull_bound)
        return arrived

    def handed_on(self, rank: int) -> dict[str, Any]:
        """Return the course's state, and what the weights hold that the newcomer gets."""
        return {**super().handed_on(rank), "shards": self._serving.handed_on(rank)}

    def take_over(self, rank: int, state: dict[str, Any]) -> None:
        """Let a newcomer go on from another's, with its weights."""
        super().take_over(rank, state)
        self._serving.take_over(rank, state["shards"])

    def notes(self, rank: int) -> dict[str, bytes]:
        """Return what a worker has of the shards."""
        return self._serving.notes(rank)

    def drop(self) -> None:
        """End the exchanges under way; workers have their gradients, and make them again."""
        world, under_way = self._world, self._under_way
        assert world.attendance is not None
        gone = world.attendance.lives.gone
        self._under_way = {}
        for rank, each in under_way.items():
            world.time.end(each.process)
            times = world.times[rank]
            if times.exchanges_since is not None:
                times.end_exchange(world.time.now)
            elif each.asked is not None:
                times.wait += world.time.now - each.asked
            if each.act.kind == "push" and rank not in gone:
                world.count("repeated_exchanges")
            if each.gradient is not None:
                world.learner.replace_gradient(rank, each.gradient)
            world.time.give(each.over, CHANGED)

    def install(self, decision: Decision) -> None:
        """Let workers go on with the shards as they are to be in the new view."""
        super().install(decision)
        self._due = {}
        self._serving.install(decision)

    def finish(self, world: World) -> None:
        """Note how stale reads were, as real servers do: a pull reads a shard of each."""
        shards = self._serving.live.values()
        alike = len(self._serving.places) / max(1, len(shards))  # one stands for so many
        reads: Counter[int] = Counter()
        for shard in shards:
            reads.update(shard.decisions.clock.staleness_counts)
        world.count("shard_reads", alike * reads.total())
        world.count("staleness", alike * sum(behind * n for behind, n in reads.items()))
        world.count("max.staleness", max(reads, default=0))
