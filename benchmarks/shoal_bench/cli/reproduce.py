"""`shoal reproduce`: a paper's table beside ours, and tables that no paper has. Owns the list."""

from __future__ import annotations

import typer

from shoal_bench.cli.reproduce_combined import combined
from shoal_bench.cli.reproduce_dlcp import dlcp
from shoal_bench.cli.reproduce_ds_sync import ds_sync
from shoal_bench.cli.reproduce_ripples import ripples

reproduce_app = typer.Typer(
    help="Simulate what the papers measured, beside their figures.", no_args_is_help=True
)
reproduce_app.command("ripples")(ripples)
reproduce_app.command("ds-sync")(ds_sync)
reproduce_app.command("dlcp")(dlcp)
reproduce_app.command("combined")(combined)
