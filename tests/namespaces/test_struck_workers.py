"""Workers of `shoal lab run` that the spec kills, stops and starts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from lab_commands import SHOAL_LAB, STAR

EVENTS = """
[[event]]
at = "0.2 s"
freeze = 0
for = "1 s"
[[event]]
at = "0.3 s"
kill = 1
[[event]]
at = "0.6 s"
join = 1
[[event]]
at = "0.7 s"
join = 2
host = "host0"
[[event]]
at = "1000 s"
kill = 0
"""
# each says that it begins; whoever comes later ends at once, and the first two wait for both
SCRIPT = """
echo began $RANK of $WORLD_SIZE
echo ${{#SHOAL_JOB_KEY}} $SHOAL_JOB_KEY >> {folder}/keys
[ -e {folder}/began.$RANK ] && touch {folder}/again && exit 0
touch {folder}/began.$RANK
[ $RANK = 2 ] && exit 0
while [ ! -e {folder}/again ] || [ ! -e {folder}/began.2 ]; do sleep 0.05; done
echo ended $RANK
"""


@pytest.mark.timeout(200)
def test_a_killed_worker_is_no_failure_and_comes_back(tmp_path: Path) -> None:
    spec = tmp_path / "two.toml"
    spec.write_text(STAR.format(hosts=2) + EVENTS)
    done = subprocess.run(
        [*SHOAL_LAB, "run", str(spec), "--", "sh", "-c", SCRIPT.format(folder=tmp_path)],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (key,) = set((tmp_path / "keys").read_text().splitlines())
    assert int(key.split()[0]) >= 32, "all of a job have its key, newcomers as well"
    said = done.stdout.splitlines()
    assert said.count("[host1] began 1 of 2") == 2
    assert "[host0.rank2] began 2 of 2" in said
    assert "[host0] ended 0" in said
    assert "[host1] ended 1" not in said
    assert done.stderr.splitlines()[-1] == "kill rank 0 at 1000 s: all had ended before"
