"""The parameter server's clock: bounded staleness, lock-step under BSP, nobody waits for ever."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shoal.errors import ProtocolError, UsageError
from shoal.groups.server_clock import ClockAdvance, ServerClock, Update, UpdateRule
from thoroughness import examples


def finish_iteration(clock: ServerClock, rank: int) -> ClockAdvance:
    assert clock.pull(rank)
    return clock.push(rank)


def test_bsp_applies_an_iteration_at_once_and_releases_everyone() -> None:
    clock = ServerClock({0: 0, 1: 0, 2: 0}, staleness=0)
    assert finish_iteration(clock, 2) == ClockAdvance()
    assert not clock.pull(2)
    assert finish_iteration(clock, 0) == ClockAdvance()
    assert not clock.pull(0)
    last = finish_iteration(clock, 1)
    assert last.apply == (Update(0, 0), Update(1, 0), Update(2, 0))
    assert last.released == (0, 2)


def test_updates_of_all_come_to_one_of_bsp() -> None:
    for staleness in (None, 3):
        assert UpdateRule(staleness).rate_divisor(8) == 8
        assert UpdateRule(staleness, scale_updates=False).rate_divisor(8) == 1
        for scaled in (True, False):  # a rate is no measure of statistics
            assert UpdateRule(staleness, scaled).buffer_share(8) == 1 / 8
    for scaled in (True, False):
        assert UpdateRule(0, scaled).rate_divisor(8) == UpdateRule(0, scaled).buffer_share(8) == 1


def test_ssp_applies_at_once_and_lets_the_fastest_run_ahead_by_its_staleness() -> None:
    clock = ServerClock({0: 0, 1: 0}, staleness=2)
    for iteration in range(3):
        assert finish_iteration(clock, 0).apply == (Update(0, iteration),)
    assert not clock.pull(0)
    assert finish_iteration(clock, 1) == ClockAdvance((Update(1, 0),), released=(0,))
    assert clock.staleness_counts == {0: 2, 1: 1, 2: 2}


def test_asp_never_waits() -> None:
    clock = ServerClock({0: 0, 1: 0}, staleness=None)
    for iteration in range(100):
        assert finish_iteration(clock, 0).apply == (Update(0, iteration),)
    assert clock.minimum == 0


def test_leaving_releases_those_who_waited_for_it() -> None:
    clock = ServerClock({0: 0, 1: 0, 2: 0}, staleness=0)
    for rank in (0, 1):
        finish_iteration(clock, rank)
        assert not clock.pull(rank)
    assert clock.leave(2) == ClockAdvance((Update(0, 0), Update(1, 0)), released=(0, 1))


def test_what_the_last_worker_pushed_is_applied_when_all_have_left() -> None:
    clock = ServerClock({0: 0, 1: 0}, staleness=0)
    finish_iteration(clock, 0)
    assert clock.leave(0) == ClockAdvance()
    assert clock.leave(1) == ClockAdvance((Update(0, 0),))


def test_misuse_is_refused_and_changes_nothing() -> None:
    clock = ServerClock({0: 0, 1: 0}, staleness=0)
    with pytest.raises(ProtocolError, match="before it was granted a read"):
        clock.push(0)
    assert clock.pull(0)
    with pytest.raises(ProtocolError, match="pulled twice"):
        clock.pull(0)
    with pytest.raises(ProtocolError, match="does not take part"):
        clock.push(7)
    clock.push(0)
    assert not clock.pull(0)
    with pytest.raises(ProtocolError, match="pulled twice"):
        clock.pull(0)
    assert finish_iteration(clock, 1).released == (0,)


@pytest.mark.parametrize(
    ("clocks", "staleness", "readers"),
    [({}, 0, ()), ({1: -1}, 0, ()), ({0: 0}, -1, ()), ({0: 0}, 0, (1,))],
)
def test_impossible_settings_are_refused(
    clocks: dict[int, int], staleness: int, readers: tuple[int, ...]
) -> None:
    with pytest.raises(UsageError):
        ServerClock(clocks, staleness, readers)


def test_a_clock_goes_on_from_given_counts() -> None:
    clock = ServerClock({0: 7, 1: 8, 2: 8}, staleness=0, readers=[0, 1])
    assert clock.minimum == 7
    assert clock.push(1) == ClockAdvance(), "it began the iteration that the slowest has to end"
    with pytest.raises(ProtocolError, match="before it was granted a read"):
        clock.push(2)  # that of its last iteration is counted already
    assert not clock.pull(2)
    assert not clock.pull(1)
    with pytest.raises(ProtocolError, match="pulled twice"):
        clock.pull(0)  # it has read
    assert clock.push(0) == ClockAdvance((Update(0, 7),), released=(2,))
    assert clock.staleness_counts == {0: 1}, "reads of another view are not counted again"


class ServerClockMachine(RuleBasedStateMachine):
    """Pulls, pushes and departures in any order, against a model that remembers every update."""

    @initialize(count=st.integers(1, 4), staleness=st.sampled_from([0, 1, 3, None]))
    def start(self, count: int, staleness: int | None) -> None:
        self.clock = ServerClock(dict.fromkeys(range(count), 0), staleness)
        self.staleness = staleness
        self.clocks = dict.fromkeys(range(count), 0)
        self.may_push: set[int] = set()
        self.waiting: set[int] = set()
        self.pushed: set[Update] = set()
        self.applied: list[Update] = []
        self.someone_left = False

    def idle(self) -> list[int]:
        return [r for r in self.clocks if r not in self.may_push and r not in self.waiting]

    def check_read(self, rank: int) -> None:
        mine = self.clocks[rank]
        bound = mine if self.staleness is None else self.staleness
        assert mine - min(self.clocks.values()) <= bound
        owed = {Update(r, i) for r in self.clocks for i in range(mine - bound)}
        assert owed <= set(self.applied)
        if self.staleness == 0 and not self.someone_left:
            assert set(self.applied) == owed
        self.may_push.add(rank)

    def take(self, advance: ClockAdvance) -> None:
        self.applied += advance.apply
        assert set(self.applied) <= self.pushed
        assert len(set(self.applied)) == len(self.applied)
        for rank in advance.released:
            self.waiting.remove(rank)
            self.check_read(rank)

    @precondition(lambda self: self.idle())
    @rule(data=st.data())
    def pull(self, data: st.DataObject) -> None:
        rank = data.draw(st.sampled_from(self.idle()))
        if self.clock.pull(rank):
            self.check_read(rank)
        else:
            self.waiting.add(rank)

    @precondition(lambda self: self.may_push)
    @rule(data=st.data())
    def push(self, data: st.DataObject) -> None:
        rank = data.draw(st.sampled_from(sorted(self.may_push)))
        self.may_push.remove(rank)
        self.pushed.add(Update(rank, self.clocks[rank]))
        self.clocks[rank] += 1
        self.take(self.clock.push(rank))

    @precondition(lambda self: len(self.clocks) > 1)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        rank = data.draw(st.sampled_from(sorted(self.clocks)))
        del self.clocks[rank]
        self.may_push.discard(rank)
        self.waiting.discard(rank)
        self.someone_left = True
        self.take(self.clock.leave(rank))

    @invariant()
    def someone_can_go_on(self) -> None:
        clocks = getattr(self, "clocks", {})
        assert not clocks or set(clocks) != self.waiting

    @invariant()
    def nobody_waits_without_need(self) -> None:
        for rank in getattr(self, "waiting", ()):
            assert self.staleness is not None
            assert self.clocks[rank] - min(self.clocks.values()) == self.staleness + 1

    @invariant()
    def clocks_agree(self) -> None:
        for rank, clock in getattr(self, "clocks", {}).items():
            assert self.clock.clock_of(rank) == clock

    def teardown(self) -> None:
        if getattr(self, "staleness", 0) != 0:
            assert set(self.applied) == self.pushed


TestServerClockMachine = ServerClockMachine.TestCase
TestServerClockMachine.settings = settings(max_examples=examples(100), stateful_step_count=50)
