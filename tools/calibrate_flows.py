"""Measures on packets what flows take that lose some: writes the tables of `shoal.sim.calibration`.

    python tools/calibrate_flows.py [--jobs 2] [TRANSPORT ...]

Every cell is a run of its own with a seed of its own, so a table is the same whatever else is made.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import sys
import time
from pathlib import Path

import msgspec
import numpy as np

import shoal.sim.calibration
from shoal.sim.calibration.calibration_table import TableFile, log_units, share_units
from shoal.sim.calibration.carriers import CARRIERS, CalibratedCarrier
from shoal.sim.calibration.measuring import MeasuredWay, effort, measure

FOLDER = Path(shoal.sim.calibration.__file__).parent
LOSS = [0.0, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1]
ROUND_TRIP_S = [4e-6, 4e-5, 4e-4, 4e-3, 4e-2]
RATE = [1e8, 1e9, 1e10]
PACKETS = [1, 10, 100, 300, 1_000, 3_000, 10_000, 50_000]


def cell(work: tuple[CalibratedCarrier, MeasuredWay]) -> tuple[list[int], int]:
    found = measure(*work)
    return [log_units(each) for each in found.ratios], share_units(found.lost_share)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("transports", nargs="*", help="names of files without .json; default: all")
    options = parser.parse_args()
    shape = len(LOSS), len(ROUND_TRIP_S), len(RATE), len(PACKETS)
    ways = [MeasuredWay(*each) for each in itertools.product(LOSS, ROUND_TRIP_S, RATE, PACKETS)]
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for carrier in CARRIERS:
            if options.transports and Path(carrier.file_name).stem not in options.transports:
                continue
            began = time.monotonic()
            cells = []
            for each in pool.imap(cell, [(carrier, way) for way in ways], chunksize=4):
                cells.append(each)
                sys.stderr.write(f"\r{carrier}: {len(cells)} of {len(ways)}")
            table = TableFile(
                transport=carrier.transport,
                loss_bound=carrier.loss_bound,
                loss=LOSS,
                round_trip_s=ROUND_TRIP_S,
                rate=RATE,
                packets=PACKETS,
                levels=list(effort(carrier).levels),
                log_ratio=np.reshape([each[0] for each in cells], (*shape, -1)).tolist(),
                lost=np.reshape([each[1] for each in cells], shape).tolist(),
            )
            (FOLDER / carrier.file_name).write_bytes(msgspec.json.encode(table) + b"\n")
            took = time.monotonic() - began
            sys.stdout.write(f"{carrier.file_name}: {len(ways)} cells in {took:.0f} s\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
