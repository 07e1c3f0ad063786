"""Workers are forked from a process that is as they need it: frozen, and quiet about orphans."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

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


RAISES = "import shoal.jobs.forked_from\nraise {error}('said')\n"


@pytest.mark.parametrize(("error", "is_said"), [("EOFError", False), ("ValueError", True)])
def test_a_worker_without_a_launcher_says_nothing_and_any_other_what_is_wrong(
    error: str, is_said: bool
) -> None:
    command = [sys.executable, "-c", RAISES.format(error=error)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert (f"{error}: said" in done.stderr) == is_said
    assert is_said or done.stderr == ""


def test_what_was_imported_before_the_fork_is_not_collected_after_it(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=60, check=True
    )
    frozen, alive = map(int, done.stdout.split())
    assert frozen > 10_000
    assert alive < frozen
