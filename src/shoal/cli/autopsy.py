"""`shoal autopsy`: who was late where, by the records that workers leave when a job goes wrong."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from shoal.decoding import decode_json
from shoal.errors import DataError
from shoal.watch import FlightRecord, timeline
from shoal.watch import autopsy as judged

_NARROWEST: Final = 20
_WIDEST: Final = 120


def autopsy(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Folder of the records: rank-0.json and so on."),
    ],
) -> None:
    """Say who was late where when a job went wrong.

    Workers write what they did last to SHOAL_FLIGHT_DIR after an error of the job, or when SIGUSR1
    asks for it. Put the records of all machines into one folder first.
    """
    records = read_records(folder)
    write = sys.stdout.write
    write("".join(f"{sentence}\n" for sentence in judged(records).sentences))
    write("\n")
    width = min(_WIDEST, max(_NARROWEST, shutil.get_terminal_size().columns - 8))
    for rank, row in timeline(records, width):
        write(f"{rank:>5} |{row}\n")
    write("own work #, waiting ., exchange =; the right end is the last record\n\n")
    for record in records:
        write(f"{record.rank:>5}  {record.host}, step {record.step + 1}: {record.why}\n")


def read_records(folder: Path) -> list[FlightRecord]:
    """Return the records in `folder`, by rank. Raises `DataError` if there are none or bad ones."""
    paths = sorted(folder.glob("rank-*.json"))
    if not paths:
        message = f"There is no record in {folder}: name the folder that has rank-0.json and so on."
        raise DataError(message)
    records = []
    for path in paths:
        try:
            content = path.read_bytes()
        except OSError as error:
            message = f"{path} cannot be read: {error.strerror}."
            raise DataError(message) from error
        records.append(decode_json(content, FlightRecord, f"{path} is no record of a worker"))
    return sorted(records, key=lambda record: record.rank)
