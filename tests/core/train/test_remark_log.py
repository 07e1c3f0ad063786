"""What is logged about slow workers: each look says what it is the first to see."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from shoal.train import remark_log
from shoal.train.remark_log import RemarkLog
from shoal.watch import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def looks_at_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(remark_log, "INTERVAL_S", 0.0)
    caplog.set_level(logging.INFO, remark_log.__name__)


def slow(*ranks: int, times: float = 3.0) -> tuple[Verdict, ...]:
    sentence = "Rank {} is slow, {} times"
    return tuple(
        Verdict(kind="slow worker", sentence=sentence.format(rank, times), rank=rank)
        for rank in ranks
    )


def log_of(looks: Iterator[tuple[Verdict, ...]]) -> RemarkLog:
    return RemarkLog("job", lambda: next(looks))


def test_a_look_logs_what_the_last_one_did_not_find(caplog: pytest.LogCaptureFixture) -> None:
    log = log_of(iter([slow(2), slow(2, times=4.0), slow(2, 1), slow(1), slow(2, 1)]))
    said = []
    for _ in range(5):
        caplog.clear()
        log.look()
        said.append(caplog.messages)
    assert said == [
        ["job: Rank 2 is slow, 3.0 times"],
        [],  # another figure of the same worker is not new
        ["job: Rank 1 is slow, 3.0 times"],
        [],
        ["job: Rank 2 is slow, 3.0 times"],  # it had been well in between
    ]


def test_the_end_logs_all_that_holds_then(caplog: pytest.LogCaptureFixture) -> None:
    log = log_of(iter([slow(1, 2), slow(2)]))
    log.look()
    caplog.clear()
    log.close()
    assert caplog.messages == ["job: Rank 2 is slow, 3.0 times"]


def test_nobody_is_asked_where_nobody_reads_or_before_it_is_time(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_of(iter(()))  # asked once, it would raise
    caplog.set_level(logging.WARNING, remark_log.__name__)
    log.look()
    log.close()
    caplog.set_level(logging.INFO, remark_log.__name__)
    monkeypatch.setattr(remark_log, "INTERVAL_S", 30.0)
    log_of(iter(())).look()
