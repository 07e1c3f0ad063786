"""Trials of a job's verdict: one job on a lab, whose faults change from one trial to the next."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

import msgspec

from shoal.errors import DeadlineExceeded
from shoal.jobs import Environment
from shoal.lab import Lab
from shoal.scenario import LinkEvent, parse_scenario
from shoal.watch import Snapshot, Verdict
from shoal_bench.blame.faults import WORKERS, Fault, Score, draw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOSTS: Final = 4
RATE: Final = 100e6
PARAMETERS: Final = 250_000
COMPUTE_MS: Final = 60.0
LASTS_S: Final = 18.0
"""The seconds of a trial: a verdict is about the last ten samples, which take some ten seconds."""
_BEGIN_S: Final = 120.0
_ANSWER_S: Final = 30.0


class Trial(msgspec.Struct, frozen=True):
    """What was wrong, and what was said of it."""

    faults: tuple[Fault, ...]
    verdicts: tuple[Verdict, ...]


class Outcome(msgspec.Struct, frozen=True):
    """What a file of trials holds."""

    environment: Environment
    seed: int
    score: Score
    trials: list[Trial]


def trials(count: int, seed: int) -> Iterator[Trial]:
    """Yield what came of so many trials, each as soon as it is over."""
    random = Random(seed)
    spec = parse_scenario(
        f'hosts.count = {HOSTS}\naccess = {{ rate = "100 Mbit/s", delay = "50 us" }}\n'
    ).cluster
    with tempfile.TemporaryDirectory(prefix="shoal-") as name, Lab(spec) as lab:
        folder = Path(name)
        arguments = [name, str(PARAMETERS), str(COMPUTE_MS)]
        command = [sys.executable, "-m", "shoal_bench.blame.worker", *arguments]
        workers = lab.start_workers(command, stdout=subprocess.DEVNULL)
        _await(
            lambda: len(list(folder.glob("trains-*"))) == HOSTS, _BEGIN_S, "The job begins late."
        )
        for number in range(count):
            faults = draw(random, HOSTS)
            _impose(lab, folder, faults)
            time.sleep(LASTS_S)
            (folder / f"ask-{number}").touch()
            shown = folder / f"shown-{number}"
            _await(shown.exists, _ANSWER_S, "Rank 0 does not show the job.")
            snapshot = msgspec.json.decode(shown.read_bytes(), type=Snapshot)
            yield Trial(faults, snapshot.verdicts)
        (folder / "stop").touch()
        for worker in workers:
            worker.wait(_ANSWER_S)


def score(done: list[Trial]) -> Score:
    """Return how often these trials' verdicts were right."""
    total = Score()
    for trial in done:
        total.add(trial.faults, trial.verdicts)
    return total


def _impose(lab: Lab, folder: Path, faults: tuple[Fault, ...]) -> None:
    """Let these faults be there, and no others."""
    cables = lab.spec.topology.cables
    lab.change(LinkEvent(0.0, tuple(range(len(cables))), recover=True))
    slow = {fault.rank: fault.size for fault in faults if fault.what == WORKERS}
    for rank in range(HOSTS):
        (folder / f"slow-{rank}").write_text(str(slow.get(rank, 1.0)))
    for fault in faults:
        if fault.what != WORKERS:
            its = [k for k, each in enumerate(cables) if fault.rank in (each.source, each.target)]
            lab.change(LinkEvent(0.0, tuple(its), rate=fault.rate(RATE), link=fault.link()))


def _await(is_so: Callable[[], bool], patience_s: float, late: str) -> None:
    end = time.monotonic() + patience_s
    while not is_so():
        if time.monotonic() > end:
            raise DeadlineExceeded(late)
        time.sleep(0.05)
