"""A newcomer that has a part of the model already, such as a pretrained one, is not sent it.

Else it is sent that part while the others still train, if it is not trained.
"""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from test_joining import DIES_AT, SIZE, VICTIM, Job, Training, check_alike, init

from shoal.carriers import STATE_CHANNEL, TransportCommunicator
from shoal.train import sent_ahead, state_memory
from thoroughness import seldom

if TYPE_CHECKING:
    from worker_processes import RunWorkers

BASE_NUMBERS = 1 << 19


def come_back_with_a_base(folder: str, sync: str, is_same: bool) -> dict[str, Any]:
    """Train a model of which most is not trained; rank 2 dies, and comes back with that part."""
    job = Job(folder)
    received = {"ahead": 0, "in the view": 0}
    if job.is_late:
        job.wait_for(f"died {VICTIM}")
        os.environ["RANK"] = str(VICTIM)
        receive = TransportCommunicator.receive

        def counting(self: Any, tensor: Any, *arguments: Any, channel: int, **options: Any) -> Any:
            if channel == STATE_CHANNEL:
                when = "in the view" if self.view.epoch else "ahead"
                received[when] += tensor.numel() * tensor.element_size()
            return receive(self, tensor, *arguments, channel=channel, **options)

        TransportCommunicator.receive = counting  # type: ignore[method-assign, assignment]
    session = init()
    base = torch.arange(BASE_NUMBERS) * (1.0 if is_same or not job.is_late else 2.0)
    training = Training(session, sync, base=base)
    if job.is_late:
        job.note("is in")
    while job.rank == VICTIM:
        training.step()
        if training.optimizer.num_steps == DIES_AT:
            job.die()
    training.step_until(job, "is in")
    return {**training.finish(), "received": received}


@pytest.mark.parametrize(
    ("sync", "is_same"),
    seldom(
        [("all-reduce", True), ("all-reduce", False), ("ripples", True), ("ripples", False)],
        often=[("all-reduce", True), ("ripples", False)],
    ),
)
def test_a_newcomer_is_not_sent_what_it_has(
    run_workers: RunWorkers, tmp_path: Path, sync: str, is_same: bool
) -> None:
    results = run_workers(
        come_back_with_a_base,
        SIZE,
        str(tmp_path),
        sync,
        is_same,
        may_die=(VICTIM,),
        initialize=False,
        num_more=1,
    )
    assert results[VICTIM] is None, "the fault has fired"
    living = [result for result in results if result is not None]
    check_alike(living, sync)
    received = results[SIZE]["received"]
    assert received["ahead"] == (0 if is_same else 4 * BASE_NUMBERS)
    assert 0 < received["in the view"] < 10_000


def lose_a_donor_of_the_base(folder: str, sync: str, when: str) -> dict[str, Any]:
    """Train; a donor dies when a newcomer with another base has a part of the others'."""
    state_memory._PIECE_BYTES = BASE_NUMBERS // 2  # type: ignore[misc]
    if when == "in the view":
        sent_ahead.give = sent_ahead.take = lambda *_, **__: None  # type: ignore[assignment]
    job = Job(folder)
    if job.is_late:
        job.wait_for("all train")
    else:
        send, sent = TransportCommunicator.send, itertools.count(1)

        def dying(self: Any, *arguments: Any, channel: int, **options: Any) -> Any:
            if channel == STATE_CHANNEL and next(sent) == 3 and job.claim("a donor dies"):
                time.sleep(0.2)  # what it has sent arrives
                job.die()
            return send(self, *arguments, channel=channel, **options)

        TransportCommunicator.send = dying  # type: ignore[method-assign, assignment]
    session = init()
    base = torch.arange(BASE_NUMBERS) * (2.0 if job.is_late else 1.0)
    training = Training(session, sync, base=base)
    assert torch.equal(base, torch.arange(BASE_NUMBERS, dtype=base.dtype))
    if job.is_late:
        job.note("is in")
    elif job.rank == 0:
        training.step()
        job.note("all train")
    training.step_until(job, "is in")
    return training.finish()


@pytest.mark.parametrize(
    ("sync", "when"),
    seldom(
        itertools.product(("all-reduce", "ds-sync"), ("ahead", "in the view")),
        often=[("all-reduce", "ahead"), ("ds-sync", "in the view")],
    ),
)
def test_a_newcomer_takes_nothing_that_was_half_sent_for_its_own(
    run_workers: RunWorkers, tmp_path: Path, sync: str, when: str
) -> None:
    results = run_workers(
        lose_a_donor_of_the_base,
        SIZE,
        str(tmp_path),
        sync,
        when,
        may_die=tuple(range(SIZE)),
        initialize=False,
        num_more=1,
    )
    living = [result for result in results if result is not None]
    assert len(living) == SIZE, "the fault has fired"
    check_alike(living, sync)
