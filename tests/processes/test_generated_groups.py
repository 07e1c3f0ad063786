"""Ripples' groups formed at run time for arrays, between real processes without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from forked_process import start

from shoal.errors import WorkerLost
from shoal.jobs import read_traces
from shoal.trace import SpanKind
from started_ranks import free_port, outcomes, printed_by_ranks
from thoroughness import seldom

AVERAGES = """
import json, os, sys, time
import numpy as np
import shoal
from shoal.adapters.arrays.array_means import ArrayMeans
from shoal.adapters.arrays.generated_groups import GeneratedGroups

STEPS, SHORT = 40, 10

with shoal.connect(deadline_s=20) as comm:
    means = ArrayMeans(comm, loss_bound=float(os.environ["BOUND"]))
    values = [np.full(50, comm.rank, np.float32), np.full((3, 700), comm.rank, np.float32)]
    sizes, ids = [], []
    with GeneratedGroups(comm, seed=3) as groups:
        for step in range(STEPS if comm.rank != 3 else SHORT):
            time.sleep(0.002 * (comm.rank == 2))
            for group in groups.owed():
                values = means.parameters(values, group.members, sequence=group.group_id)
                sizes.append(len(group.members))
                ids.append(group.group_id)
        asked = groups.requests_by_rank()
    everyone = comm.all_gather(values[0])
    print(json.dumps({
        "even": float(max(np.ptp(each) for each in values)), "mean": float(everyone.mean()),
        "spread": float(np.ptp(everyone)), "sizes": sorted(set(sizes)),
        "least": float(min(each.min() for each in values)),
        "most": float(max(each.max() for each in values)),
        "ordered": ids == sorted(ids), "asked": asked.get(comm.rank),
        "imported": sorted({"torch", "numba"} & set(sys.modules)),
    }))
"""


@pytest.fixture(scope="module")
def averaged(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], Path]:
    """Run them with no loss; return what they print, and the folder of their traces."""
    traces = tmp_path_factory.mktemp("traced")
    return printed_by_ranks(AVERAGES, 4, BOUND="0", SHOAL_TRACE=str(traces / "trace")), traces


@pytest.mark.parametrize("bound", seldom(["0", "0.1"], often=["0"]))
def test_groups_meet_as_the_generator_says_and_the_mean_stays(
    averaged: tuple[list[dict[str, Any]], Path], bound: str
) -> None:
    """Nobody learns here, so means of equal weights leave the sum of all as it was, 0+1+2+3.

    What the bound lets go counts as not there: values are means still, of fewer.
    """
    results = averaged[0] if bound == "0" else printed_by_ranks(AVERAGES, 4, BOUND=bound)
    for rank, result in enumerate(results):
        assert result["imported"] == []
        assert result["ordered"]
        assert 0 <= result["least"] <= result["most"] <= 3
        assert result["spread"] < 3  # how far below depends on when rank 3 leaves the others
        if bound == "0":
            assert result["even"] == 0
            assert result["mean"] == pytest.approx(1.5, abs=1e-5)
        assert result["sizes"]
        assert set(result["sizes"]) <= {2, 3, 4}
        assert result["asked"] == (10 if rank == 3 else 40)


def test_groups_are_traced(averaged: tuple[list[dict[str, Any]], Path]) -> None:
    (run,) = read_traces(averaged[1] / "trace")
    assert (run.strategy, run.workers, run.model) == ("ripples", 4, "arrays")
    assert set(run.group_sizes) <= {"2", "3", "4"}
    spans = {kind: [each for each in run.timeline if each.kind is kind] for kind in SpanKind}
    assert all(spans.values())
    assert all(each.rank in each.members and each.reason for each in spans[SpanKind.EXCHANGE])
    own_s = {each.rank: each.compute_seconds for each in run.worker_results}
    assert own_s[2] > 0.002 * 30, "that rank sleeps in each step"


LOST = """
import os, sys
import shoal
from shoal.adapters.arrays.generated_groups import GeneratedGroups

with shoal.connect(deadline_s=20) as comm:
    try:
        with GeneratedGroups(comm) as groups:
            for step in range(10_000):
                if comm.rank == 1 and step == 3:
                    os._exit(9)
                for group in groups.owed():
                    pass
    except shoal.WorkerLost as lost:
        print(lost)
        sys.exit(lost.exit_code)
"""


def test_a_rank_that_dies_is_named_to_the_others() -> None:
    port = free_port()
    ended = outcomes([start(rank, 3, port, LOST) for rank in range(3)])
    assert ended[1][0] == 9
    for rank in (0, 2):
        assert ended[rank][0] == WorkerLost.exit_code, ended
        assert "Rank 1" in ended[rank][1], ended


REFUSED = """
import os
import shoal
from shoal.groups import GeneratorConfig
from shoal.adapters.arrays.generated_groups import GeneratedGroups

with shoal.connect(deadline_s=20) as comm:
    try:
        GeneratedGroups(comm, GeneratorConfig(group_size=2 + comm.rank))
    except shoal.MismatchError as error:
        print(error)
"""


def test_ranks_that_want_other_groups_are_refused() -> None:
    port = free_port()
    ended = outcomes([start(rank, 2, port, REFUSED) for rank in range(2)])
    assert sum("was refused" in out for _, out, _ in ended) == 1, ended
    assert all("same" in out for _, out, _ in ended), ended
