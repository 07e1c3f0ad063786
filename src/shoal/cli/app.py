"""Assembles the subcommands; turns errors into sentences and exit codes."""

from __future__ import annotations

import sys

import typer

import shoal
from shoal.cli.bench import bench_app
from shoal.cli.demo import demo
from shoal.cli.report import report
from shoal.cli.schedule import schedule
from shoal.cli.train import train
from shoal.errors import ShoalError

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

app = typer.Typer(
    name="shoal",
    help="Data-parallel training that keeps moving on slow networks and with slow workers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(demo)
app.command()(train)
app.command()(schedule)
app.command()(report)
app.add_typer(bench_app, name="bench")


@app.command()
def version() -> None:
    """Print the version."""
    sys.stdout.write(f"shoal {shoal.__version__}\n")


def main() -> None:
    """Run the command line; exits with the documented code."""
    try:
        app(standalone_mode=True)
    except ShoalError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(INTERRUPTED)
