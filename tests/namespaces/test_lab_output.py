"""What the workers of `shoal lab run` say and what is counted, also when the run is cut short."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_commands import DEADLINE_S, SHOAL_LAB, STAR, shoal_lab

from process_table import marked_environment, wait_for_end
from thoroughness import seldom


@pytest.fixture
def spec(tmp_path: Path) -> str:
    path = tmp_path / "two.toml"
    path.write_text(STAR.format(hosts=2))
    return str(path)


ENDLESS = "echo ready; sleep 300 & wait"


@pytest.mark.parametrize("has_errors", seldom([True, False], often=[True]))
def test_output_that_cannot_be_written_ends_the_workers_with_a_sentence(
    spec: str, has_errors: bool
) -> None:
    environment = marked_environment()
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*SHOAL_LAB, "run", spec, "--", "sh", "-c", ENDLESS],
            stdout=full,
            stderr=subprocess.PIPE if has_errors else full,
            env=environment,
            text=True,
            timeout=180,
            check=False,
        )
    assert done.returncode == 7
    if has_errors:
        assert done.stderr == (
            "error: What the workers say cannot be written to standard output:"
            " No space left on device.\n"
        )
    assert wait_for_end(environment, DEADLINE_S) == {}


@pytest.mark.long  # core/cli/test_closed_output.py has readers that go
def test_a_reader_that_goes_ends_the_workers_in_silence(spec: str, tmp_path: Path) -> None:
    environment, counts = marked_environment(), tmp_path / "counts.json"
    reading, writing = os.pipe()
    os.close(reading)
    later = f"[ $RANK = 1 ] || sleep 0.3; {ENDLESS}"  # who has not begun is not heard either
    done = subprocess.run(
        [*SHOAL_LAB, "run", spec, "--stats", str(counts), "--", "sh", "-c", later],
        stdout=writing,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
        timeout=180,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")
    assert '"cable": "host0-switch"' in counts.read_text()
    assert wait_for_end(environment, DEADLINE_S) == {}


@pytest.fixture
def heeded(number: signal.Signals) -> Iterator[signal.Signals]:
    """Return a signal that child processes do not ignore, as those of nohup and of "&" do."""
    before = signal.signal(number, signal.SIG_DFL)
    yield number
    signal.signal(number, before)


@pytest.mark.parametrize(
    "number",
    seldom([signal.SIGHUP, signal.SIGINT, signal.SIGTERM], often=[signal.SIGINT]),
)
def test_what_was_counted_is_written_when_a_signal_ends_the_run(
    spec: str, tmp_path: Path, heeded: signal.Signals
) -> None:
    counts = tmp_path / "counts.json"
    with subprocess.Popen(
        [*SHOAL_LAB, "run", spec, "--stats", str(counts), "--", "sh", "-c", ENDLESS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for _ in range(2):  # both heed signals
            assert process.stdout.readline().endswith("ready\n")
        process.send_signal(heeded)
        process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 128 + heeded
    assert '"cable": "host0-switch"' in counts.read_text()


def test_progress_bars_come_line_by_line(spec: str) -> None:
    done = shoal_lab("run", spec, "--", "sh", "-c", r"printf '\r50%%\r99%%\r\n'")
    assert sorted(done.stdout.splitlines()) == [
        f"[host{host}] {share}" for host in range(2) for share in ("50%", "99%")
    ]
