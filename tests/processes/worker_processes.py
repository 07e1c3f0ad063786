"""A harness that runs one function in several worker processes, joined by gloo on loopback.

Workers are forked from a server that has imported torch, so that a group of eight starts in under a
second. The store that joins them lives in the test's process, as torchrun's agent does it: its port
is free by construction, and no worker's death takes it away.
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import multiprocessing.connection
import os
import pickle
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import timedelta
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any, Protocol

import forked_control
import pytest
import torch
import torch.distributed as dist

from shoal.jobs import fork_server

DEADLINE_S = 40.0
"""Default limit on one run, below pytest's own."""

context = multiprocessing.get_context("forkserver")
# What takes a while to load, once and not once per worker; torch._dynamo is what torch loads at the
# first use of any optimizer.
context.set_forkserver_preload(
    [
        "pytest",
        "torch._dynamo",
        "torch.distributed.checkpoint.state_dict",
        "shoal.train.optimizer",
        "forked_control",
        "pydantic.type_adapter",  # the command line's words are read with it
        "shoal.cli.commands",
        "shoal.cli.doctor",
        "shoal.doctor.listener",
        "shoal.doctor.pair",
        "shoal.lab.lab",
        "shoal.lab.report",
        "shoal.scenario.spec_file",
        fork_server.TRANSPORT_CODE,
        fork_server.READY,
    ]
)


def start_server() -> None:
    """Start what workers are forked from, with what is named above: the first to start it says."""
    forkserver.ensure_running()


class RunWorkers(Protocol):
    """What the fixture `run_workers` is."""

    def __call__(
        self,
        function: Callable[..., Any],
        world_size: int,
        *arguments: Any,
        may_die: tuple[int, ...] = (),
        initialize: bool = True,
        deadline_s: float = DEADLINE_S,
        environment: Mapping[str, str] = {},
        num_more: int = 0,
    ) -> list[Any]: ...


def run_workers(
    function: Callable[..., Any],
    world_size: int,
    *arguments: Any,
    may_die: tuple[int, ...] = (),
    initialize: bool = True,
    deadline_s: float = DEADLINE_S,
    environment: Mapping[str, str] = {},
    num_more: int = 0,
) -> list[Any]:
    """See the fixture of this name. `num_more` processes have ranks that the job lacks at first."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipes = [context.Pipe() for _ in range(world_size + num_more)]
    processes = [
        context.Process(
            target=_work,
            args=(
                theirs,
                rank,
                world_size,
                {"MASTER_PORT": str(store.port), **environment},
                forked_control.server(),
                initialize,
                function,
                arguments,
            ),
            daemon=True,
        )
        for rank, (_, theirs) in enumerate(pipes)
    ]
    try:
        for process, (_, theirs) in zip(processes, pipes, strict=True):
            process.start()
            theirs.close()
        ours = [each for each, _ in pipes]
        outcomes = _collect(ours, processes, time.monotonic() + deadline_s)
    finally:
        _end(processes, [ours for ours, _ in pipes])
    failures = [
        f"rank {rank}: {outcome[1]}"
        for rank, outcome in enumerate(outcomes)
        if outcome[0] == "failed" or (outcome[0] == "died" and rank not in may_die)
    ]
    if failures:
        pytest.fail("\n".join(failures), pytrace=False)
    return [value if kind == "returned" else None for kind, value in outcomes]


def run_script(code: str) -> Any:
    """Run `code` as a worker's script; return what it printed last, read as JSON."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "script", "exec"), {"__name__": "__main__"})
    return json.loads(printed.getvalue().splitlines()[-1])


def _collect(
    pipes: list[Connection], processes: list[ForkServerProcess], deadline: float
) -> list[tuple[str, Any]]:
    """Return ("returned", value), ("failed", traceback) or ("died", why) of each worker.

    A dead worker's pipe may still be open: what it has forked holds it, too.
    """
    pipe_of = {each.sentinel: pipe for pipe, each in zip(pipes, processes, strict=True)}
    outcomes: dict[Connection, tuple[str, Any]] = {}
    while waiting := [pipe for pipe in pipes if pipe not in outcomes]:
        living = [sentinel for sentinel, pipe in pipe_of.items() if pipe not in outcomes]
        left_s = max(0.0, deadline - time.monotonic())
        ready = multiprocessing.connection.wait([*waiting, *living], left_s)
        for pipe in {pipe_of.get(each, each) for each in ready}:
            try:
                has_ended = pipe not in ready and not pipe.poll()
                said = None if has_ended else pickle.loads(pipe.recv_bytes())
            except (EOFError, ConnectionResetError):
                said = None
            outcomes[pipe] = said or ("died", "died without a result")
        if not ready:
            late = ("failed", "did not return before the deadline")
            outcomes.update(dict.fromkeys(waiting, late))
    return [outcomes[pipe] for pipe in pipes]


def _end(processes: list[ForkServerProcess], pipes: list[Connection]) -> None:
    for pipe in pipes:
        pipe.close()
    for process in processes:
        if process.pid is not None:
            process.join(5)
            if process.exitcode is None:
                process.kill()
                process.join(5)
            process.close()


def _work(
    pipe: Connection,
    rank: int,
    world_size: int,
    environment: Mapping[str, str],
    control_server: str,
    initialize: bool,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    forked_control.use(control_server)
    os.environ.update(
        MASTER_ADDR="127.0.0.1",
        RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(world_size),
        TORCHELASTIC_USE_AGENT_STORE="True",
        GLOO_SOCKET_IFNAME="lo",
        **environment,
    )
    try:
        if initialize:
            dist.init_process_group("gloo", timeout=timedelta(seconds=DEADLINE_S))
        outcome = ("returned", function(*arguments))
    except BaseException:  # noqa: BLE001 - whatever it is, the test's process is to show it
        outcome = ("failed", traceback.format_exc())
    pipe.send_bytes(pickle.dumps(outcome))  # by value: torch's own pickling shares memory
    try:
        pipe.recv()  # until the test's process has everyone's result and closes its end
    except (EOFError, ConnectionResetError):
        os._exit(0)  # connections that a test broke on purpose would hold up an orderly exit
