"""A host that is cut off, so that no connection closes: the others go on, and it learns so."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from lab_commands import DEADLINE_S, STAR

pytest.importorskip("torch")

from shoal.lab.lab import Lab
from shoal.scenario.cluster_spec import LinkEvent
from shoal.scenario.spec_file import parse_spec
from shoal.session.warm_up import load_transport

if TYPE_CHECKING:
    from pathlib import Path

# Four interpreters load torch: half a minute of a processor. `make test` stops a worker instead, of
# which no connection closes either (processes/test_elastic_jobs.py).
pytestmark = [pytest.mark.long, pytest.mark.timeout(200)]

SCRIPT = """
import json, pathlib, sys, time, torch, shoal
folder, sync = pathlib.Path({folder!r}), {sync!r}
session = shoal.init(min_workers=2, deadline_s=40)
torch.manual_seed(0)
model = torch.nn.Linear(64, 64)
inner = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer = shoal.DistributedOptimizer(inner, model, sync=sync)
longest, after = 0.0, 0
try:
    while after < 10:
        began = time.monotonic()
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
        longest = max(longest, time.monotonic() - began)
        after += session.view.epoch > 0
        if session.control.standby:
            (folder / f"{{session.rank}}.trains").touch()
except shoal.WorkerLost as error:
    print(json.dumps(str(error)), flush=True)
    sys.exit(error.exit_code)
optimizer.finish()
optimizer.average_model()
members = session.view.members
total = float(next(model.parameters()).detach().sum())
print(json.dumps([longest, members, total]), flush=True)
shoal.shutdown()
"""


@pytest.mark.parametrize("cut_off", [0, 2])
@pytest.mark.parametrize("sync", ["all-reduce", "ds-sync", "ripples"])
def test_a_host_that_is_cut_off_is_left_behind_within_seconds(
    tmp_path: Path, sync: str, cut_off: int
) -> None:
    """Rank 0's host has the control plane, and goes on no more than another one."""
    load_transport()
    command = [sys.executable, "-c", SCRIPT.format(folder=str(tmp_path), sync=sync)]
    with Lab(parse_spec(STAR.format(hosts=4))) as lab:
        workers = lab.start_workers(command, stdout=subprocess.PIPE)
        trains = [tmp_path / f"{rank}.trains" for rank in range(4)]
        end = time.monotonic() + 100
        while not all(each.exists() for each in trains):
            assert time.monotonic() < end
            time.sleep(0.05)
        cables = lab.spec.topology.cables
        its = [k for k, each in enumerate(cables) if cut_off in (each.source, each.target)]
        lab.change(LinkEvent(0.0, tuple(its), link=(("down", True),)))
        written = [json.loads(worker.stdout.read()) for worker in workers]
        codes = [worker.wait(DEADLINE_S) for worker in workers]
    assert codes == [5 if rank == cut_off else 0 for rank in range(4)], written
    assert "silent" in written[cut_off] or "cannot be reached" in written[cut_off], written
    living = [written[rank] for rank in range(4) if rank != cut_off]
    assert all(cut_off not in members for _, members, _ in living)
    assert len({total for _, _, total in living}) == 1
    assert any(longest > 1.0 for longest, _, _ in living), "the fault has fired: somebody waited"
