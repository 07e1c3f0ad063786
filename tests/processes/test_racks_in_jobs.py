"""DS-Sync's division knows the racks that workers say they are in."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")

import shoal  # noqa: E402

if TYPE_CHECKING:
    from worker_processes import RunWorkers


def meet(racks: list[str]) -> tuple[str, set[tuple[int, ...]]]:
    """Return the topology that a worker knows, and the groups that it has met in a period."""
    rank = int(os.environ["RANK"])
    os.environ |= {"LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0", "GROUP_RANK": str(rank)}
    os.environ |= {"SHOAL_RACK": racks[rank], "SHOAL_OVERSUBSCRIPTION": "2"}
    shoal.init()
    model = torch.nn.Linear(2, 1)
    spans = shoal.ListSink()
    sync = shoal.DSSync(shuffle="topology")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = shoal.DistributedOptimizer(optimizer, model, sync=sync, trace=spans)
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    optimizer.finish()
    return repr(optimizer.replica.topology), {span.members for span in spans.spans if span.members}


def test_workers_meet_across_their_racks_only_as_uplinks_allow(run_workers: RunWorkers) -> None:
    racks = ["left", "right", "left", "right"]  # not as they are numbered
    known = run_workers(meet, 4, racks, initialize=False)
    topology = known[0][0]
    assert {each for each, _ in known} == {topology}
    assert topology.count("Rack(") == 2
    groups = set().union(*(met for _, met in known))
    assert {(0, 2), (1, 3)} <= groups  # inside racks
    across = {group for group in groups if {rank % 2 for rank in group} == {0, 1}}
    assert across
    assert (0, 1, 2, 3) not in groups


def test_one_worker_without_a_rack_is_a_sentence_at_all(run_workers: RunWorkers) -> None:
    for said in run_workers(refused, 2, initialize=False):
        assert said.startswith("Rank 0 says which rack it is in, and rank 1 does not")


def refused() -> str:
    os.environ["SHOAL_RACK"] = "" if os.environ["RANK"] == "1" else "left"
    shoal.init()
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(shoal.UsageError) as caught:
        shoal.DistributedOptimizer(optimizer, model, sync="ds-sync")
    return str(caught.value)
