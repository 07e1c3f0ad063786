"""A parameter server layer by layer: pushes beside backward, pulls beside the next forward.

Bulk-synchronous, sharded over the workers' hosts. A layer's push begins when every worker has its
gradient, its pull when every push has arrived, and the next forward pass computes a layer as soon
as it is there: so what arrives first matters. Either everything is handed to the network at once,
or by priority: front layers first, a bounded number of bytes under way, in partitions (P3,
ByteScheduler; the scheduled baselines of DLCP, docs/papers.md, 1.11).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Final, final

import numpy as np

from shoal.collectives import split_evenly
from shoal.errors import UsageError
from shoal.sim.training.model import ELEMENT_BYTES, FORWARD
from shoal.sim.training.strategy import AbstractSimulatedStrategy
from shoal.sim.transports.contributions import Contribution
from shoal.sim.virtual_time import Signal
from shoal.transport import check_messages, layer_class

if TYPE_CHECKING:
    from shoal.sim.training.world import World
    from shoal.sim.virtual_time import Process

BIG_LAYER: Final = 1_000_000
"""Parameters from which a layer is divided among all servers, as in MXNet's key-value store."""

PARTITION_BYTES: Final = 4_000_000
"""The part of a layer that goes as one where order matters, in bytes that each worker sends."""

CREDIT_BYTES: Final = 16_000_000
"""The bytes of partitions that each worker may have under way in either direction."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a layer that moves as one."""

    layer: int
    servers: tuple[int, ...]
    size: float
    """Bytes that each worker sends, to all servers together."""
    elements: range
    """The elements of a worker's gradient."""


class _Line:
    """What waits to be sent in one direction, and how much may be under way."""

    def __init__(self, credit: float) -> None:
        self.credit, self.under_way = credit, 0.0
        self.waiting: list[tuple[int, int, _Part]] = []


class _Step:
    """A step's layers: which are computed, sent and there, and the gradients if they travel."""

    def __init__(self, layers: int, parts: list[int]) -> None:
        self.computed = [0] * layers
        self.left = list(parts)
        self.there = [Signal() for _ in range(layers)]
        self.values = np.zeros(0, np.float32)
        self.arrived = np.zeros(0, np.float32)
        """The workers' gradients one after another; what got lost is zero."""


@final
class LayeredServer(AbstractSimulatedStrategy):
    """`servers` ranks hold the parameters (0: all of them); `order` is "fifo" or "priority"."""

    def __init__(self, *, servers: int = 0, order: str = "fifo") -> None:
        if order not in ("fifo", "priority"):
            message = f"Layers go in the order fifo or priority, not {order!r}."
            raise UsageError(message)
        self._servers, self._order = servers, order

    def prepare(self, world: World) -> None:
        """Place the layers on the servers."""
        if not 0 <= self._servers <= world.size:
            message = f"Servers are 1 to {world.size} of the workers, not {self._servers}."
            raise UsageError(message)
        self._world = world
        servers = range(self._servers or world.size)
        self._parts: list[list[_Part]] = []
        turn, first = count(), 0
        for number, layer in enumerate(world.model.layers):
            big = layer.parameters >= BIG_LAYER
            owners = tuple(servers) if big else (servers[next(turn) % len(servers)],)
            elements = range(first, first + layer.parameters)
            self._parts.append(self._cut(number, owners, elements))
            first = elements.stop
        self._steps: dict[int, _Step] = {}
        self._pushes, self._pulls = _Line(CREDIT_BYTES), _Line(CREDIT_BYTES)
        self._order_of_issue = count()

    def check_holes(self, policy: int) -> None:
        """Refuse what servers would have to count."""
        check_messages(policy)

    def worker(self, rank: int) -> Process:
        """Forward as layers arrive, backward, each gradient pushed when all have it."""
        world, layers = self._world, self._world.model.layers
        mine = world.times[rank]
        for number in range(world.steps):
            step = self._step(number)
            for place, layer in enumerate(layers):
                if number > 0:
                    mine.begin_exchange(world.time.now)
                    yield self._step(number - 1).there[place]
                    mine.end_exchange(world.time.now)
                yield world.computes(rank, number, FORWARD * layer.share)
            if number > 0:
                world.stepped(rank)
                self._steps.pop(number - 2, None)
            world.learner.compute_gradient(rank)
            for place in reversed(range(len(layers))):
                yield world.computes(rank, number, (1 - FORWARD) * layers[place].share)
                step.computed[place] += 1
                if step.computed[place] == world.size:
                    for part in self._parts[place]:
                        self._issue(self._pushes, number, part)
        mine.begin_exchange(world.time.now)
        yield from self._step(world.steps - 1).there
        mine.end_exchange(world.time.now)
        world.stepped(rank)

    def _cut(self, layer: int, servers: tuple[int, ...], elements: range) -> list[_Part]:
        size = len(elements) * ELEMENT_BYTES
        pieces = -(-size // PARTITION_BYTES) if self._order == "priority" else 1
        return [_Part(layer, servers, size / pieces, part) for part in _split(elements, pieces)]

    def _step(self, number: int) -> _Step:
        if number not in self._steps:
            self._steps[number] = _Step(len(self._parts), [len(each) for each in self._parts])
        return self._steps[number]

    def _issue(self, line: _Line, step: int, part: _Part) -> None:
        """Let a part go when its turn comes: the front layers', then the older ones."""
        if self._order == "fifo":
            self._world.time.begin(self._move(line, step, part))
            return
        heapq.heappush(line.waiting, (part.layer, next(self._order_of_issue), part))
        self._go_on(line, step)

    def _go_on(self, line: _Line, step: int) -> None:
        while line.waiting and (
            line.under_way == 0 or line.under_way + line.waiting[0][2].size <= line.credit
        ):
            part = heapq.heappop(line.waiting)[2]
            line.under_way += part.size
            self._world.time.begin(self._move(line, step, part))

    def _move(self, line: _Line, step: int, part: _Part) -> Process:
        """Push a part from every worker or pull it to every worker, and see what may follow."""
        world = self._world
        workers = [rank for rank in range(world.size) for _ in part.servers]
        servers = list(part.servers) * world.size
        sizes = [part.size / len(part.servers)] * len(workers)
        urgency = layer_class(part.layer, len(self._parts))
        if line is self._pushes:
            if world.carries_values:
                contribution = self._contribution(step, part)
                yield world.push_values(workers, servers, contribution, layer_class=urgency)
            else:
                yield world.pushes(workers, servers, sizes, layer_class=urgency)
            yield from self._software(part)
            self._issue(self._pulls, step, part)
        else:
            yield world.sends(servers, workers, sizes, layer_class=urgency)
            yield from self._software(part)
            self._arrived(step, part)
        if self._order == "priority":
            line.under_way -= part.size
            self._go_on(line, step)

    def _software(self, part: _Part) -> Process:
        """Take a part's share of what software takes: half of it pushes, half of it pulls."""
        took = round(self._world.server_cost / 2 * part.size / self._world.model.bytes)
        if took:
            yield took

    def _contribution(self, number: int, part: _Part) -> Contribution:
        """Return what every worker has of a part, for each server in turn."""
        step, everyone = self._step(number), range(self._world.size)
        if not len(step.values):
            step.values = np.concatenate([self._world.learner.gradient(each) for each in everyone])
            step.arrived = np.zeros_like(step.values)
        length = len(step.values) // len(everyone)
        parts = [
            range(rank * length + piece.start, rank * length + piece.stop)
            for rank in everyone
            for piece in _split(part.elements, len(part.servers))
        ]
        return Contribution(step.values, step.arrived, parts, part, self._world.holes)

    def _arrived(self, step: int, part: _Part) -> None:
        its, learner, everyone = self._step(step), self._world.learner, range(self._world.size)
        its.left[part.layer] -= 1
        if its.left[part.layer] == 0:
            if sum(its.left) == 0:
                if len(its.arrived):
                    for rank, gradient in enumerate(np.split(its.arrived, len(everyone))):
                        learner.replace_gradient(rank, gradient)
                learner.update_by_mean(everyone)
            self._world.time.give(its.there[part.layer])


def _split(elements: range, pieces: int) -> list[range]:
    """Return parts of nearly the same length, one after another."""
    first = elements.start
    return [
        range(first + part.start, first + part.stop) for part in split_evenly(len(elements), pieces)
    ]
