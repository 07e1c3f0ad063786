"""One rank of the section `transport-memory`: its memory from before the transport to after work.

Run as `python -m shoal_bench.memory_probe '{"elements": ..., ...}'` with RANK and the like set, as
`shoal.connect` wants them; prints one line of JSON. A process of its own, which imports nothing of
the transport before the first look: its code counts too.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

_KIB = 1024


def memory_bytes() -> dict[str, int]:
    """Return this process's resident bytes: its share of all (pss), and what only it has (uss)."""
    sizes = {}
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]:
        name, value = line.split()[:2]
        sizes[name.rstrip(":")] = int(value) * _KIB
    return {"pss": sizes["Pss"], "uss": sizes["Private_Clean"] + sizes["Private_Dirty"]}


def main() -> None:
    """Take the looks and print them."""
    case = json.loads(sys.argv[1])
    array = np.ones(case["elements"], np.float32)
    looks = {"before": memory_bytes()}
    from shoal.session import connect

    looks["imported"] = memory_bytes()
    with connect(deadline_s=case["deadline_s"]) as communicator:
        communicator.barrier()
        looks["opened"] = memory_bytes()
        for _ in range(case["rounds"]):
            array.fill(1.0)
            communicator.all_reduce(array, loss_bound=case["loss_bound"], holes=case["holes"])
        communicator.barrier()
        looks["worked"] = memory_bytes()
        communicator.barrier()
        loss = communicator.stats().total.effective_loss
    if case["loss_bound"] == 0 and not (array == communicator.world_size).all():
        raise AssertionError("the sum is wrong")
    sys.stdout.write(json.dumps({"looks": looks, "effective_loss": loss}) + "\n")


if __name__ == "__main__":
    main()
