"""Sessions one after another in one process: whose groups are whose, and nothing is left behind."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from thoroughness import seldom

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from forked_process import start  # noqa: E402
from torch import nn  # noqa: E402

import shoal  # noqa: E402
from started_ranks import free_port, outcomes  # noqa: E402

if TYPE_CHECKING:
    from worker_processes import RunWorkers

DEADLINE_S = 20.0


def train(sync: str, transport: str, *, finish: bool = True, average: bool = True) -> Any:
    model = nn.Linear(4, 2)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = shoal.DistributedOptimizer(inner, model, sync=sync, transport=transport)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    if finish:
        optimizer.finish()
    if average:
        optimizer.average_model()
    return inner


def keep_the_users_group(backend: str) -> list[Any]:
    dist.init_process_group(backend)
    pair = dist.new_group([0, 1])
    seen: list[Any] = []
    for sync in ("ripples", "all-reduce"):
        shoal.init(deadline_s=DEADLINE_S)
        train(sync, "gloo")
        shoal.shutdown()
        total = torch.ones(2)
        dist.all_reduce(total, group=pair)
        seen.append((dist.is_initialized(), dist.get_backend(), total.tolist()))
    dist.destroy_process_group()
    return seen


@pytest.mark.parametrize("backend", seldom(["gloo", "shoal"], often=["shoal"]))
def test_a_group_of_the_users_outlives_the_session(run_workers: RunWorkers, backend: str) -> None:
    for seen in run_workers(keep_the_users_group, 2, backend, initialize=False):
        assert seen == [(True, backend, [2.0, 2.0])] * 2


def make_and_end_a_group() -> list[bool]:
    seen = []
    for _ in range(2):
        shoal.init(deadline_s=DEADLINE_S)
        seen.append(dist.is_initialized())
        shoal.shutdown()
        seen.append(dist.is_initialized())
    return seen


def test_a_group_that_the_session_made_goes_with_it(run_workers: RunWorkers) -> None:
    for seen in run_workers(make_and_end_a_group, 2, initialize=False):
        assert seen == [True, False] * 2


def count_what_is_left(transport: str) -> list[tuple[int, ...]]:
    """Return how many descriptors and threads there are after each of some sessions."""
    seen = []
    for _ in range(5):
        shoal.init(deadline_s=DEADLINE_S)
        train("ds-sync", transport)
        shoal.shutdown()
        seen.append(tuple(len(list(Path("/proc/self", each).iterdir())) for each in ("fd", "task")))
    return seen


@pytest.mark.parametrize("transport", seldom(["gloo", "shoal"], often=["shoal"]))
def test_many_sessions_leave_what_one_leaves(run_workers: RunWorkers, transport: str) -> None:
    for seen in run_workers(count_what_is_left, 2, transport, initialize=False):
        later = seen[2:]
        assert max(fds for fds, _ in later) <= seen[1][0] + 2, seen
        # one may still be ending; those that stay add up
        assert min(threads for _, threads in seen[-2:]) <= seen[1][1] + 1, seen


class Heard(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def note_warnings(sync: str, finish: bool, average: bool, bare: bool) -> list[str]:
    heard = Heard()
    logging.getLogger("shoal").addHandler(heard)
    shoal.init(deadline_s=DEADLINE_S)
    inner = train(sync, "gloo", finish=finish, average=average)
    for _ in range(2 * bare):
        inner.step()
    shoal.shutdown()
    shoal.shutdown()
    return heard.said


@pytest.mark.parametrize(
    ("sync", "finish", "average", "sentence"),
    seldom(
        [
            ("ripples", True, True, ""),
            ("ripples", True, False, "leaves without average_model()"),
            ("ad-psgd", True, False, "leaves without average_model()"),
            ("ds-sync", False, False, "leaves without finish(), average_model()"),
            ("ps-asp", True, False, ""),
            ("all-reduce", True, False, ""),
            ("all-reduce", False, False, ""),
        ],
        often=[
            ("ripples", True, True, ""),
            ("ds-sync", False, False, "leaves without finish(), average_model()"),
            ("all-reduce", False, False, ""),
        ],
    ),
)
def test_a_replica_that_was_not_averaged_is_warned_of_once(
    run_workers: RunWorkers, sync: str, finish: bool, average: bool, sentence: str
) -> None:
    for said in run_workers(note_warnings, 2, sync, finish, average, False, initialize=False):
        assert len(said) == bool(sentence), said
        assert all(sentence in each for each in said)


def test_steps_of_the_bare_optimizer_are_warned_of_once(run_workers: RunWorkers) -> None:
    for said in run_workers(note_warnings, 2, "local-sgd", False, True, True, initialize=False):
        assert len([each for each in said if "stepped by itself" in each]) == 1


SCRIPT = """
import shoal, torch
shoal.init(deadline_s=20)
model = torch.nn.Linear(2, 2)
optimizer = shoal.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1), model, "ripples")
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
optimizer.finish()
optimizer.average_model()
"""


def test_shoal_log_shows_what_happens_with_the_rank() -> None:
    port = free_port()
    ranks = [start(rank, 2, port, SCRIPT, SHOAL_LOG="info") for rank in range(2)]
    for rank, (code, out, errors) in enumerate(outcomes(ranks)):
        assert (code, out) == (0, ""), errors
        for said in (
            "shoal.session.session: joined 2 workers",
            "shoal.train.optimizer: run-1: sync='ripples'",
            "shoal.session.session: left the job",
        ):
            assert f"rank {rank} INFO {said}" in errors


def run_logged() -> str:
    """Run the script; return what was written to standard error, and why it failed."""
    written = io.StringIO()
    with contextlib.redirect_stderr(written):
        try:
            exec(SCRIPT, {})
        except shoal.ShoalError as error:
            return str(error)
        shoal.shutdown()
    return written.getvalue()


@pytest.mark.parametrize(
    ("level", "said"),
    [
        ("", ""),
        ("error", ""),
        ("loud", "SHOAL_LOG is one of debug, info, warning, error, not 'loud'."),
    ],
)
def test_without_shoal_log_nothing_is_said_and_an_unknown_level_is_refused(
    run_workers: RunWorkers, level: str, said: str
) -> None:
    environment = {"SHOAL_LOG": level}
    assert run_workers(run_logged, 1, environment=environment, initialize=False) == [said]


def join_from_a_pod() -> tuple[int, int]:
    """Join as one of two pods, whose launcher has said ranks and nothing of machines."""
    name = f"worker-{os.environ['RANK']}"
    socket.gethostname = lambda: name
    for variable in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        del os.environ[variable]
    session = shoal.init(deadline_s=DEADLINE_S)
    return session.host, session.workers_per_host


def test_pods_of_one_worker_each_are_hosts_of_their_own(run_workers: RunWorkers) -> None:
    assert run_workers(join_from_a_pod, 2, initialize=False) == [(0, 1), (1, 1)]
