"""The files in examples/launchers: those that can run here run, the others can at least be read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from free_ports import free_ports_in_a_row
from patience import communicate
from process_table import marked_environment, processes_of, wait_for_end

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "launchers"
SCRIPTS = sorted([*FOLDER.glob("*.sh"), *FOLDER.glob("*.sbatch")])
MANIFESTS = sorted(FOLDER.glob("*.yaml"))
SIZE, VICTIM = 2, 1

NOTING = """
import os, sys
from pathlib import Path

names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
place = " ".join(os.environ[name] for name in names)
starts = Path(sys.argv[1], os.environ["RANK"])
with starts.open("a") as file:
    file.write(f"{place} {os.environ['SHOAL_JOB']} {os.environ.get('GROUP_RANK')}\\n")
if os.environ["RANK"] == "1" and len(starts.read_text().splitlines()) == 1:
    sys.exit(5)
"""
"""A script that is no training: it writes down what it finds, and fails once as rank 1."""

TRAINING = """
import os, signal, sys, time
from pathlib import Path
import torch
import shoal

torch.set_num_threads(1)
death = Path(sys.argv[1], "death")
session = shoal.init(deadline_s=20, min_workers=1)
torch.manual_seed(session.rank)
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
optimizer = shoal.DistributedOptimizer(optimizer, model, sync="all-reduce")
end = time.monotonic() + 40
while session.view.epoch < 2 and time.monotonic() < end:
    optimizer.zero_grad()
    data = torch.randn(16, 8)
    (model(data) - data[:, :4]).square().mean().backward()
    optimizer.step()
    time.sleep(0.02)  # the processor is for who starts
    if session.rank == 1 and not death.exists() and optimizer.num_steps > 5:
        death.touch()
        os.kill(os.getpid(), signal.SIGKILL)
optimizer.finish()
Path(sys.argv[1], f"model-{session.rank}").write_text(str(model.weight.detach().double().sum()))
shoal.shutdown()
"""


def launched(name: str, folder: Path, code: str) -> dict[str, str]:
    """Run a launcher's file until all its workers have ended; return the environment it had."""
    script = folder / "script.py"
    script.write_text(code)
    environment = marked_environment(
        WORLD_SIZE=str(SIZE),
        WORKERS=str(SIZE),
        FIRST_RANK="0",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(free_ports_in_a_row(1)),
        SHOAL_JOB=str(folder / "job"),
        PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        LOGLEVEL="ERROR",  # torchrun's
    )
    command = [str(FOLDER / name), sys.executable, str(script), str(folder)]
    of_each = name == "torchrun.sh"
    started = []
    for rank in range(SIZE) if of_each else [0]:
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(SIZE)}
        started.append(
            subprocess.Popen(
                command,
                env=environment | (place if of_each else {}),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )
    try:
        for process in started:
            _, errors = communicate(process, started)
            assert process.returncode == 0, errors
        assert wait_for_end(environment, 10) == {}
    finally:
        for pid in processes_of(environment):
            os.kill(pid, signal.SIGKILL)
        for process in started:
            process.communicate()
    return environment


CAN_RUN = ["plain.sh", pytest.param("torchrun.sh", marks=pytest.mark.long)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CAN_RUN)
def test_who_fails_starts_again_alone_in_its_place(tmp_path: Path, name: str) -> None:
    environment = launched(name, tmp_path, NOTING)
    for rank in range(SIZE):
        starts = (tmp_path / str(rank)).read_text().splitlines()
        assert len(starts) == (2 if rank == VICTIM else 1)
        port, job = environment["MASTER_PORT"], environment["SHOAL_JOB"]
        assert set(starts) == {f"{rank} {SIZE} {rank} {SIZE} 127.0.0.1 {port} {job} None"}


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["plain.sh", "torchrun.sh", "shoal-launch.sh"])
def test_a_worker_that_is_killed_comes_back(tmp_path: Path, name: str) -> None:
    pytest.importorskip("torch")
    if name == "shoal-launch.sh" and not Path(sys.executable).with_name("shoal").exists():
        pytest.skip("the command is not installed")
    launched(name, tmp_path, TRAINING)
    assert (tmp_path / "death").exists(), "the fault has fired"
    models = [(tmp_path / f"model-{rank}").read_text() for rank in range(SIZE)]
    assert models[0] == models[1]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray")
def test_a_task_of_ray_that_is_killed_comes_back(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(TRAINING)
    words = [str(FOLDER / "ray_tasks.py"), str(SIZE), str(script), str(tmp_path)]
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    subprocess.run([sys.executable, *words], env=environment, check=True, timeout=500)
    assert (tmp_path / "death").exists(), "the fault has fired"
    models = [(tmp_path / f"model-{rank}").read_text() for rank in range(SIZE)]
    assert models[0] == models[1]


def test_plain_processes_end_with_their_script(tmp_path: Path) -> None:
    environment = marked_environment(
        WORLD_SIZE="2",
        WORKERS="2",
        FIRST_RANK="0",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="1",
        SHOAL_JOB=str(tmp_path / "job"),
    )
    command = [str(FOLDER / "plain.sh"), "sleep", "1000"]
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        while sum(each.startswith("sleep") for each in processes_of(environment).values()) < 2:
            assert process.poll() is None
            time.sleep(0.01)
        process.terminate()
        assert wait_for_end(environment, 10) == {}
        assert process.wait() == 143
    finally:
        for pid in processes_of(environment):
            os.kill(pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("script", SCRIPTS, ids=[each.name for each in SCRIPTS])
def test_shells_can_read_the_scripts(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True, timeout=10)


@pytest.mark.parametrize("manifest", MANIFESTS, ids=[each.name for each in MANIFESTS])
def test_manifests_name_the_hosts_that_they_make(manifest: Path) -> None:
    parts = {each["kind"]: each for each in yaml.safe_load_all(manifest.read_text())}
    if "JobSet" in parts:
        spec = parts["JobSet"]["spec"]
        (group,) = spec["replicatedJobs"]
        job = group["template"]["spec"]
        first = f"{parts['JobSet']['metadata']['name']}-{group['name']}-0-0"
        first += f".{spec['network']['subdomain']}"
        size, pod = job["completions"], job["template"]["spec"]
        assert job["parallelism"] == size
    else:
        service, spec = parts["Service"], parts["StatefulSet"]["spec"]
        first = f"{parts['StatefulSet']['metadata']['name']}-0.{service['metadata']['name']}"
        size, pod = spec["replicas"], spec["template"]["spec"]
        assert spec["serviceName"] == service["metadata"]["name"]
        assert service["spec"]["selector"] == spec["template"]["metadata"]["labels"]
    (container,) = pod["containers"]
    given = {each["name"]: each.get("value") for each in container["env"]}
    assert given["WORLD_SIZE"] == str(size)
    assert given["MASTER_ADDR"] == first
    hosts = [each.rpartition(":")[0] for each in given["SHOAL_JOB"].split(",")]
    assert hosts == [first.replace("0.", f"{number}.") for number in range(size)]
