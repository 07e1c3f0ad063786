"""A training script as a user writes it, that saves a checkpoint when another worker is lost.

One worker can be told to have an accident: to raise, to be killed, to be stopped as a whole, or to
go on computing for ever. What each worker lived through is left in a folder, for a test to read.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import shoal

is_asked_to_end = False


def on_sigterm(number: int, frame: FrameType | None) -> None:
    """Note what torchrun wants of workers when one has failed; ending here would lose the save."""
    global is_asked_to_end  # noqa: PLW0603 - a signal handler has no other way
    is_asked_to_end = True


def main() -> int:
    arguments = read_arguments()
    signal.signal(signal.SIGTERM, on_sigterm)
    session = shoal.init(deadline_s=arguments.deadline)
    torch.manual_seed(session.rank)
    model = nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3))
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = 0
    if arguments.resume is not None:
        checkpoint = torch.load(arguments.resume)
        model.load_state_dict(checkpoint["model"])
        inner.load_state_dict(checkpoint["optimizer"])
        step = checkpoint["step"]
    first = step
    optimizer = shoal.DistributedOptimizer(inner, model, sync=arguments.sync)
    # Where groups are formed among those who are there, the first to be there may step alone: it
    # must not come to its accident before the others train.
    torch.distributed.barrier()
    report: dict[str, Any] = {"first": first, "start": digest(model, inner)}
    try:
        while step != arguments.steps and not is_asked_to_end:
            if session.rank == arguments.culprit and step == arguments.fail_at:
                have_accident(arguments.accident, arguments.folder)
            optimizer.zero_grad()
            inputs = torch.randn(8, 5)
            cross_entropy(model(inputs), inputs.argmax(1) % 3).backward()
            optimizer.step()
            step += 1
        optimizer.finish()
        code = 0
    except shoal.ShoalError as error:
        report |= {"error": type(error).__name__, "lost": getattr(error, "rank", None)}
        report |= {"message": str(error), "raised": time.monotonic()}
        while arguments.await_sigterm and not is_asked_to_end:
            time.sleep(0.01)
        code = error.exit_code
    checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(checkpoint, arguments.folder / f"checkpoint-{session.rank}.pt")
    report |= {"step": step, "end": digest(model, inner), "asked": is_asked_to_end}
    (arguments.folder / f"report-{session.rank}.json").write_text(json.dumps(report))
    return code


def digest(model: nn.Module, inner: torch.optim.Optimizer) -> list[float]:
    """Return what is equal only for equal parameters and optimizer state."""
    momenta = [state["momentum_buffer"] for state in inner.state_dict()["state"].values()]
    tensors = [*model.state_dict().values(), *momenta]
    return [float(tensor.double().norm()) for tensor in tensors if tensor is not None]


def have_accident(accident: str, folder: Path) -> None:
    """Have it, leaving proof."""
    proof = {"pid": os.getpid(), "at": time.monotonic()}
    (folder / "accident.json").write_text(json.dumps(proof))
    match accident:
        case "raise":
            raise RuntimeError("the data loader broke")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "loop":
            while True:
                time.sleep(1)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sync", default="all-reduce")
    parser.add_argument("--accident", choices=["raise", "kill", "stop", "loop"], default="raise")
    parser.add_argument("--culprit", type=int, help="rank that has the accident")
    parser.add_argument("--fail-at", type=int, default=10, help="step of the accident")
    parser.add_argument("--deadline", type=float, default=30.0)
    parser.add_argument("--steps", type=int, default=-1, help="end after so many; -1 for never")
    parser.add_argument("--resume", type=Path, help="checkpoint to start from")
    parser.add_argument("--await-sigterm", action="store_true", help="save only after SIGTERM")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
