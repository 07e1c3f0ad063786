"""`shoal lab`: an emulated cluster on this machine, and commands on its hosts.

Owns the options and the tables. What a lab is, is `shoal.lab`'s.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from shoal.cli.lab_check import check
from shoal.cli.options import (
    READER_IS_GONE,
    ExampleOption,
    WatchOption,
    file_or_example,
    require_writable,
)
from shoal.errors import UsageError
from shoal.jobs import indented_json, write_whole
from shoal.report import output_console
from shoal.watch import WATCH_VARIABLE, watch_address

if TYPE_CHECKING:
    from shoal.lab import CableCounts

lab_app = typer.Typer(
    help="Emulate a cluster and its network on this machine.", no_args_is_help=True
)

lab_app.command()(check)

Spec = Annotated[Path | None, typer.Argument(metavar="SPEC.toml", help="The cluster to emulate.")]
SpecAndCommand = Annotated[
    list[str],
    typer.Argument(
        metavar="SPEC.toml -- COMMAND...",
        help="The cluster to emulate, which --example names otherwise, and the command to run.",
    ),
]
Host = Annotated[str, typer.Argument(metavar="HOST", help="The name of a host.")]
Command = Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="What to run.")]


Name = Annotated[str | None, typer.Option("--lab", help="The lab's name, if several are up.")]


@lab_app.command()
def run(
    words: SpecAndCommand,
    example: ExampleOption = None,
    stats: Annotated[
        Path | None, typer.Option(help="Write what the switches counted here as JSON.")
    ] = None,
    watch: WatchOption = None,
) -> None:
    """Start a lab and run a command for each of its workers.

    The lab ends with the command, which finds its rank and the others in the environment, as under
    torchrun.
    """
    from shoal.lab import (
        Lab,
        PortForward,
        cable_counts,
        check_command,
        have_rights,
        listen,
        run_workers,
    )
    from shoal.scenario import read_spec

    require_writable(stats)
    first, command = (None, words) if example else (Path(words[0]), words[1:])
    wanted = read_spec(file_or_example(first, example, "a lab"))
    check_command(command)
    shown_at = watch_address(watch, os.environ)
    listener = None if shown_at is None else listen(shown_at.host, shown_at.port)
    have_rights(sys.argv[1:], listener)
    with Lab(wanted) as lab, ExitStack() as shown:
        if listener is not None:
            shown.enter_context(PortForward(listener, [host.path for host in lab.hosts]))
            os.environ[WATCH_VARIABLE] = str(listener.getsockname()[1])
        try:
            code = run_workers(lab, command)
        except BrokenPipeError:  # as any command that is ended by SIGPIPE
            code = READER_IS_GONE
        finally:  # after Ctrl-C, too
            if stats is not None:
                rows = cable_counts(wanted.topology, lab.counts())
                write_whole(stats, indented_json(rows))
    raise typer.Exit(code)


@lab_app.command()
def up(
    spec: Spec = None,
    example: ExampleOption = None,
    name: Annotated[
        str | None, typer.Option(help="The lab's name; default: that of its file.")
    ] = None,
) -> None:
    """Start a lab that stays until `shoal lab down`."""
    from shoal.lab import bring_up, describe
    from shoal.scenario import name_like, parse_name, read_spec

    spec = file_or_example(spec, example, "a lab")
    read_spec(spec)
    called = parse_name(name) if name else name_like(spec.stem)
    bring_up(called, spec.absolute())
    lab = describe(called)
    output_console().print(f"{called}: {len(lab.hosts)} hosts are up: {', '.join(lab.hosts)}")


@lab_app.command("exec")
def execute_at(host: Host, command: Command, lab: Name = None) -> None:
    """Run a command on a host of a lab that is up."""
    from shoal.lab import check_command, chosen, execute

    called = chosen(lab)
    check_command(command)
    raise typer.Exit(execute(called, host, command))


@lab_app.command()
def stats(
    lab: Name = None,
    json: Annotated[
        Path | None, typer.Option(help="Write the counts here as JSON; - for standard output.")
    ] = None,
) -> None:
    """Print what the switches of a lab have counted."""
    from shoal.lab import chosen, count, describe

    if json != Path("-"):
        require_writable(json)
    called = chosen(lab)
    what, rows = describe(called), count(called).rows
    spec = os.fsdecode(what.spec)
    sys.stderr.write(f"{called}, up for {what.seconds:.0f} s, from {spec}\n")
    for doubt in what.doubts:
        sys.stderr.write(f"{doubt}\n")
    if json == Path("-"):
        sys.stdout.write(indented_json(rows).decode())
        return
    if json is not None:
        write_whole(json, indented_json(rows))
    print_counts(rows)


@lab_app.command()
def down(
    name: Annotated[str | None, typer.Argument(help="The lab's name, if several are up.")] = None,
    lab: Name = None,
    every: Annotated[bool, typer.Option("--all", help="All labs of this user.")] = False,
) -> None:
    """End a lab, and whatever runs in it."""
    from shoal.lab import chosen, names_of_labs, take_down

    if sum((name is not None, lab is not None, every)) > 1:
        raise UsageError("Name one lab, by --lab or without, or say --all.")
    for each in names_of_labs() if every else [chosen(name or lab)]:
        take_down(each)
        sys.stderr.write(f"{each} is gone\n")


@lab_app.command("switch-config")
def write_switch_config(
    form: Annotated[
        str, typer.Option("--for", help="Format: linux-tc, sonic, eos or nvue.", metavar="FORMAT")
    ],
    spec: Spec = None,
    example: ExampleOption = None,
    switch: Annotated[
        str | None, typer.Option(help="Which switch; the only one if not given.")
    ] = None,
) -> None:
    """Write a lab's switch as configuration for real gear.

    That is its queues, colors and DSCP map.
    What the device does differently goes to standard error, a sentence each.
    """
    from shoal.lab import switch_configs
    from shoal.scenario import read_spec

    made = switch_configs(read_spec(file_or_example(spec, example, "a lab")), form)
    if switch is None and len(made) == 1:
        (switch,) = made
    if switch not in made:
        what = "There are several switches" if switch is None else f"There is no switch {switch!r}"
        message = f"{what}; say which of {', '.join(made)} with --switch."
        raise UsageError(message)
    for note in made[switch].notes:
        sys.stderr.write(f"{note}\n")
    sys.stdout.write(made[switch].text)


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
