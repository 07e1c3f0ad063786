"""`shoal bench`: the benchmarks, each a subcommand."""

from __future__ import annotations

import typer

bench_app = typer.Typer(help="Measure Shoal side by side with its peers.", no_args_is_help=True)
