"""Statistics of real transports between real processes, and where a user meets them."""

from __future__ import annotations

import json
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest
import torch
import torch.distributed as dist
from test_transport_communicator import connect

from free_ports import free_ports_in_a_row
from shoal.carriers.tensor_memory import Summand
from shoal.errors import UsageError
from shoal.jobs.pool import WorkerPool
from shoal.jobs.spec import RunSpec
from shoal.jobs.trace_file import write_trace
from shoal.jobs.training_run import RunOutcome, run_spec
from shoal.wire.sum_options import SumOptions
from shoal.workloads import load_dataset
from thoroughness import seldom

if TYPE_CHECKING:
    from pathlib import Path

    from worker_processes import RunWorkers

ELEMENTS = 300_007
BOUND = 0.1


def lossy_sums(algorithm: str) -> dict[str, Any]:
    """Return what this rank says of three bounded sums of ones, and what the sums lack."""
    communicator = connect()
    communicator.all_reduce(torch.ones(10)).wait()
    before = communicator.stats()
    options = SumOptions(loss_bound=BOUND, layers=((0, 5),), algorithm=algorithm)
    deficits = []
    for _ in range(3):
        buffer = torch.ones(ELEMENTS)
        communicator._work(
            communicator._world.all_reduce(Summand.of(buffer).memory, options)
        ).wait()
        deficits.append(4 * int((len(communicator.view) - buffer.double()).sum()))
    communicator.barrier()
    step = communicator.stats() - before
    dist.barrier()
    communicator.close()
    return {
        "deficit": sum(deficits),
        "due": step.total.sum_due_bytes,
        "missing": step.total.sum_missing_bytes,
        "effective": step.total.effective_loss,
        "allowed": step.total.allowed_loss,
        "sent_by_class": step.total.sent_packets_by_class,
        "sent": step.total.sent_packets,
        "operations": {name: each.ended for name, each in step.operations.items()},
        "waits": (step.longest_wait_s, step.wait_s, step.seconds, step.deadline_left_s),
        "under_way": step.under_way,
        "closed": communicator.stats().total.sent_packets,
    }


@pytest.mark.parametrize("algorithm", seldom(["direct", "ring"], often=["ring"]))
def test_the_effective_loss_is_the_exact_deficit(run_workers: RunWorkers, algorithm: str) -> None:
    size = 3
    outcomes = run_workers(lossy_sums, size, algorithm)
    deficit = outcomes[0]["deficit"]
    missing = sum(outcome["missing"][5] for outcome in outcomes)
    assert sum(outcome["due"][5] for outcome in outcomes) == 3 * 4 * ELEMENTS * (size - 1)
    assert missing == deficit if algorithm == "direct" else missing >= deficit
    for outcome in outcomes:
        assert outcome["deficit"] == deficit  # all ranks have the same bits
        assert 0 <= outcome["effective"] <= outcome["allowed"] <= BOUND
        assert sum(outcome["missing"]) == outcome["missing"][5]
        assert outcome["sent_by_class"][5] > 0
        assert sum(outcome["sent_by_class"]) == outcome["sent"]
        assert outcome["operations"] == {"all-reduce": 3, "all-gather": 1}
        longest, whole, seconds, left = outcome["waits"]
        assert 0 < longest <= whole <= seconds
        assert left == pytest.approx(20.0 - longest)
        assert outcome["under_way"] == 0
        assert outcome["closed"] >= outcome["sent"]


def spec_of(**changes: object) -> RunSpec:
    fields: dict[str, object] = {
        "strategy": "all-reduce",
        "dataset": "digits",
        "model": "mlp",
        "workers": 2,
        "max_steps": 12,
        "transport": "shoal",
        "loss_bound": BOUND,
        "evaluation_samples": 0,
        **changes,
    }
    return RunSpec(**fields)  # type: ignore[arg-type]


def test_a_traced_run_has_a_counter_event_per_step_and_rank_and_serves_metrics(
    tmp_path: Path,
) -> None:
    dataset, port = load_dataset("digits"), free_ports_in_a_row(2)
    scraped: list[str] = []

    def look(_progress: object) -> None:
        for rank in range(2):
            try:
                with urlopen(f"http://127.0.0.1:{port + rank}/metrics", timeout=5) as reply:
                    scraped.append(reply.read().decode())
            except (OSError, HTTPException):
                pass  # not yet, or no longer

    with WorkerPool(2, deadline_s=40) as pool:
        pool.start()
        traced = spec_of(is_traced=True, metrics_port=port, compute_ms=50.0)
        outcome = run_spec(pool, traced, dataset, look)
        plain = run_spec(pool, spec_of(), dataset)
        gloo = run_spec(pool, spec_of(transport="gloo", loss_bound=0.0, is_traced=True), dataset)
    assert plain.samples == gloo.samples == []
    check_samples(outcome, tmp_path / "trace.json")
    for rank in range(2):
        assert any(f'shoal_deadline_seconds{{rank="{rank}"}}' in text for text in scraped)
    assert all("shoal_sent_bytes_total{rank=" in text for text in scraped)


def check_samples(outcome: RunOutcome, path: Path) -> None:
    write_trace(path, outcome.spans, samples=outcome.samples)
    events = json.loads(path.read_text())["traceEvents"]
    counters = [event for event in events if event["ph"] == "C"]
    assert [event["pid"] for event in counters] == [0] * 12 + [1] * 12
    for rank in (0, 1):
        own = [sample for sample in outcome.samples if sample.rank == rank]
        assert [sample.step for sample in own] == list(range(12))
        assert [sample.at_ns for sample in own] == sorted(sample.at_ns for sample in own)
    for event in counters:
        assert event["name"] == "transport"
        assert event["ts"] >= 0
        values = event["args"]
        assert values["goodput, MB/s"] > 0
        assert values["wait, ms"] > 0
        assert values["sent again, packets"] >= 0
        assert 0 <= values["lost, %"] <= 100
        assert 0 <= values["effective loss, %"] <= 100 * BOUND


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"transport": "gloo", "loss_bound": 0.0}, "needs --transport shoal"),
        ({"metrics_port": 0}, "at least 1, and with 2 workers at most 65534"),
        ({"metrics_port": 65_535}, "at least 1, and with 2 workers at most 65534"),
    ],
)
def test_metrics_that_cannot_be_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        spec_of(**{"metrics_port": 9_000, **changes}).validate()
