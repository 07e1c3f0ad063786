"""A collective as a graph of messages: what goes where, what arrives, what waits for what.

The transport carries such graphs out without a program: a message goes as soon as the gate before
it opens, a gate opens when the messages that lead to it are in. `graph_of` turns a plan, which is a
program for executors that run one, into its graph, so that each algorithm is written once.
Elements are counted from the start of the buffer; peers are positions in the group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from shoal.collectives.plan import AwaitFill, Combine, Fetch, Fill, Phase, Plan, Send

NO_GATE: Final = -1


@dataclass(frozen=True, slots=True)
class Outgoing:
    """`piece` of the buffer goes to `peer` once gate `after` is open (NO_GATE: at once).

    `lossy` says whether it is a contribution to a sum, of which a bounded share may get lost.
    """

    piece: range
    peer: int
    after: int
    lossy: bool = False


@dataclass(frozen=True, slots=True)
class Incoming:
    """`piece` arrives from `peer`: is added to what is there, or replaces it; leads to `gate`.

    `lossy` as for outgoing messages. `contributions` says how many members' contributions to a sum
    it carries if none gets lost.
    """

    piece: range
    peer: int
    adds: bool
    gate: int
    lossy: bool = False
    contributions: int = 1


@dataclass(frozen=True, slots=True)
class Gate:
    """`piece` is complete when it opens; `finish` says whether that completes a sum."""

    piece: range
    finish: bool


@dataclass(frozen=True, slots=True)
class MessageGraph:
    """What one member sends and receives, and in which order only where it must be.

    Messages from one member to another are matched in the order in which they stand here.
    """

    outgoing: tuple[Outgoing, ...]
    incoming: tuple[Incoming, ...]
    gates: tuple[Gate, ...]


def graph_of(plan: Plan, carried: Sequence[int] = ()) -> MessageGraph:
    """Return the message graph of a plan whose sums are made in the buffer.

    What is fetched k-th carries `carried[k]` contributions; one each if that is empty.

    Contributions are added to the buffer as they arrive, so no piece may be added to while its old
    content is still to be sent: true of the direct and the ring algorithm, not of the pair's.
    """
    sends: dict[Phase, list[Outgoing]] = {Phase.REDUCE: [], Phase.GATHER: []}
    fetched: list[Incoming] = []
    filled: list[Incoming] = []
    gates: list[Gate] = []
    latest: dict[int, int] = {}
    adding = {
        (step.piece.start, peer): step
        for step in plan.steps
        if isinstance(step, Combine)
        for peer, _ in step.sources
    }
    gate_of: dict[int, int] = {}
    awaited = {step.piece.start for step in plan.steps if isinstance(step, AwaitFill)}
    fill_gate: dict[int, int] = {}
    for step in plan.steps:
        match step:
            case Fetch(piece, peer, _):
                combine = adding[piece.start, peer]
                gate = gate_of.setdefault(id(combine), len(gates))
                if gate == len(gates):
                    gates.append(Gate(piece, combine.finish))
                contributions = carried[len(fetched)] if carried else 1
                fetched.append(
                    Incoming(
                        piece, peer, adds=True, gate=gate, lossy=True, contributions=contributions
                    )
                )
            case Fill(piece, peer):
                gate = NO_GATE
                if piece.start in awaited:
                    gate = fill_gate[piece.start] = len(gates)
                    gates.append(Gate(piece, finish=False))
                filled.append(Incoming(piece, peer, adds=False, gate=gate))
            case Combine():
                latest[step.piece.start] = gate_of[id(step)]
            case AwaitFill(piece):
                latest[piece.start] = fill_gate[piece.start]
            case Send(piece, peer, phase):
                after = latest.get(piece.start, NO_GATE)
                sends[phase].append(Outgoing(piece, peer, after, lossy=phase is Phase.REDUCE))
            case _:
                pass
    outgoing = (*sends[Phase.REDUCE], *sends[Phase.GATHER])
    return MessageGraph(outgoing, (*fetched, *filled), tuple(gates))


def exact_from(graph: MessageGraph, at: int) -> MessageGraph:
    """Return a graph that does the same, but may lose nothing of element `at` and those behind it.

    Its pieces are cut there: what lies before may get lost as it might.
    """
    gates: list[Gate] = []
    made: list[list[int]] = []
    for gate in graph.gates:
        parts = _parts(gate.piece, at)
        made.append([len(gates) + place for place in range(len(parts))])
        gates += [replace(gate, piece=part) for part in parts]

    def gate_of(number: int, part: range) -> int:
        """Return which part of a gate goes with a part of a message's piece."""
        if number == NO_GATE:
            return NO_GATE
        return made[number][-1 if part.stop > at else 0]

    outgoing = [
        replace(
            message,
            piece=part,
            after=gate_of(message.after, part),
            lossy=message.lossy and part.stop <= at,
        )
        for message in graph.outgoing
        for part in _parts(message.piece, at)
    ]
    incoming = [
        replace(
            message,
            piece=part,
            gate=gate_of(message.gate, part),
            lossy=message.lossy and part.stop <= at,
        )
        for message in graph.incoming
        for part in _parts(message.piece, at)
    ]
    return MessageGraph(tuple(outgoing), tuple(incoming), tuple(gates))


def divided(
    graph: MessageGraph, ways: int, piece_length: int, *, shard: int | None = None
) -> list[MessageGraph]:
    """Return `ways` graphs that together do what `graph` does, and wait for nothing of each other.

    Each takes whole pieces, of `piece_length` elements, in turn; what is done with a piece stays
    together. So all members must count pieces from the same place: the start of the buffer, or,
    where only some of them have all of it, that of each `shard` of so many elements.
    """
    if ways == 1:
        return [graph]

    def way_of(piece: range) -> int:
        place = piece.start if shard is None else piece.start % shard
        return place // piece_length % ways

    return [_only(graph, way, way_of) for way in range(ways)]


def _only(graph: MessageGraph, way: int, way_of: Callable[[range], int]) -> MessageGraph:
    """Return what a graph does with the pieces of one way."""

    def takes(piece: range) -> bool:
        return way_of(piece) == way

    numbers = [number for number, gate in enumerate(graph.gates) if takes(gate.piece)]
    place = {number: at for at, number in enumerate(numbers)}
    place[NO_GATE] = NO_GATE
    return MessageGraph(
        tuple(
            replace(message, after=place[message.after])
            for message in graph.outgoing
            if takes(message.piece)
        ),
        tuple(
            replace(message, gate=place[message.gate])
            for message in graph.incoming
            if takes(message.piece)
        ),
        tuple(graph.gates[number] for number in numbers),
    )


def _parts(piece: range, at: int) -> list[range]:
    """Return the parts of a piece before `at` and behind it; the piece if `at` does not cut it."""
    if not piece.start < at < piece.stop:
        return [piece]
    return [range(piece.start, at), range(at, piece.stop)]
