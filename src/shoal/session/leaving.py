"""Leaving a job that goes on, at the end of a step: for machines that are about to be taken away.

Owns the signals that ask for it, and the leave. The training settles its own operations first.
"""

from __future__ import annotations

import logging
import signal
from typing import TYPE_CHECKING, NoReturn

from shoal.errors import UsageError
from shoal.session.session import current_session, shutdown

if TYPE_CHECKING:
    from types import FrameType

_log = logging.getLogger(__name__)


def leave_on(*signals: int) -> None:
    """Let this worker leave at the end of the step in which one of `signals` comes.

    `step()` then raises `SystemExit(0)`, and the other workers go on without this one, which needs
    `shoal.init(min_workers=...)`: no sum is lost, and no worker waits for it. Call it in the main
    thread after `init`, for SIGTERM say, which Slurm, Kubernetes and clouds send some time before
    they take a machine back. Raises `UsageError` in a job of fixed size.
    """
    session = current_session()
    if not session.is_elastic:
        raise UsageError(
            "In a job of fixed size nobody can leave before the end: shoal.init(min_workers=...)"
            " lets the others go on."
        )

    def ask(number: int, _frame: FrameType | None) -> None:
        _log.warning("%s: leaving at the end of this step", signal.Signals(number).name)
        session.endings.is_leaving = True

    for number in signals:
        signal.signal(number, ask)


def leave() -> NoReturn:
    """Leave the job between two steps, and end this process in order."""
    current_session().endings.trainings.clear()  # left on purpose, and not in the middle of one
    shutdown()
    raise SystemExit(0)
