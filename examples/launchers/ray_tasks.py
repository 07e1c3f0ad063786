"""Ray: each worker is a task by itself, which Ray starts again when it dies; it joins the others.

    python examples/launchers/ray_tasks.py 4 train.py

Ray Train starts all workers again when one fails (FailureConfig), from the last checkpoint, so it
cannot keep a job going. With its TorchTrainer a job is of fixed size: docs/frameworks.md.
"""

from __future__ import annotations

import os
import runpy
import secrets
import socket
import sys

import ray


# A process for each task: what one has left of a job would be in the way of the next.
@ray.remote(num_cpus=1, max_calls=1, max_retries=3, retry_exceptions=True)
def work(rank: int, size: int, master: str, ports: tuple[int, int], key: str) -> None:
    """Be a worker that runs the script; its failure is this task's."""
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(size),
        MASTER_ADDR=master,
        MASTER_PORT=str(ports[0]),
        SHOAL_JOB=f"{master}:{ports[1]}",  # rank 0 serves there; who starts again looks there
        SHOAL_JOB_KEY=key,
    )
    sys.argv = SCRIPT
    runpy.run_path(SCRIPT[0], run_name="__main__")


def free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("", 0))
        other.bind(("", 0))
        return one.getsockname()[1], other.getsockname()[1]


if __name__ == "__main__":
    size, SCRIPT = int(sys.argv[1]), sys.argv[2:]
    ray.init()
    # Rank 0 runs on this host, where its address is known; the others wherever there is room.
    here = ray.util.get_node_ip_address()
    at_home = work.options(resources={f"node:{here}": 0.001})
    place = here, free_ports(), secrets.token_hex(16)
    ray.get([(work if rank else at_home).remote(rank, size, *place) for rank in range(size)])
    print(f"all {size} workers have finished")
