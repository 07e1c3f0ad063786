"""What workers leave when a job goes wrong, and what `shoal autopsy` makes of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import shoal
from shoal.cli.autopsy import read_records
from shoal.errors import DataError
from shoal.watch import autopsy
from thoroughness import seldom

if TYPE_CHECKING:
    from worker_processes import RunWorkers

FAULT_AT = 12
CULPRIT = 2
DEADLINE_S = 2.0
FAULTS = [
    ("hang", f"came too late: own work in step {FAULT_AT + 1} took", 3),
    ("kill", "has left no record", 2),
    ("raise", f"failed in step {FAULT_AT + 1}: ArithmeticError: a bad batch.", 3),
]
"""Each with what is said of it, and how many records are left."""


def train(fault: str, elastic: bool, folder: str) -> str:
    """Train a little; the culprit meets its fault. Return what this worker has met."""
    torch.set_num_threads(1)
    session = shoal.init(deadline_s=DEADLINE_S, min_workers=3 if elastic else None)
    model = nn.Linear(8, 4)
    optimizer = shoal.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model)
    try:
        for step in range(2 * FAULT_AT):
            model(torch.ones(2, 8)).sum().backward()
            if step == FAULT_AT and session.rank == CULPRIT:
                meet(fault, Path(folder))
            optimizer.step()
        optimizer.finish()
    except (shoal.ShoalError, ArithmeticError) as error:
        session.report_failure(error)
        return type(error).__name__
    finally:
        shoal.shutdown()
    return ""


def meet(fault: str, folder: Path) -> None:
    if fault == "raise":
        raise ArithmeticError("a bad batch")
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "hang":
        time.sleep(2 * DEADLINE_S)
    if fault == "ask":  # while the others are blocked, outside of Python
        pids = [int(each.name.removeprefix("pid-")) for each in folder.glob("pid-*")]
        time.sleep(0.3)
        for pid in (*pids, os.getpid()):
            os.kill(pid, signal.SIGUSR1)
        end = time.monotonic() + DEADLINE_S / 2
        while len(list(folder.glob("rank-*.json"))) < 3 and time.monotonic() < end:
            time.sleep(0.01)


@pytest.mark.parametrize("elastic", seldom([False, True], often=[True]))
@pytest.mark.parametrize(("fault", "words", "num_records"), seldom(FAULTS, often=[FAULTS[-1]]))
def test_the_culprit_is_named(
    run_workers: RunWorkers,
    tmp_path: Path,
    elastic: bool,
    fault: str,
    words: str,
    num_records: int,
) -> None:
    environment = {"SHOAL_FLIGHT_DIR": str(tmp_path)}
    met = run_workers(
        train, 3, fault, elastic, str(tmp_path), may_die=(CULPRIT,), environment=environment
    )
    assert all(each for rank, each in enumerate(met) if rank != CULPRIT)
    records = read_records(tmp_path)
    assert len(records) == num_records
    found = autopsy(records)
    assert found.culprits == (CULPRIT,)
    assert f"Rank {CULPRIT} {words}" in found.sentences[0]
    said = subprocess.run(
        [sys.executable, "-m", "shoal", "autopsy", str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.startswith(found.sentences[0])


def ask(elastic: bool, folder: str) -> str:
    """Train as above, with a file that says which process this is."""
    Path(folder, f"pid-{os.getpid()}").touch()
    return train("ask", elastic, folder)


@pytest.mark.parametrize("elastic", [False, True])
def test_a_signal_asks_workers_that_are_blocked(
    run_workers: RunWorkers, tmp_path: Path, elastic: bool
) -> None:
    environment = {"SHOAL_FLIGHT_DIR": str(tmp_path)}
    assert run_workers(ask, 3, elastic, str(tmp_path), environment=environment) == [""] * 3
    records = read_records(tmp_path)
    assert [each.why for each in records] == ["SIGUSR1 came."] * 3
    assert [each.doing is None for each in records] == [rank == CULPRIT for rank in range(3)]
    assert autopsy(records).culprits == (CULPRIT,)


def elsewhere(folder: str) -> str:
    """Fail where files for the time being are in another folder."""
    tempfile.tempdir = folder
    return train("raise", False, folder)


@pytest.mark.long
def test_nothing_is_written_where_that_is_not_wanted(
    run_workers: RunWorkers, tmp_path: Path
) -> None:
    run_workers(elsewhere, 3, str(tmp_path), environment={"SHOAL_FLIGHT_DIR": "0"})
    assert list(tmp_path.iterdir()) == []


def test_without_a_folder_it_is_this_users_own(run_workers: RunWorkers, tmp_path: Path) -> None:
    run_workers(elsewhere, 3, str(tmp_path), environment={"SHOAL_FLIGHT_DIR": ""})
    (own,) = tmp_path.iterdir()
    assert own.name == f"shoal-flight-{os.getuid()}"
    assert own.stat().st_mode & 0o077 == 0
    (job,) = own.iterdir()
    assert autopsy(read_records(job)).culprits == (CULPRIT,)


def test_a_folder_without_records_or_with_others_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="There is no record in"):
        read_records(tmp_path)
    (tmp_path / "rank-0.json").write_text('{"format": 1}')
    with pytest.raises(DataError, match=r"rank-0\.json is no record of a worker"):
        read_records(tmp_path)
