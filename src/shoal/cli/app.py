"""Assembles the subcommands; turns errors and signals into sentences and exit codes.

What takes time to import is imported within `main`, so that a Ctrl-C finds its handler in place.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from typing import TYPE_CHECKING, Final

import shoal
from shoal.errors import ShoalError, UsageError

if TYPE_CHECKING:
    from types import FrameType

    import typer

_ENDINGS: Final = {
    signal.SIGHUP: "hung up",
    signal.SIGINT: "interrupted",
    signal.SIGTERM: "terminated",
}
_BY_SIGNAL: Final = 128
"""Added to a signal's number it is the exit code, as shells have it."""


class _Stopped(BaseException):
    """The user, or whoever started this process, wants it to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = signal.Signals(number)


def version() -> None:
    """Print the version."""
    sys.stdout.write(f"shoal {shoal.__version__}\n")


def main() -> None:
    """Run the command line; exits with the documented code."""
    try:
        for number in _ENDINGS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup and background jobs do
                signal.signal(number, _stop)
        sys.exit(_make_app()(standalone_mode=False))
    except _Stopped as stopped:
        for number in _ENDINGS:  # everything has ended by now
            signal.signal(number, signal.SIG_IGN)
        with contextlib.suppress(OSError):  # a terminal that has hung up cannot be written to
            sys.stderr.write(f"{_ENDINGS[stopped.number]}\n")
        sys.exit(_BY_SIGNAL + stopped.number)
    except ShoalError as error:
        _explain(str(error), *getattr(error, "__notes__", []))
        sys.exit(error.exit_code)
    except Exception as error:
        # The parser's own errors have this method, and no class that typer makes public.
        if not hasattr(error, "format_message"):
            raise
        _explain(error.format_message())
        sys.exit(UsageError.exit_code)


def _make_app() -> typer.Typer:
    """Return the command line with all its subcommands."""
    import typer

    from shoal.cli.bench import bench_app
    from shoal.cli.demo import demo
    from shoal.cli.doctor import doctor
    from shoal.cli.lab import lab_app
    from shoal.cli.plan import plan
    from shoal.cli.profile_loss import profile_loss
    from shoal.cli.report import report
    from shoal.cli.reproduce import reproduce_app
    from shoal.cli.schedule import schedule
    from shoal.cli.simulate import simulate
    from shoal.cli.train import train

    app = typer.Typer(
        name="shoal",
        help="Data-parallel training that keeps moving on slow networks and with slow workers.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    for command in (demo, train, schedule, simulate, plan, profile_loss, report, doctor, version):
        app.command()(command)
    app.add_typer(bench_app, name="bench")
    app.add_typer(lab_app, name="lab")
    app.add_typer(reproduce_app, name="reproduce")
    return app


def _stop(number: int, _frame: FrameType | None) -> None:
    raise _Stopped(number)


def _explain(sentence: str, *notes: str) -> None:
    """Print what was wrong; nothing if the help, printed instead, says it."""
    with contextlib.suppress(OSError):  # the exit code says it to whoever cannot be written to
        if sentence:
            sys.stderr.write(f"error: {sentence}\n")
        for note in notes:
            sys.stderr.write(f"{note}\n")
