"""What the tests' own limit follows: whether a job gets on, and not the clock."""

from __future__ import annotations

import subprocess
import sys

import pytest

from patience import communicate

WORKS = """
import time
while time.process_time() < 2: pass
print("done")
"""


def started(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_job_that_only_waits_is_given_up() -> None:
    with started("import time; time.sleep(50)") as process:
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                communicate(process, idle_s=1.5)
        finally:
            process.kill()


@pytest.mark.long
def test_a_job_outlives_the_limit_while_a_process_that_it_started_works() -> None:
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WORKS!r}])"
    with started(parent) as process:
        assert communicate(process, idle_s=1.5)[0] == "done\n"


@pytest.mark.long
def test_who_waits_for_another_of_its_job_is_not_given_up_before_that_has_done_its_work() -> None:
    with started("import time; time.sleep(50)") as waits, started(WORKS) as works:
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                communicate(waits, [waits, works], idle_s=1.5)
            assert works.poll() == 0
        finally:
            waits.kill()
