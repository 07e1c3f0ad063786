"""torchrun starts a job again when a worker dies: what that one left is in nobody's way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from thoroughness import seldom

pytest.importorskip("torch")

SCRIPT = """
import os
from pathlib import Path
import torch, torch.distributed as dist
import shoal

attempt, told = os.environ["TORCHELASTIC_RESTART_COUNT"], Path(os.environ["TOLD"])
if os.environ["WAY"] == "backend":
    dist.init_process_group("shoal")
session = shoal.init(deadline_s=20)
model = torch.nn.Linear(4, 2)
optimizer = shoal.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), model, sync="all-reduce", transport="shoal"
)
for step in range(6):
    optimizer.zero_grad()
    model(torch.ones(3, 4) * session.rank).sum().backward()
    optimizer.step()
    if step == 3 and session.rank == 1 and attempt == "0":
        os._exit(7)
optimizer.finish()
(told / f"{attempt}-{session.rank}").write_text(str(model.weight.detach().sum().item()))
shoal.shutdown()
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("way", seldom(["session", "backend"], often=["session"]))
def test_workers_that_torchrun_starts_again_train(tmp_path: Path, way: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*command, "--nproc-per-node", "2", "--max-restarts", "1", str(script)],
        env={**os.environ, "TOLD": str(tmp_path), "WAY": way},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = {path.name: path.read_text() for path in tmp_path.glob("1-*")}
    assert sorted(told) == ["1-0", "1-1"]
    assert told["1-0"] == told["1-1"]
