"""`shoal launch`: a training script as all workers of a job on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from shoal.arguments import seconds
from shoal.cli.launch_display import LaunchDisplay
from shoal.cli.options import READER_IS_GONE, WatchOption, require_writable
from shoal.lab import check_command
from shoal.watch import WATCH_VARIABLE, watch_address


def launch(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="What to run.")],
    workers: Annotated[int, typer.Option("-n", "--workers", min=1, help="Worker processes.")],
    restarts: Annotated[
        int, typer.Option(min=0, help="How often a worker that fails is started again.")
    ] = 3,
    grace: Annotated[
        float, typer.Option(help="Seconds that workers have to end once they are asked to.")
    ] = 1.5,
    port: Annotated[
        int,
        typer.Option(metavar="PORT", min=0, max=65535, help="Where the workers meet; 0: any."),
    ] = 0,
    logs: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write what worker r says to FOLDER/r.log, in place of the terminal.",
        ),
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write the result here.")] = None,
    watch: WatchOption = None,
) -> None:
    """Run a training script as the workers of a job on this machine.

    A worker that dies is started again, and joins the others if the script calls
    shoal.init(min_workers=...). Otherwise all start again, together. See docs/failures.md.
    """
    from shoal.jobs import Launcher, indented_json, write_whole
    from shoal.lab import Relay

    seconds(grace, "--grace")
    require_writable(json)
    check_command(command)
    if (shown_at := watch_address(watch, {})) is not None:
        os.environ[WATCH_VARIABLE] = str(shown_at)
    with LaunchDisplay() as display, Relay(display.write) as relay:
        launcher = Launcher(
            command,
            workers,
            restarts=restarts,
            grace_s=grace,
            port=port,
            logs=logs,
            relay=relay,
            onlooker=display,
        )
        try:
            with launcher:
                code = launcher.run()
        except BrokenPipeError:  # as any command that is ended by SIGPIPE
            code = READER_IS_GONE
        finally:  # after Ctrl-C, too
            if json is not None:
                write_whole(json, indented_json(launcher.result))
    raise typer.Exit(code)
