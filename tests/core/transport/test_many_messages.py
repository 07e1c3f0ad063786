"""Very large operations: their messages are told apart, or refused in a sentence."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.errors import UsageError
from shoal.transport.forms import FLOAT32
from shoal.transport.graph_tables import piece_length
from shoal.transport.messages import MOST_MESSAGES, MessageTables, Sending
from shoal.transport.operations import handle_of, index_of, slot_of
from shoal.wire.error_feedback import KEPT_TENSORS, ErrorFeedback

SEGMENT = 1_440


@pytest.mark.parametrize("slot", [0, 3, 255])
@pytest.mark.parametrize("index", [0, 65_535, 65_536, 1 << 31])
def test_a_handle_names_one_message_of_one_operation(slot: int, index: int) -> None:
    handle = handle_of(slot, index)
    assert handle >= 0
    assert (slot_of(handle), index_of(handle)) == (slot, index)


def test_more_messages_than_packets_can_number_are_refused() -> None:
    with pytest.raises(UsageError, match=r"at most 65,536 messages.* takes 65,537\."):
        MessageTables(2, 16, FLOAT32, sending=[Sending(1, 0, 1)] * (MOST_MESSAGES + 1))
    MessageTables(3, 16, FLOAT32, sending=[Sending(rank, 0, 1) for rank in (1, 2)] * 40_000)


@pytest.mark.parametrize("gigabytes", [1, 24, 45])
@pytest.mark.parametrize(("shards", "ring"), [(1, False), (4, False), (4, True)])
def test_pieces_grow_until_they_can_be_numbered(gigabytes: int, shards: int, ring: bool) -> None:
    count = gigabytes * 250_000_000
    piece = piece_length(count, FLOAT32, SEGMENT, 44, shards=shards, ring=ring)
    assert piece * 4 <= 1024 * SEGMENT
    assert piece * 4 % SEGMENT == 0
    exchanged = 2 * count / (1 if ring else shards)  # between two ranks
    assert exchanged / piece <= MOST_MESSAGES


def test_what_tensors_lost_that_never_come_again_is_forgotten_in_the_end() -> None:
    class Tables:
        keeps_something = True

        def add_kept(self, address: int) -> None:
            added.append(address)

    added: list[int] = []
    returned: list[int] = []
    feedback = ErrorFeedback()
    for tensor in range(KEPT_TENSORS + 10):
        feedback.keep(tensor, Tables(), lambda tensor=tensor: returned.append(tensor))  # type: ignore[arg-type,misc]
    assert returned == list(range(10))
    feedback.add_back(5, 1)
    assert not added
    feedback.add_back(KEPT_TENSORS, 2)
    assert added == [2]
    assert np.unique(returned).size == len(returned) == 11
