"""Control planes without sockets, of jobs that begin with a number of workers on one host."""

from __future__ import annotations

from shoal.control.handler import ControlHandler
from shoal.membership import Membership, View


def handler_of(
    size: int, timeout_ns: int, *, now_ns: int = 0, min_members: int | None = None
) -> ControlHandler:
    """Return a handler for `size` workers, who need all of them unless `min_members` is given."""
    membership = Membership(
        View.first(size), timeout_ns, min_members=min_members or 1, is_fixed=min_members is None
    )
    return ControlHandler(membership, timeout_ns, now_ns)
