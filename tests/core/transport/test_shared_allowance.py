"""Messages of one shard share what their bound lets go missing, and never more than that."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from link_state import check_consistency, check_saved
from test_graphs import FAULTS, AllReduce, random_values
from transfers import Guarded, bits_at
from virtual_link import Datagram, Faults, VirtualLink, joined

from shoal.transport import wire
from shoal.transport.endpoint import TransportConfig
from shoal.transport.forms import FLOAT32
from shoal.transport.holes import ERROR_FEEDBACK
from shoal.transport.messages import MessageTables, Receiving, Sending
from shoal.transport.tables import ADD, Counter
from thoroughness import examples, seldom

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SEGMENT = 16
ELEMENTS = SEGMENT // 4
RECEIVER = 0


@dataclass(eq=False)
class Contributions:
    """Hosts 1 and up send host 0 one contribution each, in shards of several messages.

    `cuts` are the messages' numbers of segments, shard by shard. What is sent is 1 everywhere, so
    the sum at any place counts what came there.
    """

    link: VirtualLink
    cuts: Sequence[Sequence[int]]
    bound: float
    iteration: int = 1
    senders: list[MessageTables] = field(default_factory=list)
    tickets: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.link.kept.append(self)
        hosts, messages, at = len(self.link.endpoints), [], 0
        for shard, cut in enumerate(self.cuts):
            for segments in cut:
                messages.append((shard, at, segments * ELEMENTS - shard % 2))
                at += segments * ELEMENTS
        self.count = at
        self.target = Guarded(4 * at)
        self.receiving = MessageTables(
            hosts,
            SEGMENT,
            FLOAT32,
            receiving=[
                Receiving(peer, start, count, ADD, loss_bound=self.bound, shard=shard)
                for shard, start, count in messages
                for peer in range(1, hosts)
            ],
        )
        self.receiving.place(self.target.address)
        self.values = np.ones(at, np.float32)
        for _ in range(1, hosts):
            sending = [Sending(RECEIVER, s, n, loss_bound=self.bound) for _, s, n in messages]
            tables = MessageTables(hosts, SEGMENT, FLOAT32, sending=sending, keeps_missing=True)
            tables.place(self.values.ctypes.data)
            self.senders.append(tables)

    def post(self, latest: int = 0) -> None:
        """Post everyone's part, each at a random time up to `latest` from now."""
        for host, tables in enumerate([self.receiving, *self.senders]):
            moment = self.link.now + self.link.random.randint(0, latest)
            self.link.at(moment, host, partial(self._post, host, tables))

    def _post(self, host: int, tables: MessageTables) -> None:
        self.tickets[host] = self.link.post(host, tables, iteration=self.iteration)

    def cancel(self) -> None:
        """Give it up wherever it stands."""
        for host, ticket in self.tickets.items():
            self.link.cancel(host, ticket)

    def missing_by_shard(self) -> list[float]:
        """Return the share of each sender's shards that is missing; each must keep the bound."""
        rows, shares = self.receiving.incoming, []
        for address in np.unique(rows["saved"]):
            shard = rows[rows["saved"] == address]
            missing, size = (shard["size"] - shard["received"]).sum(), shard["size"].sum()
            assert missing <= self.bound * size
            shares.append(missing / size)
        return shares

    def check(self) -> None:
        """Fail unless the bound holds, all know what is missing, and the rest is in its place."""
        self.target.check()
        assert len(self.missing_by_shard()) == len(self.cuts) * len(self.senders)
        check_saved(self.receiving.incoming)
        came = np.zeros(self.count, np.float32)
        kept = np.zeros(self.count, np.float32)
        for peer, tables in enumerate(self.senders, start=1):
            rows = self.receiving.incoming[self.receiving.incoming["peer"] == peer]
            for row, sent in zip(rows, tables.outgoing, strict=True):
                holes = bits_at(int(row["seen"]), int(row["segments"]))
                told = bits_at(int(sent["missing"]), int(row["segments"]))
                np.testing.assert_array_equal(told, holes)
                start, count = int(row["start"]) // 4, int(row["size"]) // 4
                came[start : start + count] += np.repeat(~holes, ELEMENTS)[:count]
            tables.add_kept(kept.ctypes.data)
        np.testing.assert_array_equal(self.target.bytes.view(np.float32), came)
        whole = np.zeros(self.count, np.float32)
        for row in self.senders[0].outgoing:
            whole[int(row["start"]) // 4 : (int(row["start"]) + int(row["size"])) // 4] = 1
        np.testing.assert_array_equal(came + kept, whole * len(self.senders))


SHARDS = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=6), min_size=1, max_size=3)


@given(
    hosts=st.integers(2, 4),
    cuts=SHARDS,
    bound=st.sampled_from([0.01, 0.05, 0.2, 0.6]),
    faults=FAULTS,
    stop_early=st.booleans(),
    cancelled_after=st.integers(0, 20_000),
    seed=st.integers(0, 1 << 30),
)
@settings(max_examples=examples(25, least=5))
def test_no_shard_lacks_more_than_its_bound_whatever_the_network_does(
    hosts: int,
    cuts: list[list[int]],
    bound: float,
    faults: Faults,
    stop_early: bool,
    cancelled_after: int,
    seed: int,
) -> None:
    config = TransportConfig(segment_bytes=SEGMENT, stop_early=stop_early)
    link, endpoints = joined(hosts, config, faults=faults, seed=seed, limit_us=600_000_000)
    first, given_up, last = (Contributions(link, cuts, bound, number) for number in (1, 2, 3))

    def look(_: Datagram) -> None:
        for case in (first, given_up, last):
            if RECEIVER in case.tickets:
                check_saved(case.receiving.incoming)

    link.watch = look
    for case in (first, given_up, last):
        case.post(latest=5_000)
    link.pass_time(5_000 + cancelled_after)
    given_up.cancel()
    link.run()
    first.check()
    last.check()
    for each in endpoints:
        check_consistency(each)


def losing(link: VirtualLink, lost: set[tuple[int, int]]) -> Callable[[Datagram], bool]:
    """Return a fault that loses the first packet of each (message, segment) of `lost`."""
    left = set(lost)

    def drop(datagram: Datagram) -> bool:
        header = datagram.header
        key = (int(header["message"]), int(header["offset"]) // SEGMENT)
        if not datagram.is_data or key not in left:
            return False
        left.remove(key)
        return True

    link.drop = drop
    return drop


def lost_in(message: int, segments: Sequence[int]) -> set[tuple[int, int]]:
    return {(message, segment) for segment in segments}


@pytest.mark.parametrize("stop_early", [False, True])
@pytest.mark.parametrize(
    ("lost", "repaired"),
    [
        (lost_in(3, [1, 5, 6, 17]), 0),  # what the first three have saved
        (lost_in(3, [1, 5, 6, 8, 17]), 5),  # more than all of them may lack
        (lost_in(0, [2, 3]), 2),  # nothing is borrowed from those to come
        (lost_in(0, [2]) | lost_in(1, [3]) | lost_in(2, [9]) | lost_in(3, [8]), 0),
        (lost_in(0, [2]) | lost_in(2, [1, 9]) | lost_in(3, [8]), 0),
    ],
)
def test_later_messages_may_lack_what_earlier_ones_did_not(
    lost: set[tuple[int, int]], repaired: int, stop_early: bool
) -> None:
    link, endpoints = joined(2, TransportConfig(segment_bytes=SEGMENT, stop_early=stop_early))
    if stop_early:  # a loss elsewhere keeps it from stopping early
        endpoints[RECEIVER].state.peers["lossy_until"] = 1 << 40
    # one segment of 20 each; the tables begin where the iteration says, all of them are sent
    case = Contributions(link, [[20] * 4], 0.05)
    losing(link, lost)
    case.post()
    link.run()
    case.check()
    assert endpoints[1].counts()[Counter.SENT] == 80 + repaired
    assert (endpoints[RECEIVER].counts()[Counter.BITMAPS] > 0) == bool(repaired)
    assert case.missing_by_shard() == [0 if repaired else len(lost) / 80]


def test_shards_share_nothing_with_each_other() -> None:
    link, endpoints = joined(2, TransportConfig(segment_bytes=SEGMENT, stop_early=False))
    case = Contributions(link, [[20] * 4, [20]], 0.05)
    losing(link, lost_in(4, [3, 7]))
    case.post()
    link.run()
    case.check()
    assert endpoints[1].counts()[Counter.SENT_AGAIN] == 2


def test_tables_that_are_used_again_have_saved_nothing() -> None:
    link, endpoints = joined(2, TransportConfig(segment_bytes=SEGMENT, stop_early=False))
    case = Contributions(link, [[20] * 4], 0.05)
    case.post()
    link.run()
    case.check()
    case.iteration = 2
    losing(link, lost_in(0, [3, 7]))
    case.target.bytes[:] = 0
    case.post()
    link.run()
    case.check()
    assert endpoints[1].counts()[Counter.SENT_AGAIN] == 2


def stops_early(link: VirtualLink, iteration: int) -> bool:
    """Return whether a message that loses nothing is stopped at its bound."""
    case = Contributions(link, [[400]], 0.5, iteration)
    case.post()
    link.run()
    case.check()
    return case.missing_by_shard() != [0]


def test_where_nothing_gets_lost_a_bound_leaves_nothing_out() -> None:
    link, endpoints = joined(2, TransportConfig(segment_bytes=SEGMENT))
    case = Contributions(link, [[20] * 4, [7]], 0.2)
    case.post()
    link.run()
    case.check()
    assert case.missing_by_shard() == [0, 0]
    assert endpoints[1].counts()[Counter.SENT] == 87


def test_where_packets_get_lost_nothing_else_is_left_out() -> None:
    config = TransportConfig(
        segment_bytes=SEGMENT, budget_packets=16, first_budget_packets=16, stop_early=True
    )
    link, _ = joined(2, config)
    assert stops_early(link, 1)
    exact = Contributions(link, [[20]], 0.0, 2)
    losing(link, lost_in(0, [5]))
    exact.post()
    link.run()
    link.drop = None
    assert not stops_early(link, 3)
    for iteration in range(4, 18):  # until the loss is forgotten
        stops_early(link, iteration)
    assert stops_early(link, 18)


@pytest.mark.parametrize(
    ("algorithm", "bound"), seldom([("direct", 0.05), ("ring", 0.15)], often=[])
)
def test_an_all_reduce_repairs_less_than_if_every_message_stood_alone(
    algorithm: str, bound: float
) -> None:
    """3 % of the packets get lost, and every hop may lose 5 %: few shards repair anything."""
    hosts, pieces, segments = 4, 8, 40
    config = TransportConfig(segment_bytes=SEGMENT)
    link, _ = joined(hosts, config, seed=2)
    values = random_values(hosts, hosts * pieces * segments * ELEMENTS, FLOAT32, 1)
    hops = hosts - 1 if algorithm == "ring" else 1
    case = AllReduce(
        link,
        range(hosts),
        values,
        algorithm=algorithm,
        piece_length=segments * ELEMENTS,
        loss_bound=bound / hops,
        policy=ERROR_FEEDBACK,
    )
    link.drop = lambda each: each.is_data and link.random.random() < 0.03
    asked_again: set[tuple[int, int, int, int]] = set()

    def look(each: Datagram) -> None:
        header = each.header
        sums = pieces * (hops if algorithm == "ring" else 1)
        if each.kind == wire.BITMAP and header["message"] < sums:
            key = (each.source, each.target, int(header["iteration"]), int(header["message"]))
            asked_again.add(key)

    link.watch = look
    rounds = 6
    for iteration in range(rounds):
        case.post_all(7, iteration)
        link.run()
        for tables in case.tables:
            check_saved(tables.incoming)
    messages = rounds * hosts * (hosts - 1) * pieces
    # more than 2 of 40 get lost of 12 % of the messages
    assert 0 < len(asked_again) < 0.08 * messages
