"""Ranks of a job, each in the namespace of its host, and what they print."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.lab.network.namespaces import Namespace, inside

_LIMIT_S = 50


def run_ranks(
    hosts: Sequence[Namespace], script: str, variables: Sequence[Mapping[str, str]]
) -> list[dict[str, Any]]:
    """Run `script` on each host with its rank's `variables`; return the JSON that each prints."""
    processes = []
    try:
        for rank, host in enumerate(hosts):
            environment = {
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(len(hosts)),
                "SHOAL_JOB_KEY": "a key for this test",
                **variables[rank],
            }
            with inside(host.path):
                process = subprocess.Popen(
                    [sys.executable, "-c", script],
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            processes.append(process)
        ended = [process.communicate(timeout=_LIMIT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert not any(process.returncode for process in processes), ended
    return [json.loads(out) for out, _ in ended]
