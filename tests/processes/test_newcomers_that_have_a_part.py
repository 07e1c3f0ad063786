"""A newcomer that has a part of the model already, such as a pretrained one, is not sent it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from test_joining import DIES_AT, SIZE, VICTIM, Job, Training, check_alike, init

from shoal.carriers import STATE_CHANNEL, TransportCommunicator
from thoroughness import seldom

if TYPE_CHECKING:
    from worker_processes import RunWorkers

BASE_NUMBERS = 1 << 19


def come_back_with_a_base(folder: str, sync: str, is_same: bool) -> dict[str, Any]:
    """Train a model of which most is not trained; rank 2 dies, and comes back with that part."""
    job = Job(folder)
    received: list[int] = []
    if job.is_late:
        job.wait_for(f"died {VICTIM}")
        os.environ["RANK"] = str(VICTIM)
        receive = TransportCommunicator.receive

        def counting(self: Any, tensor: Any, *arguments: Any, channel: int, **options: Any) -> Any:
            if channel == STATE_CHANNEL:
                received.append(tensor.numel() * tensor.element_size())
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
    return {**training.finish(), "received": sum(received)}


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
    assert 0 < received < 10_000 if is_same else received > 4 * BASE_NUMBERS
