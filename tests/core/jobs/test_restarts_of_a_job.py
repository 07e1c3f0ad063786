"""Who starts again, by random histories of ends: within a limit, and nobody who has finished."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from shoal.jobs.launching.restarts import FIRST_PAUSE_S, MISTAKES, Restarts, State


def yes() -> bool:
    return True


def no() -> bool:
    return False


@given(seed=st.integers(0, 2**32), size=st.integers(1, 5), limit=st.integers(0, 4))
def test_every_history_ends_within_the_limit(seed: int, size: int, limit: int) -> None:
    """Workers end in any way at any moment, and a job that can be joined comes and goes."""
    chance = Random(seed)
    restarts = Restarts(size, limit)
    running, now, finished = set(range(size)), 0.0, set[int]()
    starts = dict.fromkeys(range(size), 1)
    while not restarts.is_over:
        now += chance.uniform(0.0, 3.0)
        if running and chance.random() < 0.7:
            rank = chance.choice(sorted(running))
            code = chance.choice((0, 1, 2, 5, 137, 143))
            running.remove(rank)
            restarts.end(rank, code, now)
            if code == 0:
                finished.add(rank)
        runs, nobody_runs = chance.random() < 0.5, not running
        for rank in restarts.due(now, yes if runs else no):
            assert rank not in running
            assert rank not in finished, "who has finished does not start again"
            assert runs or nobody_runs, "a job that nobody can join begins with all"
            running.add(rank)
            starts[rank] += 1
    assert not running
    assert max(starts.values()) <= limit + 1
    assert {rank for rank, p in enumerate(restarts.places) if p.state is State.FINISHED} == finished
    if len(finished) == size:
        assert restarts.exit_code == 0
    if not finished:
        assert restarts.exit_code != 0


def test_pauses_double_and_the_limit_holds() -> None:
    restarts, now = Restarts(2, 3), 0.0
    pauses = []
    while (pause := restarts.end(1, 137, now)) is not None:
        pauses.append(pause)
        assert restarts.due(now + pause / 2, yes) == []
        now += pause
        assert restarts.due(now, yes) == [1]
    assert pauses == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert restarts.places[1].state is State.FAILED
    assert not restarts.is_over, "rank 0 goes on"
    restarts.end(0, 0, now)
    assert restarts.exit_code == 0, "the job has finished without rank 1"


def test_a_job_that_needs_all_starts_with_all_once_the_last_has_ended() -> None:
    restarts = Restarts(3, 1)
    restarts.end(2, 137, 0.0)
    assert restarts.due(5.0, no) == []
    assert restarts.stuck_for(5.0) == 5.0
    restarts.end(0, 5, 6.0)
    restarts.end(1, 5, 6.5)
    assert restarts.due(10.0, no) == [0, 1, 2]
    for rank, code in ((1, 1), (0, 5), (2, 5)):
        restarts.end(rank, code, 11.0 + rank / 10 + (code == 5))
    assert restarts.is_over
    assert restarts.exit_code == 1, "that of the first, not of those who lost it"


def test_what_another_start_does_not_mend_ends_the_job() -> None:
    for code in MISTAKES:
        restarts = Restarts(2, 5)
        assert restarts.end(0, code, 0.0) is None
        restarts.end(1, 5, 1.0)
        assert restarts.due(10.0, no) == []
        assert restarts.is_over
        assert restarts.exit_code == code


def test_nobody_starts_once_it_has_been_stopped() -> None:
    restarts = Restarts(2, 5)
    restarts.end(0, 1, 0.0)
    restarts.stop()
    assert restarts.end(1, 1, 1.0) is None
    assert restarts.is_over
