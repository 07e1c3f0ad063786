"""Ranks that are started as a launcher does it: a command and an environment each, no fork."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Any

from patience import communicate


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(rank: int, size: int, port: int, code: str, **more: str) -> subprocess.Popen[str]:
    """Start a rank that runs `code`, with `more` in its environment."""
    environment = {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        **more,
    }
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def outcomes(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Wait for the processes of a job to end; return each one's exit code, output and errors.

    A job that does not get on any more is given up.
    """
    ended = []
    try:
        for process in processes:
            out, err = communicate(process, processes)
            ended.append((process.returncode, out, err))
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    return ended


def printed_by_ranks(code: str, size: int, **more: str) -> list[dict[str, Any]]:
    """Run `code` as every rank of a job; return what each printed last, as JSON."""
    port = free_port()
    ended = outcomes([start(rank, size, port, code, **more) for rank in range(size)])
    assert [status for status, _, _ in ended] == [0] * size, ended
    return [json.loads(out.splitlines()[-1]) for _, out, _ in ended]
