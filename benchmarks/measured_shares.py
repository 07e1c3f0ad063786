"""What `ElasticSampler(shares="measured")` saves beside a worker that computes slowly.

    python benchmarks/measured_shares.py > benchmarks/results/measured-shares.json

Four workers on this machine, elastic, all-reduce of a small model over Shoal's transport; computing
is padded by sleeping, so long for each sample. One worker needs more times as long. Equal shares,
measured shares, and those of its true speed given as a mapping, by turns; the steps of the last
epochs count, when shares have settled.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from shoal.jobs import describe_environment

WORKERS, SAMPLES, GLOBAL_BATCH = 4, 4096, 128
PER_SAMPLE_S: Final = 0.001
EPOCHS, COUNTED = 4, 2
FACTORS: Final = (1.0, 2.0, 4.0)
TURNS: Final = 3
SLOW_RANK: Final = 2


def train(shares: Any, factor: float, path: Path) -> None:
    """Train as one worker; rank 0 writes down the mean step of the last epochs, in milliseconds."""
    import torch

    import shoal

    torch.set_num_threads(1)
    session = shoal.init(min_workers=1)
    model = torch.nn.Linear(256, 64)
    sampler = shoal.ElasticSampler(
        range(SAMPLES), session, global_batch=GLOBAL_BATCH, shares=shares
    )
    optimizer = shoal.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model)
    per_sample_s = PER_SAMPLE_S * (factor if session.rank == SLOW_RANK else 1.0)
    begins, sizes = [time.monotonic()], []
    while sampler.epoch < EPOCHS:
        for indices in sampler:
            optimizer.zero_grad()
            model(torch.ones(1, 256)).square().mean().backward()
            time.sleep(per_sample_s * len(indices))
            optimizer.step()
            begins.append(time.monotonic())
            sizes.append(len(indices))
    counted = COUNTED * SAMPLES // GLOBAL_BATCH
    found = {
        "ms": 1000 * (begins[-1] - begins[-1 - counted]) / counted,
        "samples": statistics.fmean(sizes[-counted:]),
    }
    path.with_suffix(f".{session.rank}").write_text(json.dumps(found))
    optimizer.finish()
    shoal.shutdown()


def measure(shares: Any, factor: float) -> tuple[float, float]:
    """Return the mean step in milliseconds, and the slow worker's samples in one."""
    with tempfile.TemporaryDirectory() as folder:
        words = [json.dumps(shares), str(factor), f"{folder}/found"]
        command = ["shoal", "launch", "-n", str(WORKERS), "--", sys.executable, __file__, *words]
        subprocess.run([sys.executable, "-m", *command], check=True, stdout=sys.stderr)
        found = [json.loads(Path(folder, f"found.{rank}").read_text()) for rank in range(WORKERS)]
    return found[0]["ms"], found[SLOW_RANK]["samples"]


def main() -> None:
    """Measure everything by turns, and print rows as JSON."""
    rows = []
    for factor in FACTORS:
        true = dict.fromkeys(range(WORKERS), 100) | {SLOW_RANK: round(100 / factor)}
        ways = {"equal": None, "measured": "measured", "given": true}
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for _ in range(TURNS):
            for way, shares in ways.items():
                found[way].append(measure(shares, factor))
        for way, pairs in found.items():
            times = [ms for ms, _ in pairs]
            row = {
                "slower": factor,
                "shares": way,
                "step_ms": round(statistics.median(times), 2),
                "spread_ms": [round(min(times), 2), round(max(times), 2)],
                "samples_of_the_slow": round(statistics.median(n for _, n in pairs), 2),
            }
            rows.append(row)
            sys.stderr.write(f"{row}\n")
    environment = msgspec.to_builtins(describe_environment())
    json.dump({"environment": environment, "rows": rows}, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    if "RANK" in os.environ:
        given = json.loads(sys.argv[1])
        if isinstance(given, dict):
            given = {int(rank): share for rank, share in given.items()}
        train(given, float(sys.argv[2]), Path(sys.argv[3]))
    else:
        main()
