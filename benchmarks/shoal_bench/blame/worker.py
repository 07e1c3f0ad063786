"""One worker of the job that is blamed: it trains on, is as slow as a file says, and shows the job.

`python -m shoal_bench.blame.worker FOLDER PARAMETERS COMPUTE_MS`; FOLDER/slow-RANK says how many
times longer it computes. Rank 0 writes what the control plane shows to FOLDER/shown-N when
FOLDER/ask-N is there. All end after a step when FOLDER/stop is there.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

import shoal

if TYPE_CHECKING:
    from shoal import Session

_LOOK_S = 0.1


def main(folder: Path, num_parameters: int, compute_s: float) -> None:
    """Train until nobody wants more."""
    torch.set_num_threads(1)
    session = shoal.init()
    model = nn.Linear(num_parameters // 100, 100, bias=False)
    inner = torch.optim.SGD(model.parameters(), lr=1e-6)
    optimizer = shoal.DistributedOptimizer(inner, model, transport="shoal")
    if session.rank == 0:
        threading.Thread(target=_show, args=(session, folder), daemon=True).start()
    data = torch.ones(1, num_parameters // 100)
    while True:
        began = time.monotonic()
        optimizer.zero_grad()
        loss = model(data).square().mean()
        factor = _factor(folder / f"slow-{session.rank}")
        time.sleep(max(0.0, compute_s * factor - (time.monotonic() - began)))
        loss.backward()
        optimizer.step()
        (folder / f"trains-{session.rank}").touch()
        wants_end = torch.tensor(float((folder / "stop").exists()))
        if optimizer.num_steps % 16 == 0:
            session.communicator.all_reduce(wants_end).wait()
            if wants_end:
                break
    optimizer.finish()
    shoal.shutdown()


def _factor(path: Path) -> float:
    try:
        return float(path.read_text() or 1)
    except FileNotFoundError:
        return 1.0


def _show(session: Session, folder: Path) -> None:
    number = 0
    while True:
        time.sleep(_LOOK_S)
        if (folder / f"ask-{number}").exists():
            fresh = folder / "fresh"
            fresh.write_bytes(session.control.show())
            fresh.replace(folder / f"shown-{number}")
            number += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) / 1000)
