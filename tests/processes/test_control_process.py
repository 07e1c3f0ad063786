"""The control plane as processes: start and end, thousands of groups, workers killed or stopped."""

from __future__ import annotations

import os
import queue
import select
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from worker_processes import context

from shoal.control import ControlClient, ControlProcess, JobKey
from shoal.errors import ResourceError, UsageError, WorkerLost
from shoal.groups import GeneratorConfig
from shoal.membership import View

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

TEXT = "the key of this test job"
KEY = JobKey(TEXT)
DEADLINE_S = 30.0


def start(world_size: int, liveness_timeout_s: float = 60.0, **options: Any) -> ControlProcess:
    options = {"key": KEY, "liveness_timeout_s": liveness_timeout_s, **options}
    return ControlProcess.start(view=View.first(world_size), **options)


def connect(endpoint: str, rank: int, on_lost: Any = lambda lost: None) -> ControlClient:
    return ControlClient(endpoint, JobKey(TEXT), rank, DEADLINE_S, on_lost)


def wait_for_end(pid: int) -> None:
    """Return once the process `pid`, which need not be a child, has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([handle], [], [], DEADLINE_S)[0], f"process {pid} does not end"
    finally:
        os.close(handle)


@contextmanager
def workers(
    endpoint: str, ranks: range, work: Callable[..., None], *arguments: Any
) -> Iterator[dict[int, tuple[Any, Connection]]]:
    """Run `work(pipe, endpoint, rank, ...)` in a process per rank; none outlives the block."""
    running = {}
    for rank in ranks:
        here, there = context.Pipe()
        process = context.Process(target=work, args=(there, endpoint, rank, *arguments))
        process.start()
        there.close()
        running[rank] = (process, here)
    try:
        yield running
    finally:
        for process, pipe in running.values():
            process.join(DEADLINE_S)
            process.kill()
            process.join()
            process.close()
            pipe.close()


def receive(pipe: Connection) -> Any:
    assert pipe.poll(DEADLINE_S), "a worker process says nothing"
    return pipe.recv()


def last_of(pipe: Connection) -> Any:
    """Return what a worker process says in the end."""
    while (said := receive(pipe)) == "going":
        pass
    return said


def test_the_process_starts_serves_and_stops() -> None:
    with start(1) as service:
        assert service.is_running
        with connect(service.endpoint, 0) as client:
            client.join("run", 0, GeneratorConfig(), 0)
            assert client.request_group("run", 0).members == (0,)
    assert not service.is_running
    service.stop()


def test_the_key_shows_neither_in_arguments_nor_in_the_environment() -> None:
    with start(1) as service:
        entry = Path(f"/proc/{service.pid}")
        assert b"shoal.control" in (entry / "cmdline").read_bytes()
        for name in ("cmdline", "environ"):
            assert TEXT.encode() not in (entry / name).read_bytes()


def test_the_process_does_not_get_the_terminal_s_signals() -> None:
    with start(1) as service:
        assert os.getsid(service.pid) == service.pid


def test_a_port_in_use_is_named_with_what_to_do() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ResourceError, match=rf"Port {port} of 127.0.0.1 is in use: choose"):
            start(1, port=port)


def test_a_chosen_port_is_used() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with start(1, port=port) as service:
        assert service.endpoint == f"tcp://127.0.0.1:{port}"


def test_a_host_name_becomes_an_address() -> None:
    with start(1, host="localhost") as service, connect(service.endpoint, 0) as client:
        assert len(client.dump().view) == 1


def test_bad_values_are_usage_errors() -> None:
    with pytest.raises(UsageError, match=r"at least 0\.2 s"):
        start(1, liveness_timeout_s=0.1)


@pytest.mark.parametrize(
    ("program", "words"), [("/bin/false", "before it was ready"), ("/no/such", "cannot be started")]
)
def test_a_process_that_does_not_come_up_is_a_resource_error(
    program: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", program)
    with pytest.raises(ResourceError, match=words):
        start(1)


def test_it_imports_no_torch() -> None:
    code = "import shoal.control.__main__, sys; print('torch' in sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, env=os.environ
    )
    assert answer.stdout == b"False\n"


def test_the_service_killed_is_a_loss_for_everyone() -> None:
    losses: queue.SimpleQueue[WorkerLost] = queue.SimpleQueue()
    with start(1) as service, connect(service.endpoint, 0, losses.put) as client:
        client.join("run", 0, GeneratorConfig(), 0)
        os.kill(service.pid, signal.SIGKILL)
        assert "is gone" in str(losses.get(timeout=DEADLINE_S))
        with pytest.raises(WorkerLost):
            client.request_group("run", 0)


def own_a_service(pipe: Connection) -> None:
    """Be rank 0's process: start the service, fork as a data loader does, then do nothing."""
    service = start(2)
    copy = os.fork()  # holds the pipe to the service open beyond this process's end
    if copy:
        pipe.send((service.endpoint, service.pid, copy))
    signal.pause()


def test_the_service_ends_with_its_parent_and_says_so() -> None:
    losses: queue.SimpleQueue[WorkerLost] = queue.SimpleQueue()
    here, there = context.Pipe()
    parent = context.Process(target=own_a_service, args=(there,))
    parent.start()
    endpoint, pid, copy = receive(here)
    try:
        with connect(endpoint, 1, losses.put):
            parent.kill()
            lost = losses.get(timeout=DEADLINE_S)
            assert lost.rank == 0
            assert "process of rank 0" in str(lost)
            wait_for_end(pid)
    finally:
        os.kill(copy, signal.SIGKILL)
        parent.join()
        parent.close()
        for pipe in (here, there):
            pipe.close()


def train(pipe: Connection, endpoint: str, rank: int, config: GeneratorConfig, steps: int) -> None:
    """Ask for groups with random delays in between; send back what was assigned, or what happened.

    Says "going" now and then: silence is bounded, however long all of it takes on a busy machine.
    """
    rng = Random(rank)
    log = []
    try:
        with connect(endpoint, rank) as client:
            client.join("run", rank // 2, config, 5)
            for step in range(steps):
                if step % 50 == 0:
                    pipe.send("going")
                time.sleep(rng.choice([0.0, 0.0001, 0.0005, 0.001]))
                while True:
                    assigned = client.request_group("run", step)
                    log.append((assigned.group_id, assigned.members))
                    if not assigned.more:
                        break
            client.leave("run")
        pipe.send(log)
    except WorkerLost as lost:
        pipe.send(lost.rank)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(GeneratorConfig(group_size=2), id="smart"),
        pytest.param(GeneratorConfig.random_mode(3), id="random", marks=pytest.mark.long),
    ],
)
@pytest.mark.long
def test_thousands_of_groups_with_random_delays_end_clean(config: GeneratorConfig) -> None:
    steps, world_size = 1000, 5
    with start(world_size) as service:
        with workers(service.endpoint, range(world_size), train, config, steps) as running:
            logs = {rank: last_of(pipe) for rank, (_, pipe) in running.items()}
        with connect(service.endpoint, 0) as client:
            dump = client.dump()
    assert dump.sessions == ()
    assert dump.lost is None
    assert dump.rejected == {}
    seen: defaultdict[int, set[int]] = defaultdict(set)
    members_of = {}
    for rank, log in logs.items():
        assert len(log) >= steps
        assert [group for group, _ in log] == sorted({group for group, _ in log})
        for group, members in log:
            seen[group].add(rank)
            assert members_of.setdefault(group, members) == members
    assert len(members_of) > 1000
    assert all(seen[group] == set(members) for group, members in members_of.items())


def test_a_worker_killed_in_the_middle_is_lost_to_all_others() -> None:
    endless = 10**9
    with start(4) as service:
        ranks = range(4)
        with workers(service.endpoint, ranks, train_until_lost, endless) as running:
            for _, pipe in running.values():
                assert receive(pipe) == "going"
            running[2][0].kill()
            outcomes = {r: receive(running[r][1]) for r in ranks if r != 2}
    assert outcomes == {0: 2, 1: 2, 3: 2}


def train_until_lost(pipe: Connection, endpoint: str, rank: int, steps: int) -> None:
    """Ask for groups until a worker is lost; send its rank."""
    with connect(endpoint, rank) as client:
        client.join("run", 0, GeneratorConfig(), 5)
        try:
            for step in range(steps):
                client.request_group("run", step)
                if step == 50:
                    pipe.send("going")
        except WorkerLost as lost:
            pipe.send(lost.rank)


def test_a_stopped_worker_is_lost_and_told_when_it_wakes_up() -> None:
    endless = 10**9
    with start(3, liveness_timeout_s=1.0) as service:
        ranks = range(3)
        with workers(service.endpoint, ranks, train_until_lost, endless) as running:
            for _, pipe in running.values():
                assert receive(pipe) == "going"
            os.kill(running[1][0].pid, signal.SIGSTOP)
            assert receive(running[0][1]) == 1
            assert receive(running[2][1]) == 1
            os.kill(running[1][0].pid, signal.SIGCONT)
            assert receive(running[1][1]) == 1


def test_it_ends_quietly_when_nobody_gives_it_orders() -> None:
    command = [sys.executable, "-m", "shoal.control"]
    done = subprocess.run(command, input=b"", capture_output=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
