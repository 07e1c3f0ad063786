"""A training script of which one rank has another idea than the rest: of the model, say.

Each worker leaves the error it got in a folder, and how many seconds it took to come.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn

import shoal

DEADLINE_S = 25.0


def main(difference: str, folder: Path) -> int:
    is_odd = os.environ["RANK"] == "1"
    if difference == "version" and is_odd:
        shoal.__version__ = "0.0.9"
    if difference == "job key":
        os.environ["SHOAL_JOB_KEY"] = (
            "a key of one worker alone" if is_odd else "the key of the job"
        )
    if difference == "lone job key" and os.environ["RANK"] == "0":
        os.environ["SHOAL_JOB_KEY"] = "a key of rank 0 alone"
    width = 5 if difference == "model" and is_odd else 4
    sync: str | shoal.DSSync = "ripples" if difference == "strategy" and is_odd else "ds-sync"
    if difference == "options" and is_odd:
        sync = shoal.DSSync(interval=2)
    start = time.monotonic()
    try:
        shoal.init(deadline_s=DEADLINE_S)
        start = time.monotonic()
        model = nn.Linear(width, 2)
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        seed = int(difference == "seed" and is_odd)
        shoal.DistributedOptimizer(inner, model, sync=sync, seed=seed)
    except shoal.ShoalError as error:
        report = {"kind": type(error).__name__, "message": str(error)}
        report["seconds"] = time.monotonic() - start
        (folder / f"error-{os.environ['RANK']}.json").write_text(json.dumps(report))
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
