"""Assembles the subcommands and the options that are no subcommand's.

Importing it imports every subcommand, which takes a while: see `app`.
"""

from __future__ import annotations

import sys
import textwrap
from importlib.metadata import entry_points
from typing import Annotated, Final

import typer

import shoal
from shoal.cli.demo import demo
from shoal.cli.doctor import doctor
from shoal.cli.lab import lab_app
from shoal.cli.plan import plan
from shoal.cli.profile_loss import profile_loss
from shoal.cli.report import report
from shoal.cli.schedule import schedule
from shoal.cli.simulate import simulate
from shoal.cli.train import train
from shoal.cli.warm_up import warm_up

_GROUP: Final = "shoal.commands"
"""The entry points by which other distributions, such as `shoal-bench`, add subcommands."""


def version() -> None:
    """Print the version."""
    sys.stdout.write(f"shoal {shoal.__version__}\n")


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        version()
        raise typer.Exit


VersionOption = Annotated[
    bool,
    typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version),
]


def _shoal(*, version: VersionOption = False) -> None:
    """Train data-parallel on slow networks and with slow workers; measure, simulate, plan."""


def make_app() -> typer.Typer:
    """Return the command line with all its subcommands."""
    # The words in help texts are to be copied: none is broken at a hyphen.
    textwrap.TextWrapper.wordsep_re = textwrap.TextWrapper.wordsep_simple_re
    app = typer.Typer(
        name="shoal",
        no_args_is_help=True,
        rich_markup_mode=None,  # frames and columns leave no room for words
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_shoal)
    for command in (demo, train, schedule, simulate, plan, profile_loss, report, doctor):
        app.command()(command)
    app.command()(warm_up)
    app.command()(version)
    app.add_typer(lab_app, name="lab")
    for added in sorted(entry_points(group=_GROUP), key=lambda each: each.name):
        app.add_typer(added.load(), name=added.name)
    return app
