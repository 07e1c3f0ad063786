"""A process group's methods in all the ways in which torch lets them be called: as over gloo."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from worker_processes import RunWorkers

SIZE = 2
SUM, MAX = dist.ReduceOp.SUM, dist.ReduceOp.MAX


def _called(call: Callable[[Any, Any], Any], *, outputs: int = 0) -> Callable[[Any], list[Any]]:
    """Return what makes a call with this rank's tensor, and some to be filled; and all values."""

    def made(group: Any) -> list[Any]:
        mine = torch.arange(3.0) + group.rank()
        others = [torch.zeros(3) for _ in range(outputs)]
        call(group, (mine, others)).wait()
        return [mine.tolist(), *(each.tolist() for each in others)]

    return made


CALLS: dict[str, Callable[[Any], list[Any]]] = {
    "allreduce tensor": _called(lambda g, t: g.allreduce(t[0])),
    "allreduce tensor op": _called(lambda g, t: g.allreduce(t[0], op=MAX)),
    "allreduce list op": _called(lambda g, t: g.allreduce([t[0]], MAX)),
    "allreduce options": _called(lambda g, t: g.allreduce([t[0]], dist.AllreduceOptions())),
    "broadcast root": _called(lambda g, t: g.broadcast(t[0], root=1)),
    "broadcast positional": _called(lambda g, t: g.broadcast(t[0], 1)),
    "allgather": _called(lambda g, t: g.allgather(t[1], t[0]), outputs=SIZE),
    "allgather lists": _called(lambda g, t: g.allgather([t[1]], [t[0]]), outputs=SIZE),
    "reduce_scatter": _called(
        lambda g, t: g.reduce_scatter(t[1][0], [t[0], t[0] + 1], op=SUM), outputs=1
    ),
    "reduce_scatter list": _called(
        lambda g, t: g.reduce_scatter([t[1][0]], [[t[0], t[0] + 1]]), outputs=1
    ),
    "gather": _called(
        lambda g, t: (
            g.gather(t[1] if g.rank() == 0 else [], t[0], root=0)
            if g.rank() == 0
            else g.gather([], [t[0]], dist.GatherOptions())
        ),
        outputs=SIZE,
    ),
    "scatter": _called(
        lambda g, t: g.scatter(t[1][0], [t[0], t[0] + 1] if g.rank() == 0 else [], root=0),
        outputs=1,
    ),
}


def _reduced(group: Any) -> list[Any]:
    """Reduce to rank 1; what other ranks hold then is nobody's business."""
    mine = torch.arange(3.0) + group.rank()
    group.reduce(mine, root=1, op=MAX).wait()
    return mine.tolist() if group.rank() == 1 else []


def call_all(backend: str) -> dict[str, list[Any]]:
    dist.init_process_group(backend, timeout=timedelta(seconds=20))
    group = dist.group.WORLD
    found = {name: call(group) for name, call in {**CALLS, "reduce": _reduced}.items()}
    group._get_backend(torch.device("cpu"))._set_default_timeout(timedelta(seconds=30))
    dist.destroy_process_group()
    return found


def test_every_way_of_calling_does_what_it_does_over_gloo(run_workers: RunWorkers) -> None:
    ours = run_workers(call_all, SIZE, "shoal", initialize=False)
    if torch.__version__ < "2.9":
        pytest.skip("gloo takes fewer ways until torch 2.8; ours have ended well")
    assert ours == run_workers(call_all, SIZE, "gloo", initialize=False)
