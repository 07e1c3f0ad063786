"""Workers leave the memory that they share with the process they are forked from as it is."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

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


def test_what_was_imported_before_the_fork_is_not_collected_after_it(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=60, check=True
    )
    frozen, alive = map(int, done.stdout.split())
    assert frozen > 10_000
    assert alive < frozen
