"""Facts that the control plane itself publishes: which workers have said goodbye, and when.

In a job of fixed size a worker that has left is still a member, and others may wait for it.
"""

from __future__ import annotations

_FINISHED, _IN_THE_MIDDLE = b"finished", b"in the middle"


def departure_of(rank: int) -> str:
    """Return the name of the fact that `rank` has left."""
    return f"left/{rank}"


def how_it_left(*, is_finished: bool) -> bytes:
    """Return that fact's value."""
    return _FINISHED if is_finished else _IN_THE_MIDDLE


def owed(value: bytes | None, awaited: str) -> str:
    """Return what is wrong if a worker that left as `value` says is waited for; "" if nothing.

    Those that wait are in the call `awaited`, in which all workers take part; "" if it is enough
    that the worker has finished its training.
    """
    if value == _IN_THE_MIDDLE:
        return "has left in the middle of a training, without finish()."
    if value == _FINISHED and awaited:
        return f"has left without {awaited}, in which all workers take part."
    return ""
