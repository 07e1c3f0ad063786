"""`shoal chaos`: faults in small jobs on this machine, and whether all is as the pages promise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from shoal.cli.doctor import SOMETHING_IS_WRONG
from shoal.cli.options import require_writable
from shoal.cli.simulation_progress import SimulationProgress
from shoal.report import output_console

if TYPE_CHECKING:
    from shoal.jobs import Case, Row


def chaos(
    faults: Annotated[int, typer.Option(min=1, help="How many faults to try.")] = 20,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed that chooses the faults and their order.")
    ] = 0,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORD",
            help="Only this strategy, role, phase or fault, such as ripples, donor, transfer or"
            " kill; may be repeated.",
        ),
    ] = None,
    case: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="Try this fault alone, named as in the output, such as"
            " ripples/donor/transfer/kill/3; may be repeated.",
        ),
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write the rows here, each at once.")] = None,
) -> None:
    """Strike workers down in every phase, and see what becomes of jobs.

    Kills, freezes and delays workers, rank 0, the control plane, donors of state and newcomers of
    small jobs that go on without lost workers. Exit code 9 if one hangs, ends in another way than
    docs/failures.md says, has a wrong sum or leaves a process behind.
    """
    from shoal.jobs import case_of, draw

    require_writable(json)
    cases = [case_of(each) for each in case or []] or draw(seed, faults, frozenset(only or []))
    rows = _strike_all(cases, json)
    _print(rows)
    if not all(row.is_as_promised for row in rows):
        raise typer.Exit(SOMETHING_IS_WRONG)


def _strike_all(cases: list[Case], json: Path | None) -> list[Row]:
    """Try one fault after the other, with a bar that says how long the rest will take."""
    from shoal.jobs import ChaosFile, describe_environment, indented_json, strike, write_whole

    file = ChaosFile(environment=describe_environment(), rows=[])
    with SimulationProgress() as bar:
        for number, each in enumerate(cases):
            bar.tell(str(each), number / len(cases))
            row = strike(each)
            file.rows.append(row)
            if json is not None:
                write_whole(json, indented_json(file))
            if not row.is_as_promised:
                bar.say(_complaint(row))
            if not row.fired:
                bar.say(f"{each}: did not fire, and does not count")
    return file.rows


def _complaint(row: Row) -> str:
    """Return what is not as it should be."""
    lines = [f"{row.case}, struck at {row.place or 'no time'}: not as promised"]
    for worker in row.workers:
        last = worker.sentence.strip().splitlines()[-1:]
        lines.append(f"  rank {worker.rank} {worker.ended}: {''.join(last)}")
    lines += [f"  left: {command}" for command in row.left]
    return "\n".join(lines)


def _print(rows: list[Row]) -> None:
    """Print how many faults have fired under each strategy, and how workers have ended."""
    from shoal.jobs import Ended

    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("strategy")
    columns = ("faults", "fired", "as promised", *(str(each) for each in Ended), "left")
    for column in columns:
        table.add_column(column, justify="right")
    for sync in [*dict.fromkeys(row.sync for row in rows), None]:
        these = [row for row in rows if sync in (None, row.sync)]
        fired = [row for row in these if row.fired]
        ends = [worker.ended for row in fired for worker in row.workers]
        counts = [len(these), len(fired), sum(row.is_as_promised for row in fired)]
        counts += [ends.count(each) for each in Ended]
        counts.append(sum(len(row.left) for row in these))
        table.add_row(sync or "all", *map(str, counts))
    output_console().print(table)
