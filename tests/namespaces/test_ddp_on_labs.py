"""A user's own DDP script on the leaf-spine of the examples, over Shoal's transport with tags."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from lab_commands import DEADLINE_S

pytest.importorskip("torch")

from shoal.lab.lab import Lab
from shoal.scenario.spec_file import read_spec
from shoal.session.warm_up import load_transport
from shoal.switching.tables import CAPABLE, PLAIN, Count

# Four interpreters load torch and its compiler: forty seconds of a processor. `make test` has DDP
# on labs in test_cluster_jobs.py, tags on labs in test_trials_on_labs.py, and the hook's in
# processes/test_ddp_hook.py.
pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

SPEC = Path(__file__).parents[2] / "src" / "shoal" / "scenario" / "examples" / "leaf-spine.toml"
SCRIPT = """
import torch, torch.distributed as dist
import shoal.adapters.ddp
dist.init_process_group("shoal")
torch.manual_seed(0)
layers = [torch.nn.Linear(256, 256) for _ in range(8)]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.25)
if {is_tagged}:
    shoal.adapters.ddp.register(model, loss_bound=0.1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    optimizer.zero_grad()
    model(torch.randn(8, 256)).square().mean().backward()
    optimizer.step()
print(float(next(model.parameters()).sum()))
dist.destroy_process_group()
"""


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    load_transport()


@pytest.mark.parametrize("is_tagged", [True, False])
def test_switches_see_the_tags_of_a_users_script_and_spines_share_its_packets(
    is_tagged: bool,
) -> None:
    command = [sys.executable, "-c", SCRIPT.format(is_tagged=is_tagged)]
    spec = read_spec(SPEC)
    with Lab(spec) as lab:
        workers = lab.start_workers(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        written = [worker.stdout.read().decode() for worker in workers]
        codes = [worker.wait(DEADLINE_S) for worker in workers]
        sent = lab.counts()[:, :, :, Count.SENT]
    assert codes == [0, 0, 0, 0], written
    assert len(set(written)) == 1  # replicas of one model
    cables = spec.topology.cables
    to_hosts = sum(sent[k] for k, cable in enumerate(cables) if cable.target >= 0)
    queues = {queue for queue in range(7) if to_hosts[queue].sum() > 0}
    if is_tagged:
        assert len(queues) > 2  # layers differ
        assert to_hosts[:, PLAIN].sum() > 0 < to_hosts[:, CAPABLE].sum()
    else:
        assert queues == {0}
    spines = [name for name in spec.topology.switches if name.startswith("spine")]
    through = [
        sum(int(sent[k].sum()) for k, cable in enumerate(cables) if cable.target == -1 - number)
        for number, name in enumerate(spec.topology.switches)
        if name in spines
    ]
    assert max(through) < 0.6 * sum(through)
