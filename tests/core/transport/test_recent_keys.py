"""The memory of finished operations: what it must still know, and what it must never claim."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from shoal.transport.recent_keys import place_of, recalls, remember
from shoal.transport.tables import FINISHED_SLOTS, KEY


def empty(size: int = FINISHED_SLOTS) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    keys = np.zeros(size, KEY)
    keys["peer"] = -1
    return keys


@pytest.mark.parametrize("stream", [0, 7, 0x10000, 0xFFFFFFFF])
def test_the_latest_iterations_of_a_stream_fill_the_whole_table(stream: int) -> None:
    keys, first = empty(), 0xFFFFFFFF - FINISHED_SLOTS - 100
    for iteration in range(first, first + FINISHED_SLOTS + 50):
        remember(keys, 3, stream, iteration, 0)
    known = range(first + 50, first + FINISHED_SLOTS + 50)
    assert all(recalls(keys, 3, stream, iteration) for iteration in known)
    assert not any(recalls(keys, 3, stream, iteration) for iteration in range(first, first + 50))


def test_nothing_is_claimed_that_was_not_remembered() -> None:
    keys, random, known = empty(64), Random(1), []
    for _ in range(5_000):
        key = (random.randrange(-2, 4), random.randrange(3), random.randrange(200))
        assert not recalls(keys, *key) or key in known
        remember(keys, *key, 0)
        assert recalls(keys, *key)
        known.append(key)
    assert sum(recalls(keys, *key) for key in set(known)) == 64


def test_equal_keys_of_many_peers_are_all_remembered() -> None:
    keys = empty()
    for peer in range(500):
        remember(keys, peer, 7, 1, 0)
    assert all(recalls(keys, peer, 7, 1) for peer in range(500))
    assert not recalls(keys, 500, 7, 1)


def test_what_was_said_with_a_key_moves_with_it() -> None:
    keys = empty(8)
    for iteration in range(8):
        remember(keys, 0, 0, iteration, 100 + iteration)
    for iteration in range(8):
        assert keys[place_of(keys, 0, 0, iteration)]["agreement"] == 100 + iteration
    assert place_of(keys, 0, 0, 8) == -1


def test_remembering_twice_pushes_nothing_out() -> None:
    keys = empty(8)
    for iteration in range(8):
        remember(keys, 0, 0, iteration, 0)
    for _ in range(100):
        remember(keys, 0, 0, 3, 0)
    assert all(recalls(keys, 0, 0, iteration) for iteration in range(8))


@pytest.mark.parametrize("key", [(-1, 0, 0), (0, 0, 0), (-2, 0, 0)])
def test_an_empty_table_knows_of_no_operation(key: tuple[int, int, int]) -> None:
    # what no rank can be is what an empty row holds
    assert recalls(empty(), *key) == (key[0] == -1)
