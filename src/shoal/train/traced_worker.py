"""What the trace of a worker's training begins with; see `watch.trace_folder`."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.trace import TracedWorker
from shoal.train.flat_parameters import trained_parameters

if TYPE_CHECKING:
    from torch import nn

    from shoal.session import Session
    from shoal.strategies import AbstractDefinition


def traced_worker(
    session: Session, training: str, strategy: AbstractDefinition, model: nn.Module, seed: int
) -> TracedWorker:
    """Return the description of the worker that a trace begins with."""
    return TracedWorker(
        job=session.mark,
        training=training,
        rank=session.rank,
        host=socket.gethostname(),
        at_ns=time.monotonic_ns(),
        date_ns=time.time_ns(),
        script=Path(sys.argv[0]).name,
        model=type(model).__name__,
        parameters=sum(each.numel() for each in trained_parameters(model)),
        strategy=strategy.word,
        options=strategy.options(),
        seed=seed,
    )
