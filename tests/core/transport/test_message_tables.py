"""The rows of messages against what they say, one by one."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import fields
from itertools import pairwise
from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.transport.forms import FLOAT32
from shoal.transport.holes import DIVIDE_BY_COUNT, ZERO
from shoal.transport.messages import (
    RECEIVING,
    SENDING,
    Joining,
    MessageTables,
    Receiving,
    Sending,
)
from shoal.transport.tables import ADD, WRITE

WORLD, SEGMENT, GATES = 5, 16, 3
BOUNDS = st.sampled_from([0.0, 0.1, 0.37, 0.999])
COUNTS = st.integers(0, 500)

SENDINGS = st.builds(
    Sending,
    peer=st.integers(0, WORLD - 1),
    start=st.integers(0, 1000),
    count=COUNTS,
    gate=st.integers(-1, GATES - 1),
    layer_class=st.integers(0, 7),
    loss_bound=BOUNDS,
)
RECEIVINGS = st.builds(
    Receiving,
    peer=st.integers(0, WORLD - 1),
    start=st.integers(0, 1000),
    count=COUNTS,
    mode=st.sampled_from([ADD, WRITE]),
    gate=st.integers(-1, GATES - 1),
    loss_bound=BOUNDS,
    shard=st.integers(0, 2),
)


def joinings(policies: list[int]) -> list[Joining]:
    return [Joining(100 * k, 50 + k, 0.5 + k, k, policy) for k, policy in enumerate(policies)]


POLICIES = st.lists(st.sampled_from([ZERO, DIVIDE_BY_COUNT]), min_size=GATES, max_size=GATES)


@given(
    st.lists(SENDINGS, max_size=12),
    st.lists(RECEIVINGS, max_size=12),
    POLICIES,
    st.booleans(),
    st.booleans(),
)
def test_every_row_says_what_its_message_does(
    sending: list[Sending],
    receiving: list[Receiving],
    policies: list[int],
    keeps_missing: bool,
    tagged: bool,
) -> None:
    tables = MessageTables(
        WORLD,
        SEGMENT,
        FLOAT32,
        sending=sending,
        receiving=receiving,
        gates=joinings(policies),
        keeps_missing=keeps_missing,
        tagged=tagged,
    )
    rooms: list[tuple[int, int]] = []  # where bitmaps and counts lie, and their bytes
    saved: dict[tuple[int, int], int] = {}
    counts: dict[int, int] = {}
    out = sorted(sending, key=lambda message: message.peer)
    numbers: dict[int, int] = defaultdict(int)
    for row, message in zip(tables.outgoing, out, strict=True):
        words = 8 * ceil(ceil(4 * message.count / SEGMENT) / 64)
        assert row["peer"] == message.peer
        assert row["message"] == numbers[message.peer]
        numbers[message.peer] += 1
        assert (row["start"], row["size"]) == (4 * message.start, 4 * message.count)
        assert (row["gate"], row["layer_class"]) == (message.gate, message.layer_class)
        assert row["rotates"] == (message.loss_bound > 0)
        assert (row["important"] != 0) == (tagged and message.gate < 0)
        assert (row["missing"] != 0) == keeps_missing
        rooms += [(int(row[n]), words) for n in ("pending", "important", "missing") if row[n]]
    into = sorted(receiving, key=lambda message: message.peer)
    numbers = defaultdict(int)
    for row, message in zip(tables.incoming, into, strict=True):
        size = 4 * message.count
        segments = ceil(size / SEGMENT)
        assert row["peer"] == message.peer
        assert row["message"] == numbers[message.peer]
        numbers[message.peer] += 1
        assert (row["start"], row["size"], row["mode"]) == (4 * message.start, size, message.mode)
        assert row["gate"] == message.gate
        least = size * (1 - message.loss_bound)
        assert row["target"] == min(size, 4 * ceil(ceil(least) / 4))
        if message.loss_bound > 0:
            place = saved.setdefault((message.peer, message.shard), int(row["saved"]))
            assert row["saved"] == place != 0
        else:
            assert row["saved"] == 0
        rooms.append((int(row["seen"]), 8 * ceil(segments / 64)))
        is_counted = message.gate >= 0 and policies[message.gate] == DIVIDE_BY_COUNT
        assert (row["counts"] != 0) == is_counted
        if is_counted:
            counts.setdefault(message.gate, int(row["counts"]))
            assert row["counts"] == counts[message.gate] == tables.gates["counts"][message.gate]
            rooms.append((int(row["counts"]), 2 * segments))
    assert len(set(saved.values())) == len(saved)
    _check_gates(tables, out, into)
    unshared = [room for room in set(rooms) if room[0] not in counts.values()]
    shared = [(place, max(size for at, size in rooms if at == place)) for place in counts.values()]
    taken = sorted(room for room in [*unshared, *shared] if room[1])
    for (place, size), (following, _) in pairwise(taken):
        assert place + size <= following, "two share their memory"


def _check_gates(tables: MessageTables, sending: list[Sending], receiving: list[Receiving]) -> None:
    for gate, row in enumerate(tables.gates):
        assert row["awaited"] == sum(message.gate == gate for message in receiving)
        blocked, index = [], int(row["first_blocked"])
        while index >= 0:
            blocked.append(index)
            index = int(tables.outgoing["next_blocked"][index])
        assert blocked == [k for k, message in enumerate(sending) if message.gate == gate]
    free = tables.outgoing["gate"] < 0
    assert (tables.outgoing["next_blocked"][free] == -1).all()


def test_rows_have_every_field_of_messages() -> None:
    for message, row in ((Sending, SENDING), (Receiving, RECEIVING)):
        assert row.names == tuple(each.name for each in fields(message))


@given(st.lists(SENDINGS, max_size=8), st.lists(RECEIVINGS, max_size=8))
def test_messages_may_be_given_as_rows(sending: list[Sending], receiving: list[Receiving]) -> None:
    gates = joinings([ZERO] * GATES)
    rows = (np.zeros(len(sending), SENDING), np.zeros(len(receiving), RECEIVING))
    for table, messages in zip(rows, (sending, receiving), strict=True):
        for row, message in zip(table, messages, strict=True):
            for name in table.dtype.names or ():
                row[name] = getattr(message, name)
    one = MessageTables(WORLD, SEGMENT, FLOAT32, sending=sending, receiving=receiving, gates=gates)
    other = MessageTables(WORLD, SEGMENT, FLOAT32, sending=rows[0], receiving=rows[1], gates=gates)
    addresses = {"pending", "again", "seen", "saved"}
    for left, right in ((one.outgoing, other.outgoing), (one.incoming, other.incoming)):
        for name in set(left.dtype.names or ()) - addresses:
            assert (left[name] == right[name]).all()


@pytest.mark.parametrize("bound", [-0.1, 1.0, float("nan")])
def test_a_bound_that_is_no_share_is_refused(bound: float) -> None:
    receiving = [Receiving(0, 0, 8, WRITE), Receiving(1, 0, 8, WRITE, loss_bound=bound)]
    with pytest.raises(UsageError, match=f"not {bound}"):
        MessageTables(2, SEGMENT, FLOAT32, receiving=receiving)
