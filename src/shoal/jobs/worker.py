"""A worker process of a pool: starts once, then trains run after run as the launcher asks.

Owns the process's life: joining the job, the loop over runs, and ending when the launcher does. A
failure becomes a value that the launcher can show; the process itself goes down only with it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from typing import TYPE_CHECKING

import msgspec
import torch

from shoal.errors import ShoalError
from shoal.jobs.board import Board
from shoal.jobs.training import WorkerReport, train
from shoal.runtime.session import Session, start_session
from shoal.workloads import Dataset, load_dataset

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from shoal.jobs.spec import PoolSettings, RunSpec


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a worker could not finish a run."""

    rank: int
    message: str
    """One sentence for the user, or the exception's own words for a bug."""

    kind: str
    """Class of the exception."""

    exit_code: int
    details: str = ""
    """Traceback, for what is not a deliberate error."""

    culprit: int | None = None
    """The rank that is to blame, where that is another one."""


def worker_main(rank: int, settings: PoolSettings, connection: Connection) -> None:
    """Run one worker until the launcher closes `connection` or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher hears Ctrl-C and tells us
    threading.Thread(target=_die_with_launcher, daemon=True).start()
    torch.set_num_threads(1)
    try:
        session = _join(rank, settings)
    except Exception as error:  # noqa: BLE001 - crosses a process boundary as a value
        connection.send(_failure(rank, error))
        return
    connection.send("ready")
    datasets: dict[str, Dataset] = {}
    board = Board(settings.path, settings.workers)
    while (spec := _next_run(connection)) is not None:
        outcome = _run(spec, session, datasets, board, settings)
        connection.send(outcome)
        if isinstance(outcome, Failure):
            break
    session.close()


def _join(rank: int, settings: PoolSettings) -> Session:
    store = torch.distributed.TCPStore("127.0.0.1", settings.store_port, is_master=False)
    torch.distributed.init_process_group(
        "gloo", store=store, rank=rank, world_size=settings.workers
    )
    return start_session(
        deadline_s=settings.deadline_s,
        job_key=settings.job_key,
        control_port=settings.control_port,
    )


def _next_run(connection: Connection) -> RunSpec | None:
    try:
        return connection.recv()
    except EOFError:
        return None


def _run(
    spec: RunSpec,
    session: Session,
    datasets: dict[str, Dataset],
    board: Board,
    settings: PoolSettings,
) -> WorkerReport | Failure:
    try:
        if spec.dataset not in datasets:
            datasets[spec.dataset] = load_dataset(spec.dataset, settings.cache_directory)
        session.pretend_hosts(spec.workers_per_host)
        return train(spec, session, datasets[spec.dataset], board, settings.path)
    except Exception as error:  # noqa: BLE001 - crosses a process boundary as a value
        session.report_failure(error)
        return _failure(session.rank, error)


def _failure(rank: int, error: Exception) -> Failure:
    is_deliberate = isinstance(error, ShoalError)
    return Failure(
        rank=rank,
        message=str(error),
        kind=type(error).__name__,
        exit_code=error.exit_code if isinstance(error, ShoalError) else 1,
        details="" if is_deliberate else traceback.format_exc(),
        culprit=getattr(error, "rank", None),
    )


def _die_with_launcher() -> None:
    """End this process when the launcher is gone, however it went."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
