"""Workers are forked from a process that is as they need it: frozen, and quiet about orphans."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from forked_process import run_script

if TYPE_CHECKING:
    from pathlib import Path

    from worker_processes import RunWorkers

PROGRAM = """
import gc
from shoal.jobs import fork_server

def count(connection):
    connection.send((gc.get_freeze_count(), len(gc.get_objects())))

if __name__ == "__main__":
    context = fork_server.start(["shoal.jobs.worker"])
    here, there = context.Pipe()
    process = context.Process(target=count, args=(there,))
    process.start()
    print(*here.recv())
    process.join()
"""


RAISES = """
import os
import sys

import shoal.jobs.forked_from

for error in (EOFError, ValueError):
    child = os.fork()
    if child == 0:
        raise error("said")
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    sys.stderr.write("that was one\\n")
"""


@pytest.mark.long
def test_a_worker_without_a_launcher_says_nothing_and_any_other_what_is_wrong() -> None:
    done = run_script(RAISES)
    assert done.stdout.split() == ["1", "1"]
    without_a_launcher, any_other, _ = done.stderr.split("that was one\n")
    assert without_a_launcher == ""
    assert "ValueError: said" in any_other


def count() -> tuple[int, int]:
    return gc.get_freeze_count(), len(gc.get_objects())


def test_what_was_imported_before_the_fork_is_not_collected_after_it(
    run_workers: RunWorkers,
) -> None:
    ((frozen, alive),) = run_workers(count, 1, initialize=False)
    assert frozen > 10_000
    assert alive < frozen


@pytest.mark.long  # what tests fork workers from has imported the same module last
def test_a_job_s_server_freezes_what_it_has_imported(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=60, check=True
    )
    frozen, alive = map(int, done.stdout.split())
    assert frozen > 10_000
    assert alive < frozen
