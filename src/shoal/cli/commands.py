"""Lists the subcommands, and the options that are no subcommand's.

A command's module is imported when the command is called, or its help is read: some of them take
seconds, and `shoal --help` needs none.
"""

from __future__ import annotations

import contextlib
import sys
import textwrap
from collections import UserDict
from importlib import import_module
from importlib.metadata import entry_points
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperGroup

import shoal


def version() -> None:
    """Print the version."""
    sys.stdout.write(f"shoal {shoal.__version__}\n")


class Command(NamedTuple):
    """The place of a command, as module:name of its function or its app, and what it does."""

    place: str
    summary: str

    def load(self, name: str) -> Any:
        """Return the command, called `name`."""
        module, _, attribute = self.place.partition(":")
        found = getattr(import_module(module), attribute)
        app = typer.Typer(rich_markup_mode=None, add_completion=False)
        app.callback()(lambda: None)  # for an app of one command typer makes no group
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name)(found)
        group: Any = typer.main.get_command(app)
        return group.commands[name]


COMMANDS: Final = {
    "demo": Command("shoal.cli.demo:demo", "Compare all strategies side by side, in five minutes."),
    "train": Command(
        "shoal.cli.train:train", "Train a real model with worker processes on this machine."
    ),
    "launch": Command(
        "shoal.cli.launch:launch", "Run a training script as the workers of a job on this machine."
    ),
    "watch": Command("shoal.cli.watch:watch", "Show a running job in a browser."),
    "top": Command("shoal.cli.top:top", "Show a running job in the terminal."),
    "autopsy": Command(
        "shoal.cli.autopsy:autopsy", "Say who was late where when a job went wrong."
    ),
    "schedule": Command(
        "shoal.cli.schedule:schedule", "Show who meets whom in each step, and how fast that mixes."
    ),
    "simulate": Command(
        "shoal.cli.simulate:simulate", "Train in virtual time on a cluster that a file describes."
    ),
    "plan": Command("shoal.cli.plan:plan", "Rank the strategies for your cluster."),
    "profile-loss": Command(
        "shoal.cli.profile_loss:profile_loss", "Measure how much packet loss a training forgives."
    ),
    "report": Command(
        "shoal.cli.report:report",
        "Compare the runs of one or more result files, or traces of your own scripts.",
    ),
    "doctor": Command(
        "shoal.cli.doctor:doctor", "Check this machine and the network for the transport."
    ),
    "lab": Command("shoal.cli.lab:lab_app", "Emulate a cluster and its network on this machine."),
    "chaos": Command(
        "shoal.cli.chaos:chaos", "Strike workers down in every phase, and see what becomes of jobs."
    ),
    "warm-up": Command(
        "shoal.cli.warm_up:warm_up", "Compile now what would be compiled at first use."
    ),
    "version": Command("shoal.cli.commands:version", "Print the version."),
}
"""The package's own commands, by name."""

_ADDED: Final = "shoal.commands"
"""The entry points by which other distributions, such as `shoal-bench`, add a `Command` each."""


def _added_commands() -> dict[str, Command]:
    """Return what other distributions add; without those that are only half there."""
    found: dict[str, Command] = {}
    for each in sorted(entry_points(group=_ADDED), key=lambda each: each.name):
        with contextlib.suppress(ImportError):  # its folder is gone, say: ours go on without it
            found[each.name] = each.load()
    return found


class _Commands(UserDict[str, Any]):
    """Commands by name, each loaded when it is asked for."""

    def __init__(self) -> None:
        self.described = {**COMMANDS, **_added_commands()}
        super().__init__(dict.fromkeys(self.described))

    def __getitem__(self, name: str) -> Any:
        if self.data[name] is None:
            self.data[name] = self.described[name].load(name)
        return self.data[name]


class _Group(TyperGroup):
    """The command `shoal`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "commands": {}})
        self.commands: Any = _Commands()

    def list_commands(self, _context: Any) -> list[str]:
        """Return the names of all commands, in the order in which help lists them."""
        return list(self.commands)

    def format_commands(self, _context: Any, formatter: Any) -> None:
        """Write the list of commands; no module is imported for it."""
        with formatter.section("Commands"):
            described = self.commands.described
            formatter.write_dl([(name, each.summary) for name, each in described.items()])


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
        cls=_Group,
        no_args_is_help=True,
        rich_markup_mode=None,  # frames and columns leave no room for words
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_shoal)
    return app
