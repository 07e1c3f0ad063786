"""Imports everything that a worker may need, once, in the process that workers are forked from.

But Hivemind: its import makes locks between processes, which all workers of all jobs would share. A
worker that is killed while it holds one would stop every later job.
"""

from __future__ import annotations

import contextlib
import importlib
import os

from shoal.carriers import COMPILER

os.environ.setdefault("RUST_LOG", "warn")  # torchft reads it when it is imported

for _name in (
    COMPILER,
    "shoal_bench.cluster.job_worker",
    "shoal_bench.cluster.contenders",
    "shoal.session.engine_share",
    "torchft",
    "torchft.local_sgd",
    "decent_dp.ddp",
):
    with contextlib.suppress(ImportError):
        importlib.import_module(_name)
