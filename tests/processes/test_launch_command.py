"""`shoal launch` with real processes: who dies comes back, nothing is left, no line is torn."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any, Self

import pytest

pytest.importorskip("torch")

from forked_process import ForkedProcess

from free_ports import free_ports_in_a_row
from patience import communicate
from process_table import marked_environment, processes_of, wait_for_end
from thoroughness import seldom

PROMPT_S = 2.0
LOADED = 5
"""How many times slower a test machine may be than one that is free."""

TRAINING = """
import os, signal, sys, time
from pathlib import Path
import torch
import shoal

torch.set_num_threads(1)
folder, min_workers, victim, deaths = Path(sys.argv[1]), *map(int, sys.argv[2:])
session = shoal.init(deadline_s=20, min_workers=min_workers or None)
torch.manual_seed(session.rank)
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
optimizer = shoal.DistributedOptimizer(optimizer, model, sync="all-reduce")
print("trains from step", optimizer.num_steps, flush=True)
end = time.monotonic() + 25
# Those that go on do so until the other is back.
while time.monotonic() < end:
    optimizer.zero_grad()
    data = torch.randn(16, 8)
    (model(data) - data[:, :4]).square().mean().backward()
    optimizer.step()
    time.sleep(0.02)  # the processor is for who starts
    notes = len(list(folder.glob("death-*")))
    if session.rank == victim and notes < deaths and optimizer.num_steps > 5:
        (folder / f"death-{notes}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if notes == deaths and (session.view.epoch >= 2 * deaths or not min_workers):
        break
for _ in range(3):
    optimizer.zero_grad()
    data = torch.randn(16, 8)
    (model(data) - data[:, :4]).square().mean().backward()
    optimizer.step()
optimizer.finish()
print("model", float(model.weight.detach().double().sum()), flush=True)
shoal.shutdown()
"""


class Launched:
    """`shoal launch`, whose processes all carry its mark."""

    def __init__(self, *words: str, folder: Path | None = None, **options: Any) -> None:
        place = {} if folder is None else {"TMPDIR": str(folder)}
        self.environment = marked_environment(SHOAL_LOG="info", **place)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "shoal.cli", "launch", *words],
            env=self.environment,
            start_new_session=True,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        for pid in processes_of(self.environment):
            os.kill(pid, signal.SIGKILL)
        self.process.communicate()

    def until(self, condition: Callable[[], Any]) -> None:
        end = time.monotonic() + 50
        while not condition():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < end
            time.sleep(0.01)

    def ended(self) -> tuple[int, str, str]:
        """Wait for the end; nothing is left. Return the exit code and what was written."""
        out, errors = communicate(self.process)
        assert wait_for_end(self.environment, PROMPT_S * LOADED) == {}
        return self.process.returncode, out, errors


def python(code: str, *words: str) -> list[str]:
    return ["--", sys.executable, "-c", code, *words]


def models(out: str) -> dict[str, str]:
    """Return the sum of each rank's model at the end."""
    return dict(re.findall(r"^\[(\d)\] model (\S+)$", out, re.MULTILINE))


STAND_IN = """
import json, os, socket, sys

with socket.socket(socket.AF_UNIX) as test:
    test.connect(sys.argv[1])
    test.sendall(json.dumps(dict(os.environ)).encode() + b"\\n")
    code, out, errors = json.loads(test.makefile().readline())
sys.stdout.write(out)
sys.stderr.write(errors)
sys.stdout.flush()
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""
"""A command that ends as a process does which the test forks for it, where torch is loaded."""


@contextmanager
def forked(path: Path, *words: str) -> Iterator[None]:
    """Fork a training with these words for every `STAND_IN` that connects to `path`."""
    started: list[ForkedProcess] = []

    def fork(stream: socket.socket) -> None:
        with stream, stream.makefile("rw") as file:
            process = ForkedProcess(json.loads(file.readline()), be_training, list(words))
            started.append(process)
            out, errors = process.communicate()
            file.write(json.dumps([process.returncode, out, errors]) + "\n")

    def serve(server: socket.socket) -> None:
        with suppress(OSError):  # it has been closed
            while True:
                Thread(target=fork, args=(server.accept()[0],), daemon=True).start()

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        Thread(target=serve, args=(server,), daemon=True).start()
        try:
            yield
        finally:
            server.shutdown(socket.SHUT_RDWR)
            for process in started:
                process.kill()


def be_training(words: list[str]) -> None:
    sys.argv = ["-c", *words]
    exec(compile(TRAINING, "training", "exec"), {"__name__": "__main__"})


@pytest.mark.timeout(300)
@pytest.mark.parametrize("victim", seldom([0, 1], often=[1]))
def test_who_is_killed_starts_again_and_joins(tmp_path: Path, victim: int) -> None:
    result, path = tmp_path / "result.json", tmp_path / "forks"
    words = ("-n", "2", "--json", str(result), *python(STAND_IN, str(path)))
    with forked(path, str(tmp_path), "1", str(victim), "1"), Launched(*words) as job:
        code, out, errors = job.ended()
    assert code == 0, errors
    assert (tmp_path / "death-0").exists(), "the fault has fired"
    assert f"shoal launch: rank {victim} was ended by SIGKILL" in errors
    assert f"view 2: ranks (0, 1). Rank {victim} has joined." in errors
    assert len(models(out)) == 2
    assert len(set(models(out).values())) == 1
    told = json.loads(result.read_text())
    assert told["exit_code"] == 0
    assert told["starts_of_all"] == 1
    for worker in told["workers"]:
        codes = [end["exit_code"] for end in worker["ends"]]
        assert codes == ([137, 0] if worker["rank"] == victim else [0])
        assert worker["starts"] == len(codes)


STANDING_STILL = """
import os, signal, sys, time
from pathlib import Path
import torch
import shoal

torch.set_num_threads(1)
stopped, back = Path(sys.argv[1], "stopped"), Path(sys.argv[1], "back")
is_back = stopped.exists()
session = shoal.init(deadline_s=20, min_workers=1)
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
optimizer = shoal.DistributedOptimizer(optimizer, model, sync="ripples")
end = time.monotonic() + 150
while time.monotonic() < end and not back.exists():
    optimizer.zero_grad()
    model(torch.randn(16, 8)).square().mean().backward()
    optimizer.step()
    time.sleep(0.02)
    if session.rank == 1 and optimizer.num_steps == 10 and not stopped.exists():
        stopped.touch()
        os.kill(os.getpid(), signal.SIGSTOP)
    if is_back:
        back.touch()
optimizer.finish()
shoal.shutdown()
"""


@pytest.mark.timeout(300)
@pytest.mark.long  # it takes as long as a worker may hang
def test_who_hangs_is_killed_and_starts_again(tmp_path: Path) -> None:
    with Launched("-n", "2", *python(STANDING_STILL, str(tmp_path))) as job:
        code, _, errors = job.ended()
    assert code == 0, errors
    assert (tmp_path / "stopped").exists(), "the fault has fired"
    said = "rank 1 hangs: the others have gone on without it for 15 s; it is killed"
    assert errors.count(said) == 1
    assert "rank 1 starts again" in errors
    assert "Rank 1 has joined." in errors


@pytest.mark.timeout(300)
@pytest.mark.long  # as the job below, which is no training
def test_a_training_of_fixed_size_starts_again_as_a_whole(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    words = ("-n", "2", "--json", str(result), *python(TRAINING, str(tmp_path), "0", "1", "1"))
    with Launched(*words) as job:
        code, out, errors = job.ended()
    assert code == 0, errors
    assert "WorkerLost: Rank 1" in errors, "the other one has heard of it"
    assert len(re.findall(r"trains from step 0$", out, re.MULTILINE)) == 4
    assert len(models(out)) == 2
    told = json.loads(result.read_text())
    assert told["starts_of_all"] == 2
    assert [each["starts"] for each in told["workers"]] == [2, 2]


NEEDING_ALL = """
import os, signal, sys, time
from pathlib import Path

folder, rank = Path(sys.argv[1]), os.environ["RANK"]
print("meets at", os.environ["MASTER_PORT"], flush=True)
if rank == "1" and not (folder / "death").exists():
    (folder / "death").touch()
    os.kill(os.getpid(), signal.SIGKILL)
while rank == "0" and not (folder / "death").exists():
    time.sleep(0.01)
if rank == "0" and not (folder / "saved").exists():
    time.sleep(1.5)  # longer than the others' pause
    (folder / "saved").touch()
    sys.exit(5)
"""


def test_a_job_that_needs_all_starts_again_once_the_others_have_ended(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    words = ("-n", "2", "--json", str(result), *python(NEEDING_ALL, str(tmp_path)))
    with Launched(*words) as job:
        code, out, errors = job.ended()
    assert code == 0, errors
    ports = re.findall(r"^\[\d\] meets at (\d+)$", out, re.MULTILINE)
    assert len(ports) == 4
    assert ports[:2] == ports[:1] * 2
    assert ports[2:] == ports[2:3] * 2
    assert errors.count("starts again\n") == 2
    assert json.loads(result.read_text())["starts_of_all"] == 2


FAILING = "import os, sys; sys.exit(7 if os.environ['RANK'] == '1' else 0)"


@pytest.mark.parametrize(("restarts", "starts"), seldom([("0", 1), ("1", 2)], often=[("1", 2)]))
def test_who_fails_by_an_exit_code_starts_again_as_often_as_is_said(
    tmp_path: Path, restarts: str, starts: int
) -> None:
    """Nobody has finished meanwhile: both end with the same code."""
    code = "import sys; sys.exit(7)"
    result = tmp_path / "result.json"
    words = ("-n", "2", "--restarts", restarts, "--json", str(result))
    with Launched(*words, *python(code)) as job:
        status, out, errors = job.ended()
    assert (status, out) == (7, "")
    assert errors.count("ended with exit code 7") == 2 * starts
    told = json.loads(result.read_text())
    assert [len(each["ends"]) for each in told["workers"]] == [starts, starts]


def test_nobody_starts_again_where_another_has_finished(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    with Launched("-n", "2", "--json", str(result), *python(FAILING)) as job:
        status, _, errors = job.ended()
    assert status == 7
    assert "starts again\n" not in errors
    states = [each["state"] for each in json.loads(result.read_text())["workers"]]
    assert states == ["finished", "failed"]


WRITING = """
import os, sys, threading
def write(stream, letter):
    for _ in range(300):
        stream.write(letter * 500 + chr(10))
out = threading.Thread(target=write, args=(sys.stdout, "o"))
out.start()
write(sys.stderr, "e")
out.join()
sys.stdout.write("no end")
"""


def test_no_line_is_torn_or_lost() -> None:
    with Launched("-n", "3", *python(WRITING)) as job:
        status, out, errors = job.ended()
    assert status == 0
    whole = [f"[{rank}] {'o' * 500}" for rank in range(3) for _ in range(300)]
    last = [f"[{rank}] no end" for rank in range(3)]
    assert sorted(out.splitlines()) == sorted(whole + last)
    said = [line for line in errors.splitlines() if not line.startswith("shoal launch: ")]
    assert sorted(said) == sorted(f"[{r}] {'e' * 500}" for r in range(3) for _ in range(300))


def test_what_workers_say_goes_to_files_if_asked(tmp_path: Path) -> None:
    with Launched("-n", "2", "--logs", str(tmp_path / "logs"), *python(WRITING)) as job:
        status, out, _ = job.ended()
    assert (status, out) == (0, "")
    for rank in range(2):
        lines = (tmp_path / "logs" / f"{rank}.log").read_text()
        assert lines.count("o" * 500) == lines.count("e" * 500) == 300


WITH_CHILDREN = """
import subprocess, sys, time
children = [subprocess.Popen(["sleep", "1000"]) for _ in range(2)]
print("has begun", flush=True)
time.sleep(1000)
"""


@contextmanager
def with_children(tmp_path: Path, code: str = WITH_CHILDREN, *words: str) -> Iterator[Launched]:
    """Launch two workers that have begun; what is private to the job is in a folder of its own."""
    logs, private = tmp_path / "logs", tmp_path / "private"
    private.mkdir()
    words = ("-n", "2", "--logs", str(logs), *words, *python(code))
    with Launched(*words, folder=private) as job:
        files = [logs / f"{rank}.log" for rank in range(2)]
        job.until(lambda: all(f.exists() and "has begun" in f.read_text() for f in files))
        yield job


@pytest.mark.parametrize(
    ("number", "code", "words"),
    seldom(
        [
            (signal.SIGINT, 130, "interrupted"),
            (signal.SIGTERM, 143, "terminated"),
            (signal.SIGHUP, 129, "hung up"),
            (signal.SIGKILL, -9, None),
        ],
        often=[(signal.SIGTERM, 143, "terminated"), (signal.SIGKILL, -9, None)],
    ),
)
def test_a_signal_ends_all_that_workers_have_started(
    tmp_path: Path, number: int, code: int, words: str | None
) -> None:
    if number == signal.SIGHUP:  # which `nohup make test` has all commands ignore
        signal.signal(number, signal.SIG_DFL)
    with with_children(tmp_path) as job:
        assert sum(each.startswith("sleep") for each in processes_of(job.environment).values()) == 4
        job.process.send_signal(number)
        status, _, errors = job.ended()
    assert status == code
    if words is not None:
        assert errors.splitlines()[-1] == words
    assert "Traceback" not in errors
    assert list((tmp_path / "private").iterdir()) == []


STUBBORN = """
import signal, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, _: print("was asked by", number, flush=True))
print("has begun", flush=True)
while True:
    time.sleep(1)
"""


def test_who_does_not_end_is_asked_first_and_then_killed(tmp_path: Path) -> None:
    with with_children(tmp_path, STUBBORN, "--grace", "0.5") as job:
        job.process.send_signal(signal.SIGTERM)
        status, _, _ = job.ended()
    assert status == 143
    for rank in range(2):
        assert f"was asked by {signal.SIGTERM:d}" in (tmp_path / "logs" / f"{rank}.log").read_text()


LEAVING = """
import signal
import torch
import shoal

session = shoal.init(deadline_s=20, min_workers=1)
shoal.leave_on(signal.SIGTERM)
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
optimizer = shoal.DistributedOptimizer(optimizer, model, sync="all-reduce")
for step in range(100000):
    optimizer.zero_grad()
    model(torch.randn(4, 2)).square().mean().backward()
    try:
        optimizer.step()
    except SystemExit:
        print("left at step", step, flush=True)
        raise
    if step == 5:
        print("has begun", flush=True)
"""


@pytest.mark.timeout(300)
@pytest.mark.long
def test_sigterm_is_a_polite_leave(tmp_path: Path) -> None:
    with with_children(tmp_path, LEAVING, "--grace", "20") as job:
        job.process.send_signal(signal.SIGTERM)
        status, _, errors = job.ended()
    assert status == 143
    assert errors.count("has finished") == 2
    for rank in range(2):
        assert "left at step" in (tmp_path / "logs" / f"{rank}.log").read_text()


def test_a_terminal_has_a_line_for_each_worker() -> None:
    ours, theirs = pty.openpty()
    code = "import time; print('what a worker says', flush=True); time.sleep(1)"
    with Launched("-n", "2", *python(code), stdout=theirs, stderr=theirs) as job:
        os.close(theirs)
        shown = b""
        while True:
            try:
                chunk = os.read(ours, 65536)
            except OSError:  # the other end has been closed
                break
            shown += chunk
        os.close(ours)
        assert job.process.wait(10) == 0
    text = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", shown).decode()
    assert re.search(r"worker +state +starts", text)
    for rank in range(2):
        assert re.search(rf"^{rank} +runs +1", text, re.MULTILINE)
        assert text.count(f"[{rank}] what a worker says") == 1


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_ports_in_a_row(1)))
        taken.listen()
        port = taken.getsockname()[1]
        with Launched("-n", "2", "--port", str(port), *python("")) as job:
            status, out, errors = job.ended()
    assert (status, out) == (7, "")
    assert errors.startswith(f"error: Port {port} of 127.0.0.1 is in use: ")
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["-n", "2", "--", "no-such-command"], "There is no command 'no-such-command'."),
        (["-n", "2"], "Missing argument '-- COMMAND...'."),
        (["-n", "0", "--", "true"], "Invalid value for '-n' / '--workers': "),
        (["-n", "1", "--grace", "0", "--", "true"], "--grace must be a positive number"),
    ],
)
def test_what_cannot_be_launched_is_one_sentence(words: list[str], sentence: str) -> None:
    with Launched(*words) as job:
        status, out, errors = job.ended()
    assert (status, out) == (2, "")
    assert errors.startswith(f"error: {sentence}")
    assert errors.count("\n") == 1
