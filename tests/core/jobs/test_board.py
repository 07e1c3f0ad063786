"""The board's agreement on the step after which everyone stops."""

from pathlib import Path
from random import Random

import pytest

from shoal.jobs.board import Board

WORKERS = 4


def lock_step_ends(board: Board, random: Random, first_to_want: int) -> list[int]:
    """Return after how many steps each worker stops when everyone meets in every step.

    What happens between two meetings happens in any order; some want an end early, others later.
    """
    wanting = [first_to_want + random.choice([0, 0, 1, 5]) for _ in range(WORKERS)]
    wanting[random.randrange(WORKERS)] = first_to_want
    ends = [0] * WORKERS
    for steps in range(1, 1000):
        for rank in random.sample(range(WORKERS), WORKERS):
            is_last = board.is_last(rank, steps, wants_end=steps >= wanting[rank])
            if is_last and not ends[rank]:
                ends[rank] = steps
        if any(ends):  # from here on the others would wait for those for ever
            return ends
    raise AssertionError("nobody stopped")


@pytest.mark.parametrize("seed", range(50))
def test_workers_in_lock_step_stop_after_the_same_step(seed: int, tmp_path: Path) -> None:
    board = Board(tmp_path, WORKERS, create=True)
    assert lock_step_ends(board, Random(seed), first_to_want=7) == [8] * WORKERS


def test_who_is_ahead_stops_at_once_and_who_is_behind_makes_one_more_step(tmp_path: Path) -> None:
    board = Board(tmp_path, 2, create=True)
    assert not board.is_last(0, 100, wants_end=False)
    assert not board.is_last(1, 20, wants_end=True)
    assert board.is_last(0, 101, wants_end=False)
    assert board.is_last(1, 21, wants_end=True)


def test_the_next_run_starts_afresh(tmp_path: Path) -> None:
    board = Board(tmp_path, 1, create=True)
    board.is_last(0, 1, wants_end=True)
    board.clear()
    assert not board.is_last(0, 5, wants_end=False)
