"""A bound for calls that have none of their own, such as those to torch's store.

torch's store answers no `check`, `get` or `add` when its server is there but silent, and gloo calls
it while it connects. A caller that runs such a call in a thread can stop waiting.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from shoal.errors import DeadlineExceeded

Result = TypeVar("Result")


def within(seconds: float, what: str, call: Callable[[], Result]) -> Result:
    """Return the result of `call`, or raise its exception.

    Raises `DeadlineExceeded` after so many `seconds`, with `what` as the sentence; the call is then
    left behind in its thread.
    """
    outcome: list[tuple[bool, object]] = []
    is_done = threading.Event()

    def run() -> None:
        try:
            outcome.append((True, call()))
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            outcome.append((False, error))
        finally:
            is_done.set()

    threading.Thread(target=run, name="shoal-bounded", daemon=True).start()
    if not is_done.wait(seconds):
        raise DeadlineExceeded(what)
    ((has_returned, result),) = outcome
    if not has_returned:
        assert isinstance(result, BaseException)
        raise result
    return result  # type: ignore[return-value]  # the value that `call` has returned
