"""Whoever fails, in whatever phase: all others hear of it in time, by a `ShoalError`, and leave.

Rank 0 keeps torch's store here, as it does under srun, mpirun and launchers of one's own, so a
frozen rank 0 is a silent store. The victim leaves proof that it has failed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from thoroughness import seldom

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import shoal  # noqa: E402
from started_ranks import free_port  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from worker_processes import RunWorkers

pytestmark = pytest.mark.timeout(90)

WORLD = 3
DEADLINE_S = {"kill": 10.0, "leave": 10.0, "stop": 6.0, "loop": 4.0, "never start": 2.0}
"""Of a job with a fault: shorter where it is waited for."""
PHASES = ("join", "wrap", "step", "finish", "average")
STOPPED_S = DEADLINE_S["stop"] / 2
"""After so long a worker that is stopped is lost; one that dies is lost at once."""
MARGIN_S = 5.0
ENDS_S = 35
"""Seconds after which a victim ends at the latest."""


class Victim:
    """One worker's fault, in one phase."""

    def __init__(self, is_here: bool, phase: str, fault: str, proof: Path) -> None:
        self._is_here, self._phase, self._fault, self._proof = is_here, phase, fault, proof

    def at(self, phase: str) -> None:
        """Have the fault, if it is in this phase."""
        if not self._is_here or phase != self._phase:
            return
        self._proof.write_text(str(time.monotonic()))
        _end_this_once_others_have(self._proof.parent)
        match self._fault:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop" | "never start":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "loop":
                while True:
                    time.sleep(0.1)
            case "leave":
                raise SystemExit(0)


def _end_this_once_others_have(folder: Path) -> None:
    """Have this process killed once all others have left, or after a while."""
    wait = f"for i in $(seq {ENDS_S}0); do [ $(ls {folder} | grep -c left) -ge {WORLD - 1} ]"
    script = f"{wait} && break; sleep 0.1; done; kill -9 {os.getpid()} 2> /dev/null"
    subprocess.Popen(["sh", "-c", script], start_new_session=True)


def train(
    port: int, folder: Path, victim: int, phase: str, fault: str, sync: str, transport: str
) -> dict[str, Any]:
    """Be one worker; return which error it got, and when it was able to leave."""
    del os.environ["TORCHELASTIC_USE_AGENT_STORE"]
    os.environ["MASTER_PORT"] = str(port)
    rank = int(os.environ["RANK"])
    fate = Victim(rank == victim, phase, fault, folder / "proof")
    report: dict[str, Any] = {"rank": rank, "error": ""}
    try:
        fate.at("join")
        shoal.init(deadline_s=DEADLINE_S[fault])
        fate.at("wrap")
        torch.manual_seed(rank)
        model = nn.Linear(4, 2)
        optimizer = shoal.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model, sync=sync, transport=transport
        )
        for step in range(20):
            if step == 10:
                fate.at("step")
            optimizer.zero_grad()
            model(torch.ones(2, 4)).square().sum().backward()
            optimizer.step()
        fate.at("finish")
        optimizer.finish()
        fate.at("average")
        optimizer.average_model()
    except shoal.ShoalError as error:
        report |= {"error": type(error).__name__, "message": str(error)}
        report |= {"lost": getattr(error, "rank", None), "heard": time.monotonic()}
    except SystemExit:
        report["error"] = "left"
    shoal.shutdown()
    report["left"] = time.monotonic()
    (folder / f"left-{rank}").touch()
    return report


@pytest.fixture
def survivors(run_workers: RunWorkers, tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Run a job with a fault and return what those who are well report, times since the fault."""

    def run(victim: int, phase: str, fault: str, sync: str, transport: str) -> list[dict[str, Any]]:
        outcomes = run_workers(
            train,
            WORLD,
            free_port(),
            tmp_path,
            victim,
            phase,
            fault,
            sync,
            transport,
            may_die=(victim,),
            initialize=False,
            deadline_s=ENDS_S + 10,
        )
        began = float((tmp_path / "proof").read_text())
        reports = [each for rank, each in enumerate(outcomes) if rank != victim]
        for each in reports:
            assert each is not None
            for name in ("heard", "left"):
                if name in each:
                    each[name] -= began
        return reports

    return run


def cases(syncs: dict[str, tuple[str, ...]]) -> list[tuple[str, str, str]]:
    return [(p, sync, over) for sync, overs in syncs.items() for over in overs for p in PHASES[1:]]


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("phase", "sync", "transport"),
    seldom(
        cases({"all-reduce": ("gloo",), "ds-sync": ("shoal",), "ripples": ("gloo",)}),
        often=[
            ("wrap", "all-reduce", "gloo"),
            ("step", "ds-sync", "shoal"),
            ("finish", "ripples", "gloo"),
        ],
    ),
)
def test_a_worker_that_dies_is_named_to_all(
    survivors: Callable[..., list[dict[str, Any]]],
    victim: int,
    phase: str,
    sync: str,
    transport: str,
) -> None:
    for report in survivors(victim, phase, "kill", sync, transport):
        assert report["error"] == "WorkerLost", report
        assert report["lost"] in (victim, None)
        assert report["heard"] < MARGIN_S
        assert report["left"] < 2 * MARGIN_S


@pytest.mark.long  # test_failures.py has a stopped worker under half of the strategies
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize(
    ("phase", "sync", "transport"),
    [
        ("wrap", "ds-sync", "gloo"),
        ("wrap", "all-reduce", "shoal"),
        ("step", "ripples", "shoal"),
        ("finish", "ds-sync", "gloo"),
        ("average", "all-reduce", "gloo"),
        ("average", "ripples", "gloo"),
    ],
)
def test_a_worker_that_is_stopped_is_named_to_all_after_half_a_deadline(
    survivors: Callable[..., list[dict[str, Any]]],
    victim: int,
    phase: str,
    sync: str,
    transport: str,
) -> None:
    for report in survivors(victim, phase, "stop", sync, transport):
        assert report["error"] == "WorkerLost", report
        assert report["lost"] == victim
        assert report["heard"] < STOPPED_S + MARGIN_S
        assert report["left"] < STOPPED_S + 2 * MARGIN_S


@pytest.mark.long  # loopback/test_rendezvous.py has ranks that do not come
def test_a_store_that_is_silent_from_the_start_ends_the_start(
    survivors: Callable[..., list[dict[str, Any]]],
) -> None:
    """Rank 0 stops before the others can meet it: the control plane does not stand yet."""
    for report in survivors(0, "join", "never start", "all-reduce", "gloo"):
        assert report["error"] == "ResourceError", report
        assert report["heard"] < 2 * DEADLINE_S["never start"] + MARGIN_S


@pytest.mark.parametrize(
    ("phase", "sync", "transport"),
    [
        ("step", "all-reduce", "gloo"),
        pytest.param("step", "ripples", "gloo", marks=pytest.mark.long),
        pytest.param("step", "ad-psgd", "gloo", marks=pytest.mark.long),
        pytest.param("finish", "ripples", "gloo", marks=pytest.mark.long),
    ],
)
def test_whoever_waits_for_a_worker_that_is_stuck_can_leave(
    survivors: Callable[..., list[dict[str, Any]]], phase: str, sync: str, transport: str
) -> None:
    """The first to reach its deadline leaves, and so has failed: the others hear of that."""
    for report in survivors(2, phase, "loop", sync, transport):
        assert report["error"] in ("DeadlineExceeded", "WorkerLost"), report
        assert report["left"] < DEADLINE_S["loop"] + 3 * MARGIN_S


def test_a_worker_that_leaves_in_the_middle_is_named_to_those_that_need_it(
    survivors: Callable[..., list[dict[str, Any]]],
) -> None:
    for report in survivors(1, "step", "leave", "all-reduce", "gloo"):
        assert (report["error"], report["lost"]) == ("WorkerLost", 1), report
        assert report["heard"] < MARGIN_S


@pytest.mark.parametrize(
    ("victim", "phase", "sync", "transport"),
    [
        (1, "step", "ps-asp", "gloo"),
        pytest.param(1, "step", "ripples", "gloo", marks=pytest.mark.long),
        (0, "step", "ripples", "shoal"),
        pytest.param(0, "step", "local-sgd", "gloo", marks=pytest.mark.long),
        pytest.param(1, "step", "ad-psgd", "gloo", marks=pytest.mark.long),
        pytest.param(0, "step", "ad-psgd", "shoal", marks=pytest.mark.long),
        pytest.param(1, "average", "all-reduce", "gloo", marks=pytest.mark.long),
        pytest.param(0, "average", "ripples", "gloo", marks=pytest.mark.long),
    ],
)
def test_the_mean_of_all_models_cannot_be_made_without_one_that_has_left(
    survivors: Callable[..., list[dict[str, Any]]],
    victim: int,
    phase: str,
    sync: str,
    transport: str,
) -> None:
    """Workers that need no other one train on until then."""
    for report in survivors(victim, phase, "leave", sync, transport):
        assert (report["error"], report["lost"]) == ("WorkerLost", victim), report
        assert "has left" in report["message"]
        assert report["heard"] < MARGIN_S
