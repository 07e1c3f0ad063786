"""The group generator call by call: its modes, its refusals, its counters, its determinism."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from shoal.errors import ProtocolError, UsageError
from shoal.groups.generator import GroupGenerator
from shoal.groups.generator_config import GeneratorConfig
from shoal.groups.generator_events import Assignment, AssignmentReason, GeneratorState

RANDOM_PAIRS = GeneratorConfig.random_mode(2)
BUFFERED_PAIRS = GeneratorConfig(2, global_division=False, slowdown_threshold=None)


class FirstChoice(Random):
    """Draws the first it is offered and never reorders, so that groups can be foretold."""

    def shuffle(self, x: object) -> None:  # type: ignore[override]
        pass

    def sample(self, population: list, k: int) -> list:  # type: ignore[override, type-arg]
        return list(population[:k])


def joined(config: GeneratorConfig, workers: int, per_host: int = 99) -> GroupGenerator:
    generator = GroupGenerator(config, FirstChoice())
    for rank in range(workers):
        generator.join(rank, rank // per_host)
    return generator


def test_a_group_is_answered_when_its_last_member_arrives() -> None:
    generator = joined(GeneratorConfig(), 3)
    assert generator.request(2, 10) == []
    assert generator.request(0, 20) == []
    assert generator.request(1, 30) == [
        Assignment(0, (0, 1, 2), requested_by=2, reason=AssignmentReason.DIVISION)
    ]


def test_one_request_divides_all_idle_workers() -> None:
    generator = joined(GeneratorConfig(), 8)
    generator.request(0, 0)
    groups = generator.dump().groups
    assert sorted(rank for group in groups for rank in group.members) == list(range(8))
    assert [len(group.members) for group in groups] == [3, 3, 2]


def test_with_several_hosts_a_division_plans_two_rounds_for_everyone() -> None:
    generator = joined(GeneratorConfig(), 16, per_host=4)
    generator.request(0, 0)
    state = generator.dump()
    assert all(len(worker.queue) == 2 for worker in state.workers)
    assert {group.reason for group in state.groups} == {
        AssignmentReason.ACROSS_HOSTS,
        AssignmentReason.WITHIN_HOST,
        AssignmentReason.WHOLE_HOST,
    }


def test_the_group_buffer_serves_a_worker_that_others_have_drawn() -> None:
    generator = joined(BUFFERED_PAIRS, 3)
    assert generator.request(0, 0) == []
    (group,) = generator.request(1, 1)
    assert (group.members, group.reason) == ((0, 1), AssignmentReason.RANDOM)
    assert generator.counters.groups_formed == 1


def test_random_mode_serves_older_groups_first_and_says_who_must_ask_again() -> None:
    generator = joined(RANDOM_PAIRS, 3)
    assert generator.request(1, 0) == []  # plans {0, 1}
    (first,) = generator.request(0, 1)  # plans {0, 1} again, but serves the older one
    assert (first.group_id, first.members, first.requested_by) == (0, (0, 1), 1)
    assert first.more == (0,)
    assert generator.request(0, 2) == []  # asks again: plans nothing, waits for its own
    assert generator.counters.groups_formed == 2
    (second,) = generator.request(1, 3)  # computed a step, plans a third, serves the second
    assert (second.group_id, second.requested_by, second.more) == (1, 0, (1,))


def test_a_request_with_nobody_to_join_is_answered_alone() -> None:
    generator = joined(GeneratorConfig(), 1)
    (group,) = generator.request(0, 0)
    assert (group.members, group.reason) == ((0,), AssignmentReason.ALONE)


def test_leaving_starts_the_group_that_waited_for_nobody_else() -> None:
    generator = joined(GeneratorConfig(), 3)
    generator.request(0, 0)
    generator.request(1, 0)
    (group,) = generator.leave(2, 5)
    assert (group.members, group.reason) == ((0, 1), AssignmentReason.DIVISION)
    assert 2 not in generator
    assert len(generator) == 2


def test_a_group_shrunk_to_one_is_answered_and_says_why() -> None:
    generator = joined(GeneratorConfig(group_size=2), 2)
    generator.request(0, 0)
    (group,) = generator.leave(1, 5)
    assert (group.members, group.reason) == ((0,), AssignmentReason.SHRUNK)


def test_one_departure_can_start_several_groups() -> None:
    generator = joined(RANDOM_PAIRS, 3)
    for rank, partner in ((1, 0), (2, 0)):
        assert generator.request(rank, 0) == [], partner
    answers = generator.leave(0, 1)
    assert [group.members for group in answers] == [(1,), (2,)]


def test_no_group_starts_with_one_of_several_that_leave_together() -> None:
    generator = joined(GeneratorConfig(group_size=3), 3)
    generator.request(0, 0)
    generator.request(2, 0)
    (group,) = generator.leave_together([1, 2], 5)
    assert group.members == (0,)
    assert len(generator) == 1
    with pytest.raises(ProtocolError, match="not known here"):
        generator.leave_together([0, 1], 6)
    assert 0 in generator, "a refusal changes nothing"


def test_a_worker_may_leave_while_it_runs_a_group_and_join_again() -> None:
    generator = joined(GeneratorConfig(group_size=2), 2)
    generator.request(0, 0)
    generator.request(1, 0)
    assert generator.leave(1, 1) == []
    generator.join(1)
    generator.request(0, 2)
    (group,) = generator.request(1, 3)
    assert group.members == (0, 1)


def test_a_newcomer_starts_level_with_the_furthest() -> None:
    generator = joined(GeneratorConfig(group_size=2), 1)
    for now_ns in range(50):
        generator.request(0, now_ns)
    generator.join(1)
    generator.request(0, 50)
    (planned,) = generator.dump().groups
    assert planned.members == (0, 1)


def test_a_newcomer_is_level_with_those_who_are_still_here() -> None:
    generator = joined(GeneratorConfig(), 1)
    for now_ns in range(50):
        generator.request(0, now_ns)
    generator.leave(0, 50)
    generator.join(1)
    (newcomer,) = generator.dump().workers
    assert newcomer.progress == 0


def test_misuse_is_refused_and_changes_nothing() -> None:
    generator = joined(GeneratorConfig(), 2)
    generator.request(0, 0)
    before = generator.dump()
    with pytest.raises(ProtocolError, match="before it was answered"):
        generator.request(0, 1)
    with pytest.raises(ProtocolError, match="join first"):
        generator.request(7, 1)
    with pytest.raises(ProtocolError, match="join first"):
        generator.leave(7, 1)
    with pytest.raises(ProtocolError, match="already joined"):
        generator.join(1)
    assert generator.dump() == before


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(
        UsageError, match="A group size must be a whole number of at least 2, not 1"
    ):
        GeneratorConfig(group_size=1)
    with pytest.raises(UsageError, match=r"A slowdown threshold, .* of at least 1, not 0"):
        GeneratorConfig(slowdown_threshold=0)
    assert GeneratorConfig.smart_mode() == GeneratorConfig()
    assert not GeneratorConfig.random_mode().group_buffer


def script(config: GeneratorConfig, seed: int) -> tuple[list[Assignment], GeneratorState]:
    """Play 2,000 calls whose order depends on the answers; return all answers and the end."""
    generator = GroupGenerator(config, Random(seed))
    order = Random(99)
    able = list(range(12))
    for rank in able:
        generator.join(rank, rank // 4)
    answers = []
    for now_ns in range(2000):
        rank = able.pop(order.randrange(len(able)))
        answer = generator.request(rank, now_ns)
        answers += answer
        able += [member for group in answer for member in group.members]
    return answers, generator.dump()


@pytest.mark.parametrize(
    "config",
    [GeneratorConfig(), GeneratorConfig(refined_filter=False), BUFFERED_PAIRS, RANDOM_PAIRS],
)
def test_same_seed_and_calls_same_answers(config: GeneratorConfig) -> None:
    assert script(config, seed=5) == script(config, seed=5)
    assert script(config, seed=5)[0] != script(config, seed=6)[0]


def test_the_state_survives_json() -> None:
    _, state = script(GeneratorConfig(), seed=1)
    assert state.groups
    assert msgspec.json.decode(msgspec.json.encode(state), type=GeneratorState) == state


def test_a_dump_is_detached() -> None:
    generator = joined(GeneratorConfig(), 2)
    before = generator.dump()
    generator.request(0, 0)
    generator.request(1, 7)
    assert before.counters.requests == 0
    assert before.counters.group_sizes == {}


def test_every_reason_is_one_sentence_and_one_word() -> None:
    for reason in AssignmentReason:
        assert str(reason).endswith(".")
        assert " " not in reason.value


class TestCounters:
    """Each counter moves by what happened, and by nothing else."""

    def test_requests_groups_sizes_and_buffer_hits(self) -> None:
        generator = joined(GeneratorConfig(), 3)
        for rank in (0, 1, 2, 0):
            generator.request(rank, 0)
        counters = generator.counters
        assert counters.requests == 4
        assert counters.requests_by_rank == {0: 2, 1: 1, 2: 1}
        assert counters.buffer_hits == 2
        assert (counters.groups_formed, counters.groups_started) == (2, 1)
        assert counters.group_sizes == {3: 1}
        assert (counters.conflicts, counters.serializations, counters.filtered) == (0, 0, 0)

    def test_requests_of_those_who_left_are_kept(self) -> None:
        generator = joined(GeneratorConfig(), 2)
        generator.request(1, 0)
        generator.leave(1, 1)
        assert generator.counters.requests_by_rank == {1: 1}

    def test_staleness_is_how_far_the_members_of_a_group_are_apart(self) -> None:
        generator = joined(GeneratorConfig.random_mode(2), 3)
        assert generator.counters.staleness(1)["max.staleness"] == 0
        generator.leave(1, 0)
        generator.leave(2, 0)
        for _ in range(4):
            generator.request(0, 0)  # alone: nobody to be apart from
        assert generator.counters.staleness(1) == {"max.staleness": 0, "staleness.0": 0}
        generator.join(1)
        generator.request(1, 0)  # its first, with what is the other's fifth
        generator.request(0, 0)
        assert generator.counters.staleness_by_rank == {0: [4, 4], 1: [4, 4], 2: [0, 0]}
        assert generator.counters.staleness(10) == {
            "max.staleness": 40,
            "staleness.0": 10 * 4 / 5,
            "staleness.1": 40,
        }

    def test_waits(self) -> None:
        generator = joined(GeneratorConfig(), 3)
        for rank, now_ns in ((0, 10), (1, 30), (2, 40)):
            generator.request(rank, now_ns)
        assert (generator.counters.wait_ns, generator.counters.longest_wait_ns) == (40, 30)
        for rank in (0, 1, 2):
            generator.request(rank, 100 + rank)
        assert (generator.counters.wait_ns, generator.counters.longest_wait_ns) == (43, 30)

    def test_conflicts_count_overlapping_groups_and_serializations_groups_that_wait(self) -> None:
        generator = joined(GeneratorConfig.random_mode(3), 3)
        generator.request(0, 0)
        assert (generator.counters.conflicts, generator.counters.serializations) == (0, 0)
        generator.request(1, 0)
        assert (generator.counters.conflicts, generator.counters.serializations) == (1, 1)
        generator.request(2, 0)
        assert (generator.counters.conflicts, generator.counters.serializations) == (3, 2)

    def test_a_division_without_buffer_conflicts_through_the_requester(self) -> None:
        generator = joined(GeneratorConfig(2, group_buffer=False, inter_intra=False), 4)
        generator.request(0, 0)
        assert generator.counters.conflicts == 0
        generator.request(1, 0)
        assert (generator.counters.conflicts, generator.counters.serializations) == (1, 1)

    def test_the_second_round_of_a_division_is_no_conflict(self) -> None:
        generator = joined(GeneratorConfig(), 16, per_host=4)
        for rank in range(16):
            generator.request(rank, 0)
        assert generator.counters.conflicts == 0

    def test_asking_again_is_no_request(self) -> None:
        generator = joined(RANDOM_PAIRS, 2)
        generator.request(1, 0)
        (group,) = generator.request(0, 0)
        assert group.more == (0,)
        generator.request(0, 0)
        assert generator.counters.requests == 2

    @pytest.mark.parametrize("division", [True, False])
    def test_filtered_workers(self, division: bool) -> None:
        config = GeneratorConfig(2, global_division=division, slowdown_threshold=1)
        generator = joined(config, 2)
        (group,) = generator.request(1, 0)
        assert group.reason is AssignmentReason.ALONE
        assert generator.counters.filtered == 1
