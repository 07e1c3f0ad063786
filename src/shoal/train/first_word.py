"""What the first member says counts for all: rank 0, or the next one if that has been lost."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from shoal.session import Session

_LOOK_S: Final = 0.5
"""How often whoever waits looks whether another worker has become the first."""


def first_word(session: Session, name: str, own: bytes) -> tuple[int, bytes]:
    """Return the first member's rank and its word under `name`; all members bring their `own`.

    Collective among all but newcomers. Raises `DeadlineExceeded` if the first member says nothing.
    """
    session.facts.set(f"{name}/{session.rank}", own)
    end = time.monotonic() + session.deadline_s
    while True:
        first = session.view.members[0]
        place = f"{name}/{first}"
        if first == session.rank:
            return first, own
        if time.monotonic() >= end:
            return first, session.facts.get(place)
        with suppress(TimeoutError):
            session.facts.wait([place], timedelta(seconds=_LOOK_S))
            return first, session.facts.get(place)
