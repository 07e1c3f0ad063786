"""A process is taken to hang if the job has known it and has lost it for long."""

from __future__ import annotations

from shoal.jobs.launching.hangs import HANGS_S, Hangs


def hangs() -> Hangs:
    return Hangs({"SHOAL_JOB": "nowhere"}, None)


def test_who_is_lost_and_lives_hangs_after_a_while() -> None:
    found = hangs()
    pids = {0: 100, 1: 101}
    assert found.judge({0: "alive", 1: "alive"}, pids, 0.0) == []
    assert found.judge({0: "alive", 1: "lost"}, pids, 10.0) == []
    assert found.judge({0: "alive", 1: "lost"}, pids, 10.0 + HANGS_S) == []
    assert found.judge({0: "alive", 1: "lost"}, pids, 10.1 + HANGS_S) == [1]
    assert found.judge({0: "alive", 1: "lost"}, pids, 10.2 + HANGS_S) == [], "once"


def test_who_comes_to_itself_does_not_hang() -> None:
    found = hangs()
    pids = {1: 101}
    for now, state in enumerate(["alive", *["lost"] * 10, "alive", *["lost"] * 15, "left"]):
        assert found.judge({1: state}, pids, float(now)) == []


def test_a_process_on_its_way_is_not_the_one_that_was_lost() -> None:
    found = hangs()
    found.judge({1: "alive"}, {1: 101}, 0.0)
    found.judge({1: "lost"}, {1: 101}, 1.0)
    found.judge({1: "lost"}, {}, 2.0)
    for now in range(3, 100):  # its data takes long to load
        assert found.judge({1: "lost"}, {1: 202}, float(now)) == []
    found.judge({1: "alive"}, {1: 202}, 100.0)
    found.judge({1: "lost"}, {1: 202}, 101.0)
    assert found.judge({1: "lost"}, {1: 202}, 102.0 + HANGS_S) == [1]


def test_nothing_is_known_of_a_job_that_does_not_answer() -> None:
    found = hangs()
    found.judge({1: "alive"}, {1: 101}, 0.0)
    found.judge({1: "lost"}, {1: 101}, 1.0)
    found.judge({}, {1: 101}, 2.0)
    assert found.judge({1: "lost"}, {1: 101}, 2.0 + HANGS_S) == []
