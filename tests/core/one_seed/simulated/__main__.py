"""Try histories of whole jobs: `make histories`, or with one seed to see a failure again.

PYTHONPATH=src:tests/core/one_seed python -m simulated --count 1000 --sync ripples
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter

from simulated.job import Job
from simulated.stage import simulated
from simulated.variants import VARIANTS


def main() -> int:
    """Try them; return 0 if all were good."""
    parser = argparse.ArgumentParser(description="Try histories of whole jobs under one seed each.")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=100, help="histories of each kind")
    parser.add_argument("--kind", choices=VARIANTS, help="one kind; all, if none is given")
    given = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):  # only one thread runs at a time
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    num_bad = num_tried = 0
    fired: Counter[str] = Counter()
    os.environ["SHOAL_FLIGHT_DIR"] = "0"
    since = time.monotonic()
    with simulated():
        for seed in range(given.first, given.first + given.count):
            for kind in [given.kind] if given.kind else VARIANTS:
                job = Job(seed, **VARIANTS[kind])
                wrong = job.run()
                num_tried += 1
                fired.update(job.fired)
                if wrong:
                    num_bad += 1
                    print(f"--kind '{kind}' --first {seed} --count 1: {wrong} {job.fired}")
                if sys.stderr.isatty():
                    rate = 3600 * num_tried / (time.monotonic() - since)
                    sys.stderr.write(f"\r{num_tried} histories, {num_bad} bad, {rate:.0f} an hour")
    seconds = time.monotonic() - since
    print(
        f"{num_tried} histories in {seconds:.0f} s, {num_bad} bad, {3600 * num_tried / seconds:.0f}"
        f" an hour; faults that fired: {dict(sorted(fired.items()))}"
    )
    return 1 if num_bad else 0


if __name__ == "__main__":
    sys.exit(main())
