"""Datagrams that nobody should have sent: counted, and nothing crashes, hangs or is overwritten.

SHOAL_FUZZ sets how many datagrams the two fuzzers make up (default a million in all, of which
`make test` takes a third).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from by_hand import CLOCK, feedback, header, written
from link_state import check_consistency
from transfers import MARGIN, Guarded, Transfer, tables_of
from virtual_link import Datagram, Faults, VirtualLink, joined, tag

from shoal.collectives.direct import plan_direct
from shoal.collectives.message_graph import graph_of
from shoal.compiled import compiled
from shoal.transport import wire
from shoal.transport.agreement import agreement_of_outgoing
from shoal.transport.endpoint import Endpoint, TransportConfig
from shoal.transport.forms import (
    FLOAT32,
    FLOAT32_AS_BFLOAT16,
    FLOAT32_AS_FLOAT16,
    FLOAT64,
    MEMORY_BYTES,
    WIRE_BYTES,
)
from shoal.transport.holes import DIVIDE_BY_COUNT, ERROR_FEEDBACK
from shoal.transport.messages import MessageTables, Receiving, Sending
from shoal.transport.parity import PARITY
from shoal.transport.receiving import on_datagrams
from shoal.transport.tables import ADD, WRITE, Counter, State, new_state
from thoroughness import examples

if TYPE_CHECKING:
    from numpy.typing import NDArray

FUZZ = int(os.environ.get("SHOAL_FUZZ", examples(1_000_000)))
NOT_RECEIVED = {
    Counter.REFUSED,
    Counter.CONTROL_DROPPED,
    Counter.PROBES,
    Counter.BY_MEMORY_BYTES,
    Counter.AVOIDED,
}
"""Counters that no datagram from outside raises, or only many bitmaps of the same kind do."""

BATCH = 500
STRIDE = 512
SEGMENT = 64
HOSTS = 4
FORMS = (FLOAT32, FLOAT64, FLOAT32_AS_BFLOAT16, FLOAT32, FLOAT32, FLOAT32_AS_FLOAT16)


# ---- one at a time ------------------------------------------------------------------------------


def receiver() -> tuple[VirtualLink, Endpoint, Transfer]:
    """Host 1 waits for three segments of 64 bytes, 64 bytes and 8 bytes from host 0."""
    link, endpoints = joined(2)
    transfer = Transfer(link, 0, 1, np.ones(34, np.float32), iteration=5)
    transfer.post_receiver()
    written(endpoints[1])
    return link, endpoints[1], transfer


def data(size: int = 64, **fields: int) -> bytes:
    """Return a DATA packet that host 1 would accept, but for `fields` and `size`."""
    about = {"session": tag(0, 1), "iteration": 5, "length": size, **fields}
    return header(wire.DATA, **about) + b"\x3f" * size


NOBODY = -1
REFUSALS = {
    "nothing": (b"", NOBODY, Counter.TRUNCATED),
    "a byte too few for a header": (data()[:31], NOBODY, Counter.TRUNCATED),
    "version 0": (data(version=0), NOBODY, Counter.OTHER_VERSION),
    "version 2": (data(version=2), NOBODY, Counter.OTHER_VERSION),
    "another session": (data(session=tag(0, 1) + 1), NOBODY, Counter.FOREIGN),
    "our own rank": (data(source=1), NOBODY, Counter.FOREIGN),
    "a rank too many": (data(source=2), NOBODY, Counter.FOREIGN),
    "the last rank there can be": (data(source=0xFFFF), NOBODY, Counter.FOREIGN),
    "a byte lost": (data()[:-1], 0, Counter.TRUNCATED),
    "a byte gained": (data() + b"\0", 0, Counter.TRUNCATED),
    "no payload": (data()[:32], 0, Counter.TRUNCATED),
    "a number not granted": (data(number=3), 0, Counter.MISPLACED),
    "a number far ahead": (data(number=0x7FFFFFFF), 0, Counter.MISPLACED),
    "a number from before the first": (data(number=0xFFFFFFFF), 0, Counter.MISPLACED),
    "another stream": (data(stream=8), 0, Counter.UNEXPECTED),
    "another iteration": (data(iteration=6), 0, Counter.UNEXPECTED),
    "another message": (data(message=1), 0, Counter.MISPLACED),
    "an offset inside a segment": (data(offset=4), 0, Counter.MISPLACED),
    "an offset behind the end": (data(offset=192), 0, Counter.MISPLACED),
    "the largest offset": (data(offset=0xFFFFFFC0), 0, Counter.MISPLACED),
    "a segment too short": (data(60), 0, Counter.MISPLACED),
    "a segment too long": (data(80), 0, Counter.MISPLACED),
    "a whole message as one segment": (data(136), 0, Counter.MISPLACED),
    "a last segment too long": (data(64, offset=128), 0, Counter.MISPLACED),
    "an empty segment": (data(0), 0, Counter.MISPLACED),
    "parity of a message that has none": (data(offset=PARITY), 0, Counter.MISPLACED),
    "a parity too many": (data(offset=PARITY + 64, flags=1 << 5), 0, Counter.MISPLACED),
    "parity between two": (data(offset=PARITY + 4, flags=7 << 5), 0, Counter.MISPLACED),
    "parity too short": (data(60, offset=PARITY, flags=7 << 5), 0, Counter.MISPLACED),
    "parity too long": (data(80, offset=PARITY, flags=7 << 5), 0, Counter.MISPLACED),
    "the last parity there can be": (
        data(offset=0xFFFFFFC0, flags=7 << 5),
        0,
        Counter.MISPLACED,
    ),
    "kind 0": (
        header(0, session=tag(0, 1), length=24) + feedback(),
        0,
        Counter.UNKNOWN_KIND,
    ),
    "kind 9": (
        header(9, session=tag(0, 1), length=24) + feedback(),
        0,
        Counter.UNKNOWN_KIND,
    ),
    "half a feedback block": (
        header(wire.FEEDBACK, session=tag(0, 1), length=12) + b"\0" * 12,
        0,
        Counter.TRUNCATED,
    ),
    "a probe for what was never posted": (
        header(wire.PROBE, session=tag(0, 1), length=24, iteration=9) + feedback(),
        0,
        Counter.UNEXPECTED,
    ),
    "a probe for a message too many": (
        header(wire.PROBE, session=tag(0, 1), length=24, iteration=5, message=1) + feedback(),
        0,
        Counter.MISPLACED,
    ),
    "a report on packets never sent": (
        header(wire.FEEDBACK, session=tag(0, 1), length=24) + feedback(highest=1, received=1),
        0,
        Counter.MISPLACED,
    ),
    "a grant beyond all measure": (
        header(wire.FEEDBACK, session=tag(0, 1), length=24) + feedback(grant=8_193),
        0,
        Counter.MISPLACED,
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_every_refusal_is_counted_and_has_no_other_effect(name: str) -> None:
    datagram, rank, counter = REFUSALS[name]
    link, endpoint, transfer = receiver()
    row = endpoint.state.counters[rank]
    before = row.copy()
    link.hand(1, datagram)
    assert row[counter] == before[counter] + 1
    assert not transfer.received.any()
    transfer.check_places()
    check_consistency(endpoint)
    # a packet number has arrived, wherever it belongs, so a report may follow, but no answer
    assert {each[0] & 15 for each in written(endpoint)} <= {wire.FEEDBACK}
    link.hand(1, data(number=1))
    assert transfer.received[:16].all()


def test_duplicates_late_and_stale_packets_are_told_apart() -> None:
    link, endpoint, transfer = receiver()
    counts = endpoint.state.counters[0]
    link.hand(1, data(number=0))
    link.hand(1, data(number=0))
    assert counts[Counter.REPLAYED] == 1
    link.hand(1, data(number=1))
    assert counts[Counter.REPEATED] == 1
    link.hand(1, data(number=2, offset=64))
    link.hand(1, data(8, number=3, offset=128))
    assert counts[Counter.STOPS] == 1
    link.hand(1, data(number=2))
    assert counts[Counter.REPLAYED] == 2
    assert wire.STOP in [each[0] & 15 for each in written(endpoint)]
    # its operation is finished: a later question still gets a STOP, plain data nothing
    endpoint.state.peers[0]["grant"] += 10
    link.hand(1, data(number=4))
    assert counts[Counter.STALE] == 1
    assert written(endpoint) == []
    link.hand(1, data(8, number=5, offset=128, flags=wire.LAST))
    assert counts[Counter.STALE] == 2
    assert [each[0] & 15 for each in written(endpoint)] == [wire.STOP]
    assert transfer.received.all()


def test_data_of_a_message_that_is_done_in_an_operation_that_is_not_is_late() -> None:
    link, (_, endpoint) = joined(2)
    buffer = np.zeros(32, np.float32)
    tables = MessageTables(
        2,
        64,
        FLOAT32,
        receiving=[Receiving(0, 0, 16, WRITE), Receiving(0, 16, 16, WRITE)],
    )
    tables.place(buffer.ctypes.data)
    link.post(1, tables, iteration=5)
    written(endpoint)
    link.hand(1, data(number=0))
    link.hand(1, data(number=1))
    assert endpoint.counts(0)[Counter.LATE] == 1
    endpoint.state.peers[0]["grant"] += 10
    written(endpoint)
    link.hand(1, data(number=2, flags=wire.LAST))
    assert [each[0] & 15 for each in written(endpoint)] == [wire.STOP]


def test_traffic_recorded_and_replayed_changes_nothing() -> None:
    recorded: list[Datagram] = []
    faults = Faults(loss=0.1, reordering=0.2)
    link, endpoints = joined(3, faults=faults, seed=2, watch=recorded.append)
    for iteration in range(3):
        for source in range(3):
            values = np.full(16 * 40, 1.0 + iteration, np.float32)
            Transfer(link, source, (source + 1) % 3, values, iteration=iteration).post()
    link.run()
    assert len(recorded) > 300
    later = []
    for source in range(3):
        values = np.arange(16 * 40, dtype=np.float32)
        later.append(Transfer(link, source, (source + 1) % 3, values, mode=ADD, iteration=9))
        later[-1].post()
    old = list(recorded)
    for number, each in enumerate(old):
        link.at(
            link.now + 13 * number,
            each.target,
            lambda each=each: link.hand(each.target, each.payload, each.tos),
        )
    link.run()
    for transfer in later:
        transfer.check_places()
    replayed = sum(each.counts()[Counter.REPLAYED] for each in endpoints)
    delivered = {d.payload for d in old if d.is_data}
    assert replayed >= 0.85 * len(delivered)


def test_a_peer_that_comes_back_speaks_with_another_tag() -> None:
    link, (first, _) = joined(2)
    Transfer(link, 0, 1, np.ones(100, np.float32)).post()
    link.run()
    recorded: list[Datagram] = []
    link.watch = recorded.append
    reborn = Endpoint(1, 2, link.endpoints[1].config)
    reborn.connect(0, tag_in=77, tag_out=tag(1, 0))
    link.endpoints = [first, reborn]
    stale = Transfer(link, 0, 1, np.ones(100, np.float32), iteration=2)
    stale.post_receiver()
    stale.post_sender()
    link.pass_time(100_000)
    # host 0 still uses the tag of the one that died: nothing it sends is believed
    assert not stale.received.any()
    assert reborn.state.counters[-1, Counter.FOREIGN] > 0
    assert reborn.counts(0)[Counter.RECEIVED] == 0


# ---- fuzzing ------------------------------------------------------------------------------------


@compiled
def feed(
    state: State, memory: int, sizes: NDArray[np.int64], tos: NDArray[np.uint8], now: int
) -> int:
    """Hand over a datagram of each size, STRIDE apart; return how many were not counted."""
    uncounted = 0
    for index in range(sizes.size):
        before = state.counters.sum()
        size = sizes[index]
        on_datagrams(state, memory + index * STRIDE, size, size, now, int(tos[index]), now)
        if state.counters.sum() == before:
            uncounted += 1
    return uncounted


@compiled
def note_agreements(state: State, table: NDArray[np.int64]) -> None:
    """Note for every operation and rank what the rank's READY would have to say."""
    for slot in range(table.shape[0]):
        for rank in range(table.shape[1]):
            table[slot, rank] = -1
            if state.operations[slot].active:
                table[slot, rank] = agreement_of_outgoing(state.operations[slot], rank)


class Target:
    """Host 0 of four with operations of all sorts, which are posted again as they finish."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        config = TransportConfig(
            segment_bytes=SEGMENT, first_budget_packets=512, paths=3, spray_unit=2
        )
        self.tables: list[Guarded] = []
        self.endpoint = Endpoint(0, HOSTS, config, new_state(HOSTS, zeros=self.guarded_zeros))
        self.link, _ = joined(HOSTS, config, seed=seed, instead=[self.endpoint])
        self.now = 1
        self.iteration = 0
        self.running: dict[int, tuple[int, MessageTables, Guarded]] = {}
        self.finished: list[int] = []
        self.replenish()

    def guarded_zeros(self, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return zeros between canaries, as many on each side: indices may have a wrong sign."""
        size = count * dtype.itemsize
        guard = Guarded(size, margin=max(MARGIN, size))
        self.tables.append(guard)
        return guard.bytes.view(dtype)

    def replenish(self) -> None:
        """Post new operations in place of those that have finished, and cancel one now and then."""
        for slot in self.endpoint.finished():
            iteration, _, guard = self.running.pop(slot)
            guard.check()
            self.finished.append(iteration)
        if self.running and self.random.random() < 0.2:
            slot = next(iter(self.running))
            self.endpoint.cancel(slot)
            self.running.pop(slot)[2].check()
        while len(self.running) < 8:
            self.iteration += 1
            tables, guard = self.operation(self.iteration % len(FORMS))
            slot = self.endpoint.post(tables, 7, self.iteration, self.now)
            self.running[slot] = (self.iteration, tables, guard)

    def operation(self, what: int) -> tuple[MessageTables, Guarded]:
        form = FORMS[what]
        guard, each = Guarded(700 * MEMORY_BYTES[form]), SEGMENT // WIRE_BYTES[form]
        if what in (3, 4):
            policy = DIVIDE_BY_COUNT if what == 3 else ERROR_FEEDBACK
            graph = graph_of(plan_direct(HOSTS, 0, 512, 64, 20))
            tables = tables_of(graph, self.link, range(HOSTS), loss_bound=0.3, policy=policy)
        else:
            tables = MessageTables(
                HOSTS,
                SEGMENT,
                form,
                sending=[Sending(1, 0, 130), Sending(2, 130, 7), Sending(1, 200, 99)],
                receiving=[
                    Receiving(1, 300, 5 * each, ADD, loss_bound=0.4),
                    Receiving(3, 500, 3 * each + 5, WRITE),
                ],
                keeps_missing=what == 0,
            )
        tables.place(guard.address)
        return tables, guard

    def agreements(
        self, iterations: NDArray[np.int64], sources: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return what READYs say that mean what host 0 does; 0 where it does nothing."""
        table = np.zeros((len(self.endpoint.state.operations), HOSTS), np.int64)
        note_agreements(self.endpoint.state, table)
        slots = {iteration: slot for slot, (iteration, _, _) in self.running.items()}
        known = zip(iterations.tolist(), sources.tolist(), strict=True)
        return np.array([table[slots[k], rank] if k in slots else 0 for k, rank in known])

    def feed(self, memory: NDArray[np.uint8], sizes: NDArray[np.int64]) -> None:
        """Hand over a batch, then let the host act, and check everything."""
        tos = self.random.integers(0, 256, len(sizes), np.uint8)
        self.now += int(self.random.integers(1, 100_000))
        uncounted = feed(self.endpoint.state, memory.ctypes.data, sizes, tos, self.now)
        assert uncounted == 0
        written(self.endpoint, now=self.now, clock=CLOCK + self.now)
        check_consistency(self.endpoint)
        for guard in [*self.tables, *(guard for _, _, guard in self.running.values())]:
            guard.check()
        self.replenish()


def pick(random: np.random.Generator, count: int, likely: Any, high: int) -> NDArray[np.int64]:
    """Return numbers below `high`, most of them out of `likely`."""
    chosen = random.choice(np.asarray(likely, np.int64), count)
    return np.where(random.random(count) < 0.97, chosen, random.integers(0, high, count))


def next_numbers(
    target: Target,
    kind: NDArray[np.int64],
    source: NDArray[np.int64],
    random: np.random.Generator,
) -> NDArray[np.int64]:
    """Return the numbers that an honest sender would use, and some that it would not."""
    numbers = target.endpoint.state.peers["end"][source]
    for rank in range(HOSTS):
        theirs = (source == rank) & (kind == wire.DATA)
        numbers[theirs] += np.arange(theirs.sum())
    return (numbers + pick(random, len(kind), [0] * 20 + [-1, -7, 3], 1 << 32)) & 0xFFFFFFFF


def made_up(target: Target, count: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return headers whose every field is likely to be right, with payloads of random bytes."""
    random, peers = target.random, target.endpoint.state.peers
    memory = random.integers(0, 256, (count, STRIDE), np.uint8)
    source = pick(random, count, [1, 2, 3], 1 << 16)
    kind = pick(random, count, [1] * 8 + [2, 2, 3, 4, 4, 4, 5, 6, 7, 8], 16)
    payload = np.where(
        kind == wire.DATA,
        pick(random, count, [SEGMENT] * 9 + [10, 20, 40], STRIDE - 32),
        pick(random, count, [24, 32, 40, 152], STRIDE - 32),
    )
    fields = np.zeros(count, wire.HEADER)
    fields["kind"] = pick(random, count, [1], 16) << 4 | kind
    fields["flags"] = random.integers(0, 256, count)
    fields["length"] = np.where(random.random(count) < 0.97, payload, random.integers(0, 1 << 16))
    known = np.minimum(source, HOSTS - 1)
    right = 0x5EA50000 + 256 * source
    fields["session"] = np.where(random.random(count) < 0.97, right, random.integers(0, 1 << 32))
    fields["number"] = next_numbers(target, kind, known, random)
    fields["clock"] = random.integers(0, 1 << 32, count)
    fields["stream"] = pick(random, count, [7], 1 << 32)
    iterations = [iteration for iteration, _, _ in target.running.values()]
    fields["iteration"] = pick(random, count, [*iterations, *target.finished[-3:]], 1 << 32)
    fields["message"] = pick(random, count, [0, 0, 0, 1, 1, 2, 3], 1 << 16)
    fields["source"] = source
    offsets = np.arange(6) * SEGMENT
    fields["offset"] = pick(random, count, [*offsets, *offsets, *(PARITY + offsets)], 1 << 32)
    honest = (kind == wire.READY) & (random.random(count) < 0.99)
    agreed = target.agreements(fields["iteration"], known)
    fields["offset"] = np.where(honest, agreed, fields["offset"])
    memory[:, :32] = fields.view(np.uint8).reshape(count, 32)
    blocks = np.zeros(count, wire.FEEDBACK_BLOCK)
    sent, granted = peers["next_number"][known], peers["granted"][known]
    blocks["highest"] = (sent + pick(random, count, [0, 0, -1, -9, 1], 1 << 32)) & 0xFFFFFFFF
    blocks["received"] = (sent + pick(random, count, [0, -1, -9], 1 << 32)) & 0xFFFFFFFF
    blocks["grant"] = (granted + pick(random, count, [0, 1, 64], 1 << 32)) & 0xFFFFFFFF
    control = (kind != wire.DATA)[:, None] & (random.random(count) < 0.9)[:, None]
    memory[:, 32:56] = np.where(control, blocks.view(np.uint8).reshape(count, 24), memory[:, 32:56])
    return memory, 32 + payload


def test_made_up_datagrams() -> None:
    target = Target(seed=1)
    for _ in range(max(1, FUZZ // 2 // BATCH)):
        target.feed(*made_up(target, BATCH))
    counts = target.endpoint.counts()
    for counter in Counter:
        if counter not in NOT_RECEIVED:
            assert counts[counter] > 0, counter.name
    assert len(target.finished) > 10


def recorded_traffic(seed: int) -> list[bytes]:
    """Return what hosts send to host 0 in operations like the target's."""
    recorded: list[bytes] = []

    def note(datagram: Datagram) -> None:
        if datagram.target == 0 and len(datagram.payload) <= STRIDE:
            recorded.append(datagram.payload)

    config = TransportConfig(segment_bytes=SEGMENT)
    link, _ = joined(HOSTS, config, faults=Faults(loss=0.2), seed=seed, watch=note)
    for iteration in range(1, 9):
        for source in range(1, HOSTS):
            for pair in ((source, 0), (0, source)):
                values = np.ones(130, np.float32)
                Transfer(link, *pair, values, iteration=iteration).post()
    link.run()
    return recorded


def renew(
    random: np.random.Generator, memory: NDArray[np.uint8], place: int, values: NDArray[Any]
) -> None:
    """Put in most datagrams the field at byte `place` right, as far as one can know it."""
    size = values.itemsize
    fresh = values.view(np.uint8).reshape(len(values), size)
    chosen = random.random(len(values)) < 0.8
    memory[chosen, place : place + size] = fresh[chosen]


def test_mutated_traffic() -> None:
    target, traffic = Target(seed=2), recorded_traffic(seed=3)
    assert len(traffic) > 300
    whole = np.zeros((len(traffic), STRIDE), np.uint8)
    lengths = np.array([len(each) for each in traffic])
    for row, each in zip(whole, traffic, strict=True):
        row[: len(each)] = np.frombuffer(each, np.uint8)
    random = target.random
    for _ in range(max(1, FUZZ // 2 // BATCH)):
        chosen = random.integers(0, len(traffic), BATCH)
        memory, sizes = whole[chosen].copy(), lengths[chosen].copy()
        for _ in range(3):
            hit = random.random(BATCH) < 0.6
            place = random.integers(0, sizes)
            memory[hit, place[hit]] ^= (1 << random.integers(0, 8, hit.sum())).astype(np.uint8)
        keys = [key for key, _, _ in target.running.values()]
        renew(random, memory, 20, random.choice(keys, BATCH).astype("<u4"))
        ready = np.flatnonzero(memory[:, 0] == 1 << 4 | wire.READY)
        theirs = memory[ready, 20:24].copy().view("<u4")[:, 0], memory[ready, 26] % HOSTS
        agreed = target.agreements(theirs[0], theirs[1]).astype("<u4")
        memory[ready, 28:32] = agreed.view(np.uint8).reshape(-1, 4)
        renew(random, memory, 24, random.integers(0, 2, BATCH).astype("<u2"))
        ends = target.endpoint.state.peers["end"][memory[:, 26] % HOSTS]
        renew(random, memory, 8, (ends + random.integers(0, 9, BATCH)).astype("<u4"))
        cut = random.random(BATCH) < 0.05
        sizes[cut] = random.integers(0, sizes[cut] + 1)
        target.feed(memory, sizes)
    counts = target.endpoint.counts()
    assert min(counts[each] for each in (Counter.RECEIVED_BYTES, Counter.SENT, Counter.LATE)) > 0


def test_random_bytes_and_forged_tags_leave_no_trace_but_their_count() -> None:
    target = Target(seed=4)
    state, random = target.endpoint.state, target.random
    written(target.endpoint)
    before = [array.tobytes() for array in state if array is not state.counters]
    counted = int(state.counters.sum())
    memory = random.integers(0, 256, (BATCH, STRIDE), np.uint8)
    sizes = random.integers(0, STRIDE, BATCH)
    tos = np.zeros(BATCH, np.uint8)
    assert feed(state, memory.ctypes.data, sizes, tos, 1) == 0
    forged, lengths = made_up(target, BATCH)
    tags = forged[:, 4:8].view("<u4")
    source = forged[:, 26:28].view("<u2").astype(np.uint32)
    tags[:, 0] = np.where(
        tags[:, 0] == 0x5EA50000 + 256 * source[:, 0], tags[:, 0] ^ np.uint32(1), tags[:, 0]
    )
    assert feed(state, forged.ctypes.data, lengths, tos, 1) == 0
    assert [array.tobytes() for array in state if array is not state.counters] == before
    assert int(state.counters[-1].sum()) == 2 * BATCH
    assert int(state.counters.sum()) == counted + 2 * BATCH
