"""Runs a command; turns errors and signals into sentences and exit codes.

What takes time to import is imported within `main`, so that a Ctrl-C finds its handler in place.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from shoal.errors import ShoalError, UsageError
from shoal.extras import EXTRA_OF, install

if TYPE_CHECKING:
    from types import FrameType

_ENDINGS: Final = {
    signal.SIGHUP: "hung up",
    signal.SIGINT: "interrupted",
    signal.SIGTERM: "terminated",
}
_BY_SIGNAL: Final = 128
"""The number that makes an exit code of a signal's number when it is added, as shells have it."""

_AGAIN_S: Final = 0.01
"""The seconds after which a signal whose exception was lost is sent again."""

_OF_THE_BENCHMARKS: Final = ("bench", "reproduce")
"""Commands that another distribution adds."""

_OUTPUT: Final = 1
"""The descriptor of standard output."""


class _Stopped(BaseException):
    """The user, or the program that started this process, wants it to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = signal.Signals(number)


def main() -> None:
    """Run the command line; exits with the documented code."""
    output = _own_output()
    sys.unraisablehook = _stop_again
    try:
        for number in _ENDINGS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup and background jobs do
                signal.signal(number, _stop)
        code = _run()
        sys.stdout.flush()
    except _Stopped as stopped:
        for number in _ENDINGS:  # everything has ended by now
            signal.signal(number, signal.SIG_IGN)
        with contextlib.suppress(OSError):  # a terminal that has hung up cannot be written to
            sys.stderr.write(f"{_ENDINGS[stopped.number]}\n")
        sys.exit(_BY_SIGNAL + stopped.number)
    except (BrokenPipeError, SystemExit) as ending:  # typer makes the one of the other
        if not _has_no_reader(output):
            cause = ending.__context__
            raise (cause if isinstance(cause, BrokenPipeError) else ending) from None
        os.dup2(os.open(os.devnull, os.O_WRONLY), _OUTPUT)  # for what is yet to be flushed
        sys.exit(_BY_SIGNAL + signal.SIGPIPE)
    except ShoalError as error:
        _explain(str(error), *getattr(error, "__notes__", []))
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRA_OF:
            raise
        _explain(f"This command needs {missing}: {install(EXTRA_OF[missing])}.")
        sys.exit(UsageError.exit_code)
    except Exception as error:
        # The parser's own errors have this method, and no class that typer makes public.
        if not hasattr(error, "format_message"):
            raise
        _explain(error.format_message() + _commands_of(error))
        sys.exit(UsageError.exit_code)
    sys.exit(code)


def _run() -> Any:
    """Run the command that the arguments name; return its exit code."""
    from shoal.cli.commands import make_app

    return make_app()(prog_name="shoal", standalone_mode=False)


def _commands_of(error: Any) -> str:
    """Return which commands there are if the first word names none, else nothing."""
    commands = getattr(getattr(getattr(error, "ctx", None), "command", None), "commands", None)
    words = error.format_message()
    if not commands or not words.startswith("No such command"):
        return ""
    if any(f"'{name}'" in words for name in _OF_THE_BENCHMARKS):
        return " It comes with the benchmarks: pip install ./benchmarks in Shoal's source folder."
    return f" There are {', '.join(commands)}."


def _stop(number: int, _frame: FrameType | None) -> None:
    raise _Stopped(number)


def _stop_again(unraisable: sys.UnraisableHookArgs) -> None:
    """Send a signal once more that came while Python was in a place that cannot raise.

    In a weak reference's callback, as importing has them, and in destructors.
    """
    if isinstance(unraisable.exc_value, _Stopped):
        number = unraisable.exc_value.number
        threading.Timer(_AGAIN_S, os.kill, (os.getpid(), number)).start()
    else:
        sys.__unraisablehook__(unraisable)


def _own_output() -> int:
    """Return a descriptor of standard output that stays: rich replaces 1 when its reader is gone.

    Where it was closed, it becomes the null device: what is opened next would get the output.
    """
    if sys.stdout is None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), _OUTPUT)
        sys.stdout = os.fdopen(_OUTPUT, "w", closefd=False)
    return os.dup(_OUTPUT)


def _has_no_reader(descriptor: int) -> bool:
    """Return whether the reader of what is written to `descriptor` is gone."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def _explain(sentence: str, *notes: str) -> None:
    """Print what was wrong; nothing if the help, printed instead, says it."""
    with contextlib.suppress(OSError):  # the exit code says it to whoever cannot be written to
        if sentence:
            sys.stderr.write(f"error: {sentence}\n")
        for note in notes:
            sys.stderr.write(f"{note}\n")
