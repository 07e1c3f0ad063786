"""Try histories of whole jobs: `make histories`, or with one seed to see a failure again.

PYTHONPATH=src:tests/core/one_seed python -m simulated --count 1000 --kind ripples
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

from simulated.job import Job
from simulated.stage import simulated
from simulated.variants import VARIANTS


def main() -> int:
    """Try them; return 0 if all were good."""
    parser = argparse.ArgumentParser(description="Try histories of whole jobs under one seed each.")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=100, help="histories of each kind")
    parser.add_argument(
        "--kind", choices=VARIANTS, action="append", help="one kind, or several; all, if none"
    )
    parser.add_argument("--json", type=Path, help="where to write which faults fired, by kind")
    given = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):  # only one thread runs at a time
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    num_bad = num_tried = 0
    kinds = given.kind or list(VARIANTS)
    fired = {kind: Counter[str]() for kind in kinds}
    os.environ["SHOAL_FLIGHT_DIR"] = "0"
    since = time.monotonic()
    with simulated():
        for seed in range(given.first, given.first + given.count):
            for kind in kinds:
                job = Job(seed, **VARIANTS[kind])
                wrong = job.run()
                num_tried += 1
                fired[kind].update(job.fired)
                if wrong:
                    num_bad += 1
                    print(f"--kind '{kind}' --first {seed} --count 1: {wrong} {job.fired}")
                if sys.stderr.isatty():
                    rate = 3600 * num_tried / (time.monotonic() - since)
                    sys.stderr.write(f"\r{num_tried} histories, {num_bad} bad, {rate:.0f} an hour")
    seconds = time.monotonic() - since
    total = sum(fired.values(), Counter[str]())
    if given.json:
        given.json.write_text(json.dumps(fired))
    print(
        f"{num_tried} histories in {seconds:.0f} s, {num_bad} bad, {3600 * num_tried / seconds:.0f}"
        f" an hour; faults that fired: {dict(sorted(total.items()))}"
    )
    return 1 if num_bad else 0


if __name__ == "__main__":
    sys.exit(main())
