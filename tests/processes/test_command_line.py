"""The command line when something is wrong: one sentence, the documented code, nothing left."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from thoroughness import seldom

pytest.importorskip("torch")

from forked_process import ForkedProcess, run_command

from process_table import marked_environment, processes_of, wait_for_end
from shoal.cli.app import main
from shoal.errors import UsageError, WorkerLost
from shoal.jobs.board import Board, Column
from shoal.jobs.pool import RunFailed, WorkerPool
from shoal.jobs.spec import RunSpec
from shoal.jobs.training_run import run_spec
from shoal.workloads import load_dataset
from started_ranks import outcomes

WORKERS = 2
ENDLESS = "1000000"
PROMPT_S = 2.0
"""How long everything may take to be gone after Ctrl-C."""

LOADED = 5
"""How many times slower a test machine may be than one that is free."""

# --- what cannot be is refused before anything starts --------------------------------------------

REFUSALS: dict[str, tuple[str, int, str]] = {
    "strategy": ("--sync riples", 2, "There is no strategy 'riples'; choose one of all-reduce"),
    "large group": (
        "--sync ripples --workers 2 --option group_size=4",
        2,
        "Group size 4 is larger than the 2 workers",
    ),
    "large ds-sync group": ("--sync ds-sync --option group_size=9", 2, "A group size of 9 does"),
    "slow rank": ("--workers 2 --slow 2:5", 2, "There is no rank 2 to slow down among 2 workers"),
    "slow text": ("--slow two", 2, "--slow takes RANK:FACTOR, such as 3:5"),
    "slow factor": ("--slow 1:inf", 2, "--slow takes RANK:FACTOR, such as 3:5"),
    "slow never": ("--slow 1:5:0", 2, "A slow worker's probability must be more than 0"),
    "fast rank": ("--slow 1:0.5", 2, "A slow rank's factor must be at least 1, not 0.5"),
    "option text": ("--option group_size", 2, "--option takes NAME=VALUE, such as group_size=4"),
    "option name": ("--option size=4", 2, "Strategy 'ripples' has no option 'size'"),
    "option type": ("--option group_size=2.5", 2, "Option group_size of 'ripples' is of type int"),
    "option flag": ("--option group_buffer=1", 2, "Option group_buffer of 'ripples' is of type"),
    "overlap": ("--sync all-reduce --overlap never", 2, "overlap is one of backward, next-forward"),
    "overlap of averages": (
        "--overlap backward",
        2,
        "overlap is one of none, next-forward, layers, next-steps",
    ),
    "overlap elsewhere": (
        "--sync ad-psgd --overlap none",
        2,
        "Strategy 'ad-psgd' has no option 'ov",
    ),
    "wire": ("--sync all-reduce --wire int8", 2, "Unknown wire type 'int8'; choose one of float32"),
    "wire over gloo": ("--sync all-reduce --wire float16", 2, "gloo sends tensors as they are"),
    "wire elsewhere": ("--transport shoal --wire float16", 2, "ripples averages parameters, which"),
    "pull bound": ("--sync ps-bsp --pull-bound 0.1", 2, "Pulls may lose no more than pushes: a"),
    "pull elsewhere": ("--pull-bound 0.1", 2, "Strategy 'ripples' has no option 'pull_bound'"),
    "target text": ("--target high", 2, "Invalid value for '--target': "),
    "target": ("--target nan", 2, "--target must be a finite number, not nan"),
    "data set": ("--dataset nothing", 2, "There is no data set 'nothing'; choose one of digits"),
    "model": ("--model nothing", 2, "There is no model 'nothing'; choose one of mlp"),
    "unfit model": ("--model char-gpt", 2, "char-gpt reads symbols, but digits has images"),
    "no workers": ("--workers 0", 2, "--workers must be positive, not 0"),
    "no steps": ("--max-steps 0", 2, "--max-steps must be positive, not 0"),
    "endless": ("--max-seconds inf", 2, "--max-seconds must be a finite number, not inf"),
    "deadline": ("--deadline 0", 2, "--deadline must be a positive number of seconds, 2000000 at"),
    "long deadline": ("--deadline 3e6", 2, "--deadline must be a positive number of seconds"),
    "port": ("--control-port 70000", 2, "Invalid value for '--control-port': "),
    "hosts": ("--workers-per-host 0", 2, "--workers-per-host must be positive, not 0"),
    "flag": ("--bogus", 2, "No such option: --bogus"),
    "result file": ("--json /no/such/folder/run.json", 7, "/no/such/folder/run.json cannot be"),
}
"""Arguments of `shoal train`, the exit code, the beginning of the sentence."""


def run_all(commands: dict[str, str]) -> dict[str, tuple[int, str, str]]:
    """Return exit code, standard output and standard error of each command."""
    outcomes = {}
    for name, arguments in commands.items():
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            for number, file in ((1, out), (2, err)):
                os.dup2(file.fileno(), number)
            sys.argv = ["shoal", "train", *arguments.split()]
            with pytest.raises(SystemExit) as ending:
                main()
            sys.stdout.flush()
            texts = [os.pread(file.fileno(), 100_000, 0).decode() for file in (out, err)]
            outcomes[name] = (int(ending.value.code or 0), texts[0], texts[1])
    return outcomes


@pytest.fixture(scope="module")
def refusals() -> dict[str, tuple[int, str, str]]:
    """All in one process: none of them starts another, so none can be left."""
    from worker_processes import run_workers

    arguments = {name: refusal[0] for name, refusal in REFUSALS.items()}
    (outcomes,) = run_workers(run_all_alone, 1, arguments, initialize=False)
    return outcomes


def run_all_alone(commands: dict[str, str]) -> dict[str, tuple[int, str, str]]:
    """Run all, and make sure that no process and no folder came of it."""
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        outcomes = run_all(commands)
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
        assert children == ""
        assert list(Path(folder).iterdir()) == []
    return outcomes


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_is_one_sentence_and_a_code(
    refusals: dict[str, tuple[int, str, str]], name: str
) -> None:
    _, code, words = REFUSALS[name]
    exit_code, output, error = refusals[name]
    assert exit_code == code
    assert output == ""
    assert error.startswith(f"error: {words}")
    assert error.count("\n") == 1


def test_a_run_without_an_end_is_refused() -> None:
    spec = RunSpec(strategy="ripples", dataset="digits", model="mlp", workers=2)
    with pytest.raises(UsageError, match="needs an end: give --max-steps or --max-seconds"):
        spec.validate()


# --- commands as processes of their own ----------------------------------------------------------


class Command:
    """`shoal train` in a terminal of its own; everything it starts carries its mark."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        self.folder = folder
        self.environment = marked_environment(
            TMPDIR=str(folder), TORCHINDUCTOR_CACHE_DIR=str(folder / "torch"), **environment
        )
        self.process = subprocess.Popen(
            [sys.executable, "-m", "shoal.cli", "train", "--workers", str(WORKERS), *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        for pid in processes_of(self.environment):
            os.kill(pid, signal.SIGKILL)
        self.process.communicate()

    def until(self, condition: Callable[[], Any]) -> None:
        """Return once `condition` holds; fail if the command ends before."""
        end = time.monotonic() + 50
        while not condition():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < end
            time.sleep(0.01)

    def has_handlers(self) -> bool:
        """Whether the command catches SIGTERM: Python itself does not."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        caught = int(status.partition("SigCgt:")[2].split()[0], 16)
        return bool(caught >> (signal.SIGTERM - 1) & 1)

    def is_loading(self) -> bool:
        """Whether the process that workers are forked from is there, which loads torch first."""
        return any("forkserver" in command for command in self.processes().values())

    def is_training(self) -> bool:
        """Whether every worker has made a step."""
        for folder in self.folder.glob("shoal-*"):
            if (folder / "board.bin").exists() and (folder / "board.bin").stat().st_size:
                board = Board(folder, WORKERS)
                return all(board.read(rank, Column.STEP) > 0 for rank in range(WORKERS))
        return False

    def processes(self) -> dict[int, str]:
        return processes_of(self.environment)

    def workers(self) -> list[int]:
        """The numbers of the worker processes: forked from the one that does not train."""
        servers = [pid for pid, command in self.processes().items() if "forkserver" in command]
        return [pid for pid in servers if parent_of(pid) in servers]

    def check_end(self, code: int, within_s: float) -> str:
        """Everything is gone in time; return what was said on standard error."""
        _, error = self.process.communicate(timeout=50)
        assert wait_for_end(self.environment, within_s * LOADED) == {}
        assert self.process.returncode == code, error
        shutil.rmtree(self.folder / "torch", ignore_errors=True)
        assert list(self.folder.iterdir()) == []
        assert b"Traceback" not in error
        return error.decode()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@contextmanager
def command(*arguments: str, **environment: str) -> Iterator[Command]:
    """Start `shoal train` with a temporary folder of its own, of a short name for sockets."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Command(Path(folder), *arguments, **environment) as running,
    ):
        yield running


def last_line(text: str) -> str:
    return text.splitlines()[-1]


@pytest.mark.long
def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with command("--control-port", str(port)) as shoal:
            error = last_line(shoal.check_end(7, PROMPT_S))
    assert re.fullmatch(rf"error: Rank \d: Port {port} of 127\.0\.0\.1 is in use: choose .*", error)


def test_a_truncated_data_file_is_named(tmp_path: Path) -> None:
    load_dataset("digits", tmp_path)
    file = tmp_path / "digits-v1" / "train_inputs.npy"
    size = file.stat().st_size
    os.truncate(file, size // 2)
    environment = marked_environment(SHOAL_DATA_DIR=str(tmp_path))
    words = ["train", "--workers", str(WORKERS)]
    ((code, _, error),) = outcomes([ForkedProcess(environment, run_command, words)])
    assert code == 4
    assert processes_of(environment) == {}
    assert error == (
        f"error: {file} is damaged ({size // 2} bytes instead of {size}): delete the folder"
        f" {file.parent} and it is built again.\n"
    )


@pytest.mark.parametrize(
    "everyone", seldom([True, False], often=[True]), ids=["terminal", "launcher alone"]
)
def test_ctrl_c_ends_training(everyone: bool) -> None:
    with command("--max-steps", ENDLESS) as shoal:
        shoal.until(shoal.is_training)
        assert len(shoal.workers()) == WORKERS
        assert any("shoal.control" in it for it in shoal.processes().values())
        (os.killpg if everyone else os.kill)(shoal.process.pid, signal.SIGINT)
        assert last_line(shoal.check_end(130, PROMPT_S)) == "interrupted"


@pytest.mark.long
def test_ctrl_c_ends_a_start() -> None:
    with command("--max-steps", ENDLESS) as shoal:
        shoal.until(shoal.is_loading)
        os.killpg(shoal.process.pid, signal.SIGINT)
        assert last_line(shoal.check_end(130, PROMPT_S)) == "interrupted"


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
def test_a_signal_ends_the_command_itself(number: int, code: int, words: str) -> None:
    with command() as shoal:
        shoal.until(shoal.has_handlers)
        os.kill(shoal.process.pid, number)
        assert shoal.check_end(code, PROMPT_S) == f"{words}\n"


IN_A_CALLBACK = """
import os, signal, time, weakref
from shoal.cli import app

class Thing:
    pass

def work(**_):
    thing = Thing()
    kept = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGTERM))
    del thing
    time.sleep(30)

app._run = work
app.main()
"""


def test_a_signal_that_comes_where_python_cannot_raise_is_not_lost() -> None:
    """As in the weak references' callbacks of an import."""
    ended = subprocess.run(
        [sys.executable, "-c", IN_A_CALLBACK],
        capture_output=True,
        text=True,
        timeout=25,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (143, "terminated\n")


@pytest.mark.long  # as after Ctrl-C; a killed sweep, lab and control plane are tried elsewhere
def test_nothing_outlives_a_killed_launcher() -> None:
    with command("--max-steps", ENDLESS) as shoal:
        shoal.until(shoal.is_training)
        os.kill(shoal.process.pid, signal.SIGKILL)
        shoal.check_end(-signal.SIGKILL, PROMPT_S)


@pytest.mark.long  # as in test_failures_by_phase.py; a pool's worker that is stopped comes below
def test_a_killed_worker_ends_the_run() -> None:
    with command("--max-steps", ENDLESS) as shoal:
        shoal.until(shoal.is_training)
        os.kill(shoal.workers()[0], signal.SIGKILL)
        error = last_line(shoal.check_end(5, PROMPT_S))
    seen = r"Worker \d was ended by SIGKILL|Rank \d: .*(Rank \d closed|The process of rank \d)"
    assert re.match(f"error: ({seen})", error)


@pytest.mark.long
def test_a_stopped_worker_ends_the_run_and_itself() -> None:
    spec = RunSpec(strategy="ripples", dataset="digits", model="mlp", workers=2, max_steps=10**6)
    with WorkerPool(WORKERS, deadline_s=4) as pool, ThreadPoolExecutor(1) as background:
        pool.start()
        running = background.submit(run_spec, pool, spec, load_dataset("digits"))
        while not pool.board.read(1, Column.STEP):
            time.sleep(0.01)
        pid = pool.processes[1].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(
            RunFailed, match="Rank 0: Rank 1 was silent for more than 2 s"
        ) as failed:
            running.result(timeout=30)
        assert failed.value.exit_code == WorkerLost.exit_code
    assert pool.processes[0].exitcode is not None
    assert pool.processes[1].exitcode == -signal.SIGKILL
    assert not pool.directory.exists()
