"""Messages through shared memory: the same sums as by datagrams, and everyone is woken in time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from link_state import check_consistency, rows_at
from memory_link import SHARE, with_memory
from test_graphs import DTYPES, FAULTS, AllReduce, random_values
from transfers import Transfer
from virtual_link import Faults

from shoal.collectives import graphs
from shoal.collectives.choice import members_per_host
from shoal.transport import mailboxes
from shoal.transport.endpoint import TransportConfig
from shoal.transport.forms import FLOAT32, WIRE_BYTES
from shoal.transport.holes import DIVIDE_BY_COUNT
from shoal.transport.mailboxes import BLOCK_BYTES, SLOTS
from shoal.transport.tables import ADD, Counter
from thoroughness import examples

if TYPE_CHECKING:
    from shoal.transport.endpoint import Endpoint
    from shoal.transport.mailboxes import PostOffice


def sent_by_memory(endpoints: list[Endpoint]) -> int:
    return sum(each.counts()[Counter.BY_MEMORY_BYTES] for each in endpoints)


def sent(endpoints: list[Endpoint]) -> int:
    return sum(each.counts()[Counter.SENT_BYTES] for each in endpoints)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let mailboxes be full soon."""
    monkeypatch.setattr(mailboxes, "BLOCK_BYTES", 256)


@pytest.mark.usefixtures("small_blocks")
@given(
    algorithm=st.sampled_from(graphs.ALGORITHMS),
    hosts=st.sampled_from(
        [(0, 0), (0, 0, 0), (0,) * 5, (0, 0, 1), (0, 0, 1, 1), (0, 1, 0, 1), (0, 0, 0, 1, 1, 1)]
    ),
    length=st.integers(1, 3_000),
    piece_length=st.sampled_from([16, 200]),
    form=st.sampled_from(sorted(DTYPES)),
    faults=FAULTS,
    seed=st.integers(0, 1 << 30),
    latest=st.sampled_from([0, 20_000]),
    slowest_us=st.sampled_from([0, 500]),
)
@settings(max_examples=examples(150))
def test_an_all_reduce_is_the_mean_of_everyone(
    algorithm: str,
    hosts: tuple[int, ...],
    length: int,
    piece_length: int,
    form: int,
    faults: Faults,
    seed: int,
    latest: int,
    slowest_us: int,
) -> None:
    size = len(hosts)
    link, endpoints = with_memory(
        hosts,
        TransportConfig(segment_bytes=64),
        faults=faults,
        seed=seed,
        slowest_us=slowest_us,
        limit_us=600_000_000,
    )
    per_host = members_per_host(hosts)
    case = AllReduce(
        link,
        range(size),
        random_values(size, length, form, seed),
        algorithm=algorithm,
        piece_length=piece_length,
        form=form,
        per_host=per_host,
    )
    case.post_all(7, 1, latest)
    link.run()
    case.check_exact()
    for each in endpoints:
        check_consistency(each)
    if len(set(hosts)) == 1:
        assert sent_by_memory(endpoints) == sent(endpoints)
        assert link.counts["sent"] == 0
    elif algorithm == "direct":
        assert 0 < sent_by_memory(endpoints) < sent(endpoints)


@pytest.mark.usefixtures("small_blocks")
@given(
    seed=st.integers(0, 1 << 30),
    operations=st.lists(
        st.tuples(
            st.permutations(range(5)).map(lambda ranks: ranks[:3]),
            st.integers(2, 3),
            st.sampled_from(graphs.ALGORITHMS),
            st.integers(1, 800),
        ),
        min_size=2,
        max_size=8,
    ),
)
@settings(max_examples=examples(100))
def test_overlapping_groups_at_once_posted_in_any_order(
    seed: int, operations: list[tuple[list[int], int, str, int]]
) -> None:
    link, endpoints = with_memory((0, 0, 0, 1, 1), seed=seed, faults=Faults(loss=0.1))
    cases = []
    for number, (ranks, size, algorithm, length) in enumerate(operations):
        values = random_values(size, length, FLOAT32, seed + number)
        case = AllReduce(link, ranks[:size], values, algorithm=algorithm, piece_length=40)
        case.post_all(stream=number % 2, iteration=number // 2 + 1, latest=30_000)
        cases.append(case)
    link.run()
    for case in cases:
        case.check_exact()
    for each in endpoints:
        check_consistency(each)


def test_nothing_is_missing_where_something_might_be() -> None:
    link, _ = with_memory((0, 0, 0))
    values = random_values(3, 5_000, FLOAT32, 1)
    case = AllReduce(link, range(3), values, loss_bound=0.3, policy=DIVIDE_BY_COUNT)
    case.post_all(7, 1)
    link.run()
    assert case.check_direct_with_holes() == 0


def test_what_all_get_is_copied_once() -> None:
    link, _ = with_memory((0,) * 5, TransportConfig(segment_bytes=64))
    length = 5 * BLOCK_BYTES // WIRE_BYTES[FLOAT32]
    case = AllReduce(link, range(5), random_values(5, length, FLOAT32, 1), piece_length=length)
    case.post_all(7, 1)
    link.run()
    case.check_exact()
    for office in link.offices.values():
        blocks = np.count_nonzero(office.blocks["order"] >= 0)
        assert blocks == 4 + 1  # a part of each of the others' sums, and the sum of its own
        assert link.counts["runs"] == 5 * (4 + 4)


@pytest.mark.usefixtures("small_blocks")
def test_a_reader_that_does_not_read_holds_its_sender_back_and_nobody_else() -> None:
    link, _ = with_memory((0, 0, 0), TransportConfig(segment_bytes=64))
    large = np.ones(4 * SHARE * 256 // 4, np.float32)
    stuck, other = (Transfer(link, 0, to, large, iteration=to, mode=ADD) for to in (1, 2))
    for each in (stuck, other):
        each.post_receiver()
    link.run(lambda: link.now > 100)
    link.stopped.add(1)
    for each in (stuck, other):
        each.post_sender()
    link.run(lambda: other.receiver_ticket in link.finished[2])
    unread = {int(box["rank"]): int(box["unread"]) for box in link.offices[0].boxes}
    assert unread[1] == SHARE
    assert stuck.sender_ticket not in link.finished[0]
    link.stopped.clear()
    link.at(link.now, 1, lambda: None)
    link.run()
    stuck.check_places()


def test_packets_that_find_a_mailbox_full_go_as_datagrams() -> None:
    link, _ = with_memory((0, 0), TransportConfig(segment_bytes=64))
    transfers = [
        Transfer(link, 1, 0, np.ones(8, np.float32), iteration=number) for number in range(200)
    ]
    link.stopped.add(1)
    for each in transfers:
        each.post_receiver()
    link.run(lambda: link.now > 20_000)  # each says several times that it is ready
    assert link.offices[0].boxes["written"][0] == SLOTS
    assert link.counts["sent"] > 0
    link.stopped.clear()
    for each in transfers:
        each.post_sender()
    link.run()
    for each in transfers:
        each.check_places()


@pytest.mark.parametrize(
    ("name", "value"),
    [("at", 1 << 40), ("at", -8), ("message", 3), ("offset", 32), ("length", 0), ("length", 400)],
)
def test_a_slot_that_makes_no_sense_is_counted_and_has_no_other_effect(
    name: str, value: int
) -> None:
    link, endpoints = with_memory((0, 0), TransportConfig(segment_bytes=64))
    transfer = Transfer(link, 0, 1, np.arange(90, dtype=np.float32))
    transfer.post_receiver()
    link.run(lambda: link.now > 100)
    slot = leave_run(link.offices[0], length=64, stream=7, iteration=1)
    slot[name] = value
    link.at(link.now, 1, lambda: None)
    link.pass_time(100)
    assert not transfer.arrived().any()
    assert endpoints[1].counts()[Counter.MISPLACED] == max(1, -(-int(slot["length"]) // 64))
    check_consistency(endpoints[1])


def test_a_run_for_no_operation_is_counted() -> None:
    link, endpoints = with_memory((0, 0), TransportConfig(segment_bytes=64))
    leave_run(link.offices[0], length=128, stream=9, iteration=1)
    link.at(link.now, 1, lambda: None)
    link.pass_time(100)
    assert endpoints[1].counts()[Counter.UNEXPECTED] == 2


def leave_run(office: PostOffice, **fields: int) -> Any:
    """Leave a run in the first mailbox of an office, with nothing in its block; return its slot."""
    box = office.boxes[0]
    slots = rows_at(int(box["out"]) + mailboxes.SLOTS_AT, SLOTS, mailboxes.SLOT)
    slot = slots[int(box["written"]) % SLOTS]
    slot["kind"], slot["at"] = mailboxes.RUN, office.row["blocks_at"][0]
    for name, value in fields.items():
        slot[name] = value
    box["written"] += 1
    rows_at(int(box["out"]), 1, np.dtype(np.int64))[0] = box["written"]
    return slot


def test_packets_do_not_take_the_slots_of_blocks_that_are_still_to_be_given_back() -> None:
    """More packets than there are slots, each read as it is written, follow a payload."""
    link, (writer, _) = with_memory((0, 0))
    post, theirs = link.offices[0].row[0], link.offices[1].boxes[0]
    packet = np.zeros(8, np.uint8)
    block = mailboxes.free_block(post)
    mailboxes.publish(post, 0, block)
    mailboxes.note_read(theirs)
    for _ in range(2 * SLOTS):
        assert mailboxes.post_packet(writer.state, 1, packet.ctypes.data, packet.size)
        assert mailboxes.is_mail(theirs)
        mailboxes.note_read(theirs)
    assert mailboxes.fall_asleep(writer.state)
    office = link.offices[0]
    assert office.blocks["readers"].tolist() == [0] * len(office.blocks)
    assert office.boxes["unread"].tolist() == [0]


def test_a_mailbox_that_nobody_reads_is_full() -> None:
    link, (writer, _) = with_memory((0, 0))
    packet = np.zeros(8, np.uint8)
    posted = [
        mailboxes.post_packet(writer.state, 1, packet.ctypes.data, packet.size)
        for _ in range(SLOTS + 1)
    ]
    assert posted == [True] * SLOTS + [False]
    mailboxes.note_read(link.offices[1].boxes[0])
    assert mailboxes.post_packet(writer.state, 1, packet.ctypes.data, packet.size)
