"""`shoal lab`: an emulated cluster on this machine, and commands on its hosts.

Owns the options and the tables. What a lab is, is `shoal.lab`'s.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from shoal.cli.display import output_console
from shoal.cli.options import require_writable
from shoal.jobs.files import indented_json, write_whole

if TYPE_CHECKING:
    from shoal.lab.report import CableCounts

lab_app = typer.Typer(
    help="Emulate a cluster with a real, congested network on this machine.", no_args_is_help=True
)

Spec = Annotated[Path, typer.Argument(metavar="SPEC.toml", help="What the lab is to be.")]
Command = Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="What to run.")]


@lab_app.command()
def run(
    spec: Spec,
    command: Command,
    stats: Annotated[
        Path | None, typer.Option(help="Write what the switches counted here as JSON.")
    ] = None,
) -> None:
    """Run a command for every worker of a lab that is there for it alone.

    It finds its rank and the others in the environment, as under torchrun.
    """
    from shoal.lab.lab import Lab
    from shoal.lab.report import cable_counts
    from shoal.lab.run import check_command, run_workers
    from shoal.lab.spec_file import read_spec

    require_writable(stats)
    wanted = read_spec(spec)
    check_command(command)
    with Lab(wanted) as lab:
        code = run_workers(lab, command)
        rows = cable_counts(wanted.topology, lab.counts())
    if stats is not None:
        write_whole(stats, indented_json(rows))
    raise typer.Exit(code)


def print_counts(rows: list[CableCounts]) -> None:
    """Print what the switches have counted."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("cable")
    for column in ("packets", "MB sent", "marked", "dropped early", "dropped full", "lost"):
        table.add_column(column, justify="right")
    for row in rows:
        counts = (row.marked, row.dropped_early, row.dropped_full, row.lost)
        megabytes = f"{row.sent_bytes / 1e6:.1f}"
        table.add_row(row.cable, str(row.packets), megabytes, *map(str, counts))
    output_console().print(table)
