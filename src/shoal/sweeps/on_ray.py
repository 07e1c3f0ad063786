"""Runs as tasks of Ray: on the cluster that RAY_ADDRESS names, or on this machine.

Ray is imported when it is asked for, and every machine of the cluster needs Shoal.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shoal.errors import ResourceError, UsageError
from shoal.extras import install
from shoal.sweeps.making import Made, make

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from shoal.sweeps.keyed_run import Run


def on_ray(runs: Sequence[tuple[int, Run]]) -> Generator[tuple[int, Made], None, None]:
    """Make the runs on Ray; yield each one's place and what became of it, as it ends.

    Raises `UsageError` if Ray is not installed and `ResourceError` if it loses a run.
    """
    ray = _need_ray()
    is_ours = not ray.is_initialized()
    if is_ours:
        ray.init(log_to_driver=False, logging_level="ERROR")
    waiting: dict[Any, int] = {}
    try:
        task = ray.remote(_make)
        waiting = {task.options(name=run.name).remote(run): place for place, run in runs}
        while waiting:
            ready, _ = ray.wait(list(waiting), num_returns=1)
            for each in ready:
                place = waiting.pop(each)
                yield place, ray.get(each)
    except ray.exceptions.RayError as error:
        first = str(error).strip().partition("\n")[0]
        message = f"Ray lost a run ({type(error).__name__}: {first}). Finished runs are kept."
        raise ResourceError(message) from error
    finally:
        for each in waiting:
            ray.cancel(each, force=True)
        if is_ours:
            ray.shutdown()


def _need_ray() -> Any:
    try:
        return import_module("ray")
    except ImportError as error:
        raise UsageError(f"--ray needs Ray: {install('ray')}.") from error


def _make(run: Run) -> Made:
    return make(run, lambda _: None)
