"""Labs where the system allows little: one sentence, and commands that have what the user had."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab_commands import STAR, shoal_lab

from thoroughness import seldom

HOSTS = 24
MANY = 6 * HOSTS + 100
FEW = 2 * HOSTS + 30
"""Enough to build the lab and to begin with its commands."""


@pytest.fixture
def spec(tmp_path: Path) -> str:
    path = tmp_path / "many.toml"
    path.write_text(STAR.format(hosts=HOSTS))
    return str(path)


def limited(limit: str) -> tuple[str, ...]:
    return ("sh", "-c", f'ulimit {limit}; exec "$@"', "sh")


@pytest.mark.long
def test_a_lab_has_as_many_files_open_as_it_may_and_commands_as_before(spec: str) -> None:
    prefix = limited(f"-n {MANY}; ulimit -S -n {FEW}")
    show = "echo $(ulimit -S -n) $(ulimit -H -n)"
    done = shoal_lab("run", spec, "--", "sh", "-c", show, prefix=prefix)
    assert done.stderr == ""
    assert set(done.stdout.splitlines()) == {f"[host{k}] {FEW} {MANY}" for k in range(HOSTS)}


@pytest.mark.parametrize(
    ("limit", "words"),
    seldom(
        [
            (FEW, "Cannot start a command on host"),
            (HOSTS + 10, f"Cannot build a lab of {HOSTS} hosts"),
        ],
        often=[(HOSTS + 10, f"Cannot build a lab of {HOSTS} hosts")],
    ),
)
def test_a_lab_that_takes_more_files_than_it_may_is_one_sentence(
    spec: str, limit: int, words: str
) -> None:
    done = shoal_lab("run", spec, "--", "true", prefix=limited(f"-n {limit}"))
    assert done.returncode == 7
    reason = f"this process may not have more than {limit} files open (ulimit -Hn)."
    assert done.stderr.startswith(f"error: {words}")
    assert done.stderr.endswith(f": {reason}\n")
    assert done.stderr.count("\n") == 1
