"""What a generator of groups promises, and all that can happen to a few workers that it serves.

`Ledger` is an independent account of what the generator promised. `explore` takes every
interleaving of what the workers of a `World` can do, and every random choice.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from shoal.groups.generator import GroupGenerator
from shoal.groups.generator_events import Assignment, AssignmentReason

if TYPE_CHECKING:
    from shoal.groups.generator_config import GeneratorConfig

COMPUTING, WAITING, MUST_ASK_AGAIN = "computing", "waiting", "must ask again"


class Ledger:
    """What every live worker does, by the answers alone; refuses an answer that breaks a rule."""

    def __init__(self, config: GeneratorConfig) -> None:
        self.config = config
        self.doing: dict[int, str] = {}
        self.running: dict[int, int] = {}
        self.last_group: dict[int, int] = {}
        self.answers: dict[int, int] = {}

    def join(self, rank: int) -> None:
        self.doing[rank] = COMPUTING
        self.answers[rank] = 0

    def request(self, rank: int, answer: list[Assignment]) -> None:
        assert self.doing[rank] != WAITING
        self.doing[rank] = WAITING
        self.running.pop(rank, None)
        assert len(answer) <= 1
        assert all(rank in assignment.members for assignment in answer)
        self.take(answer)

    def leave(self, ranks: list[int], answer: list[Assignment]) -> None:
        for rank in ranks:
            del self.doing[rank]
            self.running.pop(rank, None)
        self.take(answer)

    def take(self, answer: list[Assignment]) -> None:
        for group in answer:
            assert list(group.members) == sorted(set(group.members))
            assert set(group.more) <= set(group.members)
            assert (len(group.members) == 1) == (
                group.reason in (AssignmentReason.ALONE, AssignmentReason.SHRUNK)
            )
            for rank in group.members:
                self.start(rank, group)

    def start(self, rank: int, group: Assignment) -> None:
        assert self.doing[rank] == WAITING
        assert rank not in self.running, "a worker is in two running groups"
        assert self.last_group.get(rank, -1) < group.group_id, "not the one order of all groups"
        self.last_group[rank] = self.running[rank] = group.group_id
        if self.config.group_buffer:
            assert rank not in group.more
        elif rank not in group.more:
            assert group.requested_by == rank or self.config.global_division
        self.answers[rank] += 1
        self.doing[rank] = MUST_ASK_AGAIN if rank in group.more else COMPUTING

    def able(self) -> list[int]:
        """Return who can call `request` next, ascending."""
        return [rank for rank in sorted(self.doing) if self.doing[rank] != WAITING]

    def waiting(self) -> list[int]:
        return [rank for rank in sorted(self.doing) if self.doing[rank] == WAITING]


def check_state(generator: GroupGenerator, ledger: Ledger) -> None:
    """Compare the generator's own account with the ledger's, and check it for stranded groups."""
    state = generator.dump()
    workers = {worker.rank: worker for worker in state.workers}
    assert sorted(workers) == sorted(ledger.doing)
    arrived = dict.fromkeys((group.group_id for group in state.groups), 0)
    for rank, worker in workers.items():
        assert (worker.waiting_since_ns is not None) == (ledger.doing[rank] == WAITING)
        assert worker.running == ledger.running.get(rank)
        assert list(worker.queue) == sorted(set(worker.queue))
        assert worker.queue[:1] > (ledger.last_group.get(rank, -1),) or not worker.queue
        assert (worker.owed is not None) == (
            ledger.doing[rank] == MUST_ASK_AGAIN
            or (not state.config.group_buffer and ledger.doing[rank] == WAITING)
        )
        assert worker.owed is None or worker.owed in worker.queue
        if worker.waiting_since_ns is not None:
            arrived[worker.queue[0]] += 1
    for group in state.groups:
        assert set(group.members) <= set(workers)
        assert group.members == tuple(
            r for r in sorted(workers) if group.group_id in workers[r].queue
        )
        assert group.arrived == arrived[group.group_id]
        assert group.arrived < len(group.members), "a group all of whose members wait is stranded"
    counters = state.counters
    assert counters.groups_started <= counters.groups_formed
    assert sum(counters.requests_by_rank.values()) == counters.requests
    assert sum(counters.group_sizes.values()) == counters.groups_started
    assert counters.serializations <= counters.conflicts


class ScriptedRandom:
    """Takes the choices it is told, then the first of each; remembers how many there were."""

    def __init__(self) -> None:
        self.script: list[int] = []
        self.taken: list[tuple[int, int]] = []

    def pick(self, options: list[Any]) -> Any:
        position = len(self.taken)
        choice = self.script[position] if position < len(self.script) else 0
        self.taken.append((choice, len(options)))
        return options[choice]

    def shuffle(self, items: list[Any]) -> None:
        items[:] = self.pick(list(itertools.permutations(items)))

    def sample(self, population: list[Any], k: int) -> list[Any]:
        return list(self.pick(list(itertools.combinations(population, k))))


class World:
    """A few workers with a few steps to go, of whom some may die at any moment."""

    def __init__(self, config: GeneratorConfig, workers: int, steps: int, deaths: int) -> None:
        self.random = ScriptedRandom()
        self.generator = GroupGenerator(config, self.random)  # type: ignore[arg-type]
        self.ledger = Ledger(config)
        self.steps = dict.fromkeys(range(workers), steps)
        self.deaths = deaths
        for rank in range(workers):
            self.generator.join(rank, host=rank // 2)
            self.ledger.join(rank)

    def actions(self) -> list[tuple[str, int]]:
        able = self.ledger.able()
        finished = [r for r in able if self.ledger.doing[r] == COMPUTING and not self.steps[r]]
        actions = [("leave", r) if r in finished else ("ask", r) for r in able]
        if self.deaths:
            actions += [("die", rank) for rank in sorted(self.ledger.doing) if rank not in finished]
        return actions

    def unfinished(self) -> list[int]:
        """Return the living workers that have not left."""
        return sorted(self.ledger.doing)

    def apply(self, action: str, rank: int) -> None:
        if action == "ask":
            self.steps[rank] -= self.ledger.doing[rank] == COMPUTING
            self.ledger.request(rank, self.generator.request(rank, 0))
        else:
            self.deaths -= action == "die"
            self.ledger.leave([rank], self.generator.leave(rank, 0))
        check_state(self.generator, self.ledger)

    def key(self) -> tuple[object, ...]:
        """Return all that the future depends on; group ids count by their order alone."""
        state = self.generator.dump()
        place = {group.group_id: place for place, group in enumerate(state.groups)}
        workers = tuple(
            (
                worker.rank,
                self.ledger.doing[worker.rank],
                self.steps[worker.rank],
                tuple(place[group_id] for group_id in worker.queue),
                place.get(worker.owed, -1) if worker.owed is not None else None,
                worker.progress if state.config.slowdown_threshold else 0,
            )
            for worker in state.workers
        )
        return (*workers, self.deaths)


def outcomes(frozen: bytes, action: tuple[str, int]) -> Iterator[World]:
    """Apply `action` to copies of a world, once for every possible choice of the random numbers."""
    scripts: list[list[int]] = [[]]
    while scripts:
        world: World = pickle.loads(frozen)
        world.random.script, world.random.taken = scripts.pop(), []
        told = len(world.random.script)
        world.apply(*action)
        choices = [choice for choice, _ in world.random.taken]
        for position in range(told, len(choices)):
            alternatives = range(1, world.random.taken[position][1])
            scripts += [[*choices[:position], other] for other in alternatives]
        world.random.script, world.random.taken = [], []
        yield world


def explore(world: World) -> tuple[int, int]:
    """Visit every state that can be reached; return how many there are and how many are ends.

    Every answer and state on the way is checked. An end has all workers finished: anything else in
    which nobody can act is a deadlock.
    """
    seen = {world.key()}
    stack = [pickle.dumps(world)]
    ends = 0
    while stack:
        frozen = stack.pop()
        here: World = pickle.loads(frozen)
        actions = here.actions()
        assert actions or not here.unfinished(), "deadlock: everyone waits"
        ends += not actions
        for action in actions:
            for world in outcomes(frozen, action):
                if (key := world.key()) not in seen:
                    seen.add(key)
                    stack.append(pickle.dumps(world))
    return len(seen), ends
