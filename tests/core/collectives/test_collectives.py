"""Every averaging plan gives every member the exact mean, whatever the timing of the messages."""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.collectives import (
    AwaitFill,
    AwaitSend,
    Combine,
    Fetch,
    Fill,
    Phase,
    Plan,
    Send,
    Step,
    plan_average,
)
from shoal.collectives.choice import SCRATCH_BYTES, choose_sum, members_per_host
from shoal.collectives.direct import plan_direct
from shoal.collectives.graphs import ALGORITHMS, all_reduce
from shoal.collectives.pair import plan_pair
from shoal.collectives.ring import plan_ring
from shoal.errors import UsageError
from thoroughness import examples

PLANNERS = {"pair": plan_pair, "direct": plan_direct, "ring": plan_ring}


@dataclass
class Member:
    """One member's memory, and what it has under way."""

    plan: Plan
    buffer: list[Fraction]
    scratch: dict[int, list[Fraction]] = field(default_factory=dict)
    position: int = 0
    fetching: set[int] = field(default_factory=set)
    filling: set[range] = field(default_factory=set)
    sending: list[range] = field(default_factory=list)

    @property
    def next_step(self) -> Step | None:
        steps = self.plan.steps
        return steps[self.position] if self.position < len(steps) else None

    @property
    def finished(self) -> bool:
        return self.next_step is None and not (self.fetching or self.filling or self.sending)

    def can_go_on(self) -> bool:
        match self.next_step:
            case None:
                return False
            case Combine(_, sources, _):
                return not any(slot in self.fetching for _, slot in sources)
            case AwaitSend(piece):
                return piece not in self.sending
            case AwaitFill(piece):
                return piece not in self.filling
            case _:
                return True


class Group:
    """Members that exchange messages at the latest or the earliest moment, as chance has it.

    A message is read from the sender's memory when it is delivered, as a network without buffers
    may do, so a plan that overwrites what is still being sent computes a wrong mean here.
    """

    def __init__(self, plans: list[Plan], values: list[list[Fraction]]) -> None:
        self.members = [
            Member(plan, list(value)) for plan, value in zip(plans, values, strict=True)
        ]
        self.sends: dict[tuple[int, int, Phase], deque[range]] = defaultdict(deque)
        self.receives: dict[tuple[int, int, Phase], deque[Fetch | Fill]] = defaultdict(deque)
        self.elements_sent = 0

    def run(self, rng: random.Random) -> None:
        while not all(member.finished for member in self.members):
            going = [me for me, member in enumerate(self.members) if member.can_go_on()]
            ready = [key for key, queue in self.sends.items() if queue and self.receives[key]]
            assert going or ready, "deadlock"
            choice = rng.randrange(len(going) + len(ready))
            if choice < len(going):
                self.advance(going[choice])
            else:
                self.deliver(ready[choice - len(going)])

    def advance(self, me: int) -> None:
        member = self.members[me]
        step = member.next_step
        member.position += 1
        match step:
            case Send(piece, peer, phase):
                member.sending.append(piece)
                self.sends[me, peer, phase].append(piece)
            case Fetch(piece, peer, slot):
                assert slot not in member.fetching
                assert slot < member.plan.slots
                assert len(piece) <= member.plan.slot_length
                member.fetching.add(slot)
                self.receives[peer, me, Phase.REDUCE].append(step)
            case Fill(piece, peer):
                member.filling.add(piece)
                self.receives[peer, me, Phase.GATHER].append(step)
            case Combine(piece, sources, finish):
                for _, slot in sources:
                    for index, value in zip(piece, member.scratch.pop(slot), strict=True):
                        member.buffer[index] += value
                if finish:
                    for index in piece:
                        member.buffer[index] /= len(self.members)

    def deliver(self, key: tuple[int, int, Phase]) -> None:
        source, target = self.members[key[0]], self.members[key[1]]
        piece, receive = self.sends[key].popleft(), self.receives[key].popleft()
        assert piece == receive.piece
        values = [source.buffer[index] for index in piece]
        self.elements_sent += len(values)
        source.sending.remove(piece)
        if isinstance(receive, Fetch):
            target.scratch[receive.slot] = values
            target.fetching.remove(receive.slot)
        else:
            target.buffer[piece.start : piece.stop] = values
            target.filling.remove(piece)


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, int, int, int, int]:
    name = draw(st.sampled_from(list(PLANNERS)))
    size = 2 if name == "pair" else draw(st.integers(2, 8))
    return (
        name,
        size,
        draw(st.integers(1, 40)),
        draw(st.integers(1, 12)),
        draw(st.integers(1, 4)),
    )


@settings(max_examples=examples(300))
@given(case=cases(), seed=st.integers(0, 2**32))
def test_every_member_ends_with_the_exact_mean(
    case: tuple[str, int, int, int, int], seed: int
) -> None:
    name, size, length, piece_length, window = case
    rng = random.Random(seed)
    plan = PLANNERS[name]
    plans = [plan(size, me, length, piece_length, window) for me in range(size)]
    values = [[Fraction(rng.randrange(1000)) for _ in range(length)] for _ in range(size)]
    group = Group(plans, values)
    group.run(rng)

    mean = [sum(column) / size for column in zip(*values, strict=True)]
    assert all(member.buffer == mean for member in group.members)
    assert group.elements_sent == 2 * (size - 1) * length


@settings(max_examples=examples(100))
@given(case=cases(), me=st.integers(0, 7))
def test_pieces_are_never_empty_nor_longer_than_asked(
    case: tuple[str, int, int, int, int], me: int
) -> None:
    name, size, length, piece_length, window = case
    plan = PLANNERS[name](size, me % size, length, piece_length, window)
    assert all(1 <= len(step.piece) <= piece_length for step in plan.steps)
    assert plan.slot_length <= piece_length


@pytest.mark.parametrize("size", range(2, 9))
@pytest.mark.parametrize("num_bytes", [4, 1000, 4 << 20, 25 << 20, 400 << 20])
def test_chosen_plans_fit_the_scratch_bound(size: int, num_bytes: int) -> None:
    plan = plan_average(size, 0, num_bytes // 4, 4)
    assert plan.slots * plan.slot_length * 4 <= SCRATCH_BYTES


@pytest.mark.parametrize(
    ("hosts", "count"),
    [
        ("a", 1),
        ("aaa", 3),
        ("aabbcc", 2),
        ("abc", 1),
        ("aab", 1),  # one has fewer
        ("abab", 1),  # not host by host
        ("aabbaa", 1),
        ("abb", 1),
        ("aaabbbb", 1),
    ],
)
def test_hosts_count_if_they_are_alike_and_members_numbered_host_by_host(
    hosts: str, count: int
) -> None:
    assert members_per_host(hosts) == count


def leaving_hosts(algorithm: str, size: int, per_host: int) -> int:
    """Return the most elements of 12 for each member that leave a host."""
    left = Counter[int]()
    for me in range(size):
        graph = all_reduce(size, me, 12 * size, 12, algorithm=algorithm, per_host=per_host)
        for out in graph.outgoing:
            if out.peer // per_host != me // per_host:
                left[me // per_host] += len(out.piece)
    return max(left.values(), default=0)


@pytest.mark.parametrize(("size", "per_host"), [(4, 2), (6, 2), (6, 3), (8, 4), (3, 1), (4, 4)])
@pytest.mark.parametrize("num_bytes", [64 << 10, 100 << 20])
@pytest.mark.parametrize("keeps_apart", [False, True])
def test_the_chosen_sum_lets_least_leave_a_host(
    size: int, per_host: int, num_bytes: int, keeps_apart: bool
) -> None:
    chosen = choose_sum(size, num_bytes, per_host, keeps_apart=keeps_apart)
    least = min(leaving_hosts(each, size, per_host) for each in ALGORITHMS)
    assert leaving_hosts(chosen, size, per_host) == least
    if keeps_apart:
        assert chosen != "ring"
    assert choose_sum(size, 4, per_host, keeps_apart=keeps_apart) == "direct"


def test_pair_refuses_other_sizes() -> None:
    with pytest.raises(UsageError, match="group of two"):
        PLANNERS["pair"](3, 0, 10, 10, 1)
