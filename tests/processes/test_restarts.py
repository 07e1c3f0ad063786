"""torchrun starts a job again when a worker dies: what that one left is in nobody's way.

What starts it again is torchrun's agent, whichever way its workers are started. Here it forks them,
for interpreters of their own load torch for longer than all else takes; `make test-all` has
torchrun itself too.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from forked_process import ForkedProcess
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from started_ranks import outcomes

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


def run(way: str, told: str) -> None:
    """Be a worker of the agent that forks them."""
    os.environ.update(WAY=way, TOLD=told)
    exec(compile(SCRIPT, "script", "exec"), {"__name__": "__main__"})


def fork_workers(way: str, told: str) -> None:
    """Be torchrun's agent."""
    multiprocessing.current_process().daemon = False  # it is to have children
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=1,
        start_method="fork",
    )
    elastic_launch(config, run)(way, told)


def check_second_attempt(folder: Path) -> None:
    """Both workers have trained to the end, and alike."""
    told = {path.name: path.read_text() for path in folder.glob("1-*")}
    assert sorted(told) == ["1-0", "1-1"]
    assert told["1-0"] == told["1-1"]


def test_workers_that_are_started_again_train(tmp_path: Path) -> None:
    agent = ForkedProcess(os.environ, fork_workers, "session", str(tmp_path))
    ((status, _, errors),) = outcomes([agent])
    assert status == 0, errors[-3000:]
    check_second_attempt(tmp_path)


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize("way", ["session", "backend"])
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
    check_second_attempt(tmp_path)
