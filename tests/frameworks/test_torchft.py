"""torchft's `Manager` over Shoal's transport: replicas that are killed, come back and are alike."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from patience import IDLE_S
from process_table import marked_environment, processes_of
from started_ranks import free_port, outcomes

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [
    pytest.mark.skipif(find_spec("torchft") is None, reason="needs torchft: make test-frameworks"),
    pytest.mark.timeout(300),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "torchft_digits.py"
LIGHTHOUSE = (
    *(str(Path(sys.executable).parent / "torchft_lighthouse"), "--min_replicas", "2"),
    *("--join_timeout_ms", "2000", "--quorum_tick_ms", "50", "--heartbeat_timeout_ms", "1500"),
)
REPLICA = """
import json, os, sys, time
from datetime import timedelta
import torch, torchft
from torch.distributed import TCPStore
from torchft.checkpointing.pg_transport import PGTransport
from shoal.adapters.torchft import ProcessGroupShoal

number, lighthouse, record = int(sys.argv[1]), sys.argv[2], open(sys.argv[3], "a")
address = os.environ.get("SHOAL_LAB_ADDRESS", "127.0.0.1")
torch.set_num_threads(1)
torch.manual_seed(os.getpid())  # replicas begin apart: torchft makes them alike
inner = torch.nn.Sequential(torch.nn.Linear(20, 400), torch.nn.ReLU(), torch.nn.Linear(400, 3))
sgd = torch.optim.SGD(inner.parameters(), lr=0.01, momentum=0.9)

def load(state):
    inner.load_state_dict(state["model"])
    sgd.load_state_dict(state["optimizer"])

store = TCPStore(address, 0, is_master=True, wait_for_workers=False)
group, more = ProcessGroupShoal(timedelta(seconds=5)), {}
if os.environ.get("STATE_BY") == "messages":
    limit, device = timedelta(seconds=10), torch.device("cpu")
    more["checkpoint_transport"] = PGTransport(group, timeout=limit, device=device)
manager = torchft.Manager(
    **more, pg=group, load_state_dict=load, min_replica_size=2, replica_id=f"replica-{number}",
    state_dict=lambda: {"model": inner.state_dict(), "optimizer": sgd.state_dict()},
    timeout=timedelta(seconds=10), rank=0, world_size=1, lighthouse_addr=lighthouse,
    store_addr=address, store_port=store.port, hostname=address,
)
model = torchft.DistributedDataParallel(manager, inner)
optimizer = torchft.Optimizer(manager, sgd)
while True:
    optimizer.zero_grad()
    model(torch.randn(16, 20)).square().mean().backward()
    step = manager.current_step()
    optimizer.step()
    if manager.current_step() > step:
        total = sum(each.double().sum() for each in inner.parameters()).item()
        line = [manager.current_step(), manager.num_participants(), total]
        record.write(json.dumps(line) + "\\n")
        record.flush()
    time.sleep(0.02)
"""


class Job:
    """Replicas that train until they are killed, each with a record of its steps for every start.

    `start` starts a command of the replica with a number, or (None) the lighthouse.
    """

    def __init__(
        self, folder: Path, lighthouse: str, start: Callable[[int | None, list[str]], Any]
    ) -> None:
        self._folder, self._lighthouse, self._start = folder, lighthouse, start
        self.processes: dict[str, Any] = {}
        start(None, [*LIGHTHOUSE, "--bind", lighthouse.removeprefix("http://")])

    def start(self, number: int) -> str:
        """Start a replica, or start it again; return the name of its record."""
        name = f"{number}-{len(self.processes)}"
        where = [str(number), self._lighthouse, str(self._folder / name)]
        self.processes[name] = self._start(number, [sys.executable, "-c", REPLICA, *where])
        return name

    def steps(self, name: str) -> dict[int, tuple[int, float]]:
        """Return how many replicas made each step, and the sum of parameters after it."""
        path = self._folder / name
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        whole = [json.loads(line) for line in lines if line.endswith("\n")]
        return {step: (size, total) for step, size, total in whole}

    def await_steps(self, names: list[str], count: int, size: int, after: int = 0) -> None:
        """Return once all have made `count` steps of `size` replicas that follow step `after`."""

        def made(name: str) -> int:
            steps = self.steps(name).items()
            return sum(each[0] == size and step > after for step, each in steps)

        seen, since = {}, time.monotonic()
        while any(made(name) < count for name in names):
            for name in names:
                assert self.processes[name].poll() is None, f"{name} has ended"
            now = {name: len(self.steps(name)) for name in names}
            if now != seen:
                seen, since = now, time.monotonic()
            assert time.monotonic() - since < IDLE_S, f"nothing goes on: {seen}"
            time.sleep(0.05)

    def kill(self, name: str) -> int:
        """Kill a replica; return the last step that it has noted."""
        self.processes[name].kill()
        assert self.processes[name].wait(20) in (-signal.SIGKILL, 128 + signal.SIGKILL)
        return max(self.steps(name))

    def check(self) -> None:
        """Replicas that have made the same step are alike after it, whoever healed from whom."""
        every = [self.steps(name) for name in self.processes]
        for step in set().union(*every):
            totals = {each[step][1] for each in every if step in each}
            assert len(totals) == 1, (step, [each.get(step) for each in every])


def kill_and_rejoin(job: Job) -> None:
    names = [job.start(number) for number in range(3)]
    job.await_steps(names, 5, size=3)
    died_after = job.kill(names[1])
    job.await_steps([names[0], names[2]], 5, size=2, after=died_after)
    again = [names[0], job.start(1), names[2]]
    job.await_steps(again, 5, size=3, after=died_after)
    assert min(job.steps(again[1])) > died_after  # it has taken up the others' state
    for name in again:
        job.kill(name)
    job.check()


@pytest.mark.parametrize("state_by", ["http", "messages"])
def test_a_replica_that_is_killed_comes_back_and_all_are_alike_after_each_step(
    tmp_path: Path, state_by: str
) -> None:
    """State is handed on by torchft's web server, or by messages of the group itself."""
    started = []

    def start(number: int | None, command: list[str]) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "RUST_LOG": "error", "STATE_BY": state_by}
        with (tmp_path / f"log-{number}").open("ab") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        started.append(process)
        return process

    try:
        kill_and_rejoin(Job(tmp_path, f"http://127.0.0.1:{free_port()}", start))
    except AssertionError as error:
        logs = "\n".join(path.read_text()[-3000:] for path in tmp_path.glob("log-*"))
        raise AssertionError(f"{error}\n{logs}") from error
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_the_same_on_a_network_that_loses_packets(tmp_path: Path) -> None:
    """Each replica has a MASTER_ADDR of its own, as under torchrun, which no other host reaches."""
    from shoal.lab.lab import Lab
    from shoal.lab.network.fabric import why_not
    from shoal.scenario.spec_file import parse_spec
    from shoal.switching.tables import Count

    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    spec = 'hosts.count = 3\naccess = { rate = "1 Gbit/s", delay = "100 us", loss = "1 %" }\n'
    with Lab(parse_spec(spec)) as lab:
        lab.begin()

        def start(number: int | None, command: list[str]) -> Any:
            place = {"SHOAL_JOB_KEY": "a key for all of them", "MASTER_ADDR": "127.0.0.1"}
            variables = {**os.environ, "RUST_LOG": "error", **place}
            with (tmp_path / f"log-{number}").open("ab") as log:
                return lab.start(
                    number or 0, command, environment=variables, stdout=log, stderr=log
                )

        kill_and_rejoin(Job(tmp_path, f"http://{lab.hosts[0].address}:29510", start))
        assert lab.counts()[..., Count.LOST].sum() > 100


RARELY = """
import json, os, sys
from datetime import timedelta
import torch, torchft
from torch.distributed import TCPStore
from torchft.local_sgd import DiLoCo, LocalSGD
from shoal.adapters.torchft import ProcessGroupShoal

number, lighthouse, way = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.manual_seed(0)
model = torch.nn.Linear(20, 300)
sgd = torch.optim.SGD(model.parameters(), lr=0.01)
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
manager = torchft.Manager(
    pg=ProcessGroupShoal(timedelta(seconds=20)), load_state_dict=model.load_state_dict,
    state_dict=model.state_dict, min_replica_size=2, replica_id=f"replica-{number}",
    use_async_quorum=False, timeout=timedelta(seconds=20), rank=0, world_size=1,
    lighthouse_addr=lighthouse, store_addr="127.0.0.1", store_port=store.port, hostname="127.0.0.1",
)
torch.manual_seed(number)  # replicas see data of their own
if way == "LocalSGD":
    averaging = LocalSGD(manager, model, sgd, sync_every=4)
else:
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    averaging = DiLoCo(manager, [model], sgd, outer, sync_every=4)
with averaging:
    for _ in range(24):
        sgd.zero_grad()
        model(torch.randn(16, 20)).square().mean().backward()
        sgd.step()
total = sum(each.double().sum().item() for each in model.parameters())
print(json.dumps([manager.current_step(), manager.num_participants(), total]), flush=True)
os._exit(0)  # as a replica that has finished would wait for the other to be done with its state
"""


@pytest.mark.parametrize("way", ["LocalSGD", "DiLoCo"])
def test_replicas_that_average_rarely_are_alike_in_the_end(way: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    quiet = {**os.environ, "RUST_LOG": "error"}
    with subprocess.Popen([*LIGHTHOUSE, "--bind", address], env=quiet) as lighthouse:
        try:
            replicas = [
                subprocess.Popen(
                    [sys.executable, "-c", RARELY, str(number), f"http://{address}", way],
                    env=quiet,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                for number in range(2)
            ]
            ended = outcomes(replicas)
        finally:
            lighthouse.kill()
    assert [status for status, _, _ in ended] == [0, 0], ended
    one, other = (json.loads(out.splitlines()[-1]) for _, out, _ in ended)
    assert one == other
    assert one[:2] == [6, 2]


class Example:
    """The replicas of examples/torchft_digits.py, each under a torchrun, beside a lighthouse."""

    def __init__(self, folder: Path, replicas: int, steps: int) -> None:
        port, self._folder = free_port(), folder
        self.environment = marked_environment(
            PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            TORCHFT_LIGHTHOUSE=f"http://localhost:{port}",
            RUST_LOG="error",
        )
        self._lighthouse = subprocess.Popen(
            [*LIGHTHOUSE, "--bind", f"[::]:{port}"], env=self.environment
        )
        self.launchers = [self._launch(str(each), steps) for each in range(replicas)]

    def _launch(self, replica: str, steps: int) -> subprocess.Popen[bytes]:
        command = ["torchrun", "--master-port", str(free_port()), "--max-restarts", "3"]
        with (self._folder / replica).open("wb") as output:
            return subprocess.Popen(
                [*command, str(EXAMPLE), "--steps", str(steps)],
                env={**self.environment, "REPLICA": replica},
                stdout=output,
                stderr=output,
            )

    def said(self, words: str) -> list[str]:
        """Return the lines with these words that the replicas have written."""
        texts = [path.read_text() for path in self._folder.iterdir()]
        return [line for text in texts for line in text.splitlines() if words in line]

    def await_said(self, words: str, times: int) -> None:
        """Return once `words` have been said so often."""
        end = time.monotonic() + 120
        while len(self.said(words)) < times:
            assert time.monotonic() < end, self.said("")
            time.sleep(0.1)

    def workers(self) -> list[int]:
        """Return the processes that train."""
        every = processes_of(self.environment).items()
        return [
            pid for pid, command in every if EXAMPLE.name in command and "torchrun" not in command
        ]

    def close(self) -> None:
        for pid in processes_of(self.environment):
            os.kill(pid, signal.SIGKILL)
        for process in (self._lighthouse, *self.launchers):
            process.wait()


@pytest.mark.skipif(find_spec("sklearn") is None, reason="the example's data need scikit-learn")
def test_the_example_is_started_again_by_torchrun_and_ends_with_one_model(tmp_path: Path) -> None:
    folders = [tmp_path / "killed", tmp_path / "whole"]
    for folder in folders:
        folder.mkdir()
    killed = Example(folders[0], 3, 1_000_000)
    try:
        killed.await_said(": 3 take part", 3)
        twos, threes = len(killed.said(": 2 take part")), len(killed.said(": 3 take part"))
        os.kill(max(killed.workers()), signal.SIGKILL)
        killed.await_said(": 2 take part", twos + 2)
        killed.await_said(": 3 take part", threes + 3)
        assert killed.said("exitcode: -9")  # what torchrun says of the worker that it starts again
    finally:
        killed.close()
    whole = Example(folders[1], 2, 30)
    try:
        assert [launcher.wait(120) for launcher in whole.launchers] == [0, 0]
        assert len({line.partition(": ")[2] for line in whole.said("sum of parameters")}) == 1
        assert len(whole.said("sum of parameters")) == 2
    finally:
        whole.close()
