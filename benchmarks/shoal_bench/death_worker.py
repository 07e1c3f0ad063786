"""One worker of section `death`: it trains until it is killed, and writes down when it went on."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

import shoal
from shoal.jobs import write_whole

BATCH, INPUTS, WIDTH = 32, 64, 512


def main(sync: str, folder: Path) -> None:
    """Train by strategy `sync`; leave files in `folder`."""
    torch.set_num_threads(1)
    session = shoal.init(min_workers=1, deadline_s=60)
    model = torch.nn.Sequential(
        torch.nn.Linear(INPUTS, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH)
    )
    inner = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer = shoal.DistributedOptimizer(inner, model, sync=sync)
    has_said = False
    while True:
        optimizer.zero_grad()
        model(torch.randn(BATCH, INPUTS)).square().mean().backward()
        optimizer.step()
        if session.view.epoch and not has_said:
            has_said = True
            write_whole(folder / f"{session.rank}.went-on", repr(time.monotonic()).encode())
        (folder / f"{session.rank}.trains").touch()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
