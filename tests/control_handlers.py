"""Control planes of jobs that begin: without sockets, and as a service in this process."""

from __future__ import annotations

import time
from typing import Any

from shoal.control import ControlService, JobKey
from shoal.control.handler import ControlHandler
from shoal.control.terms import Terms, terms_of
from shoal.membership import View


def handler_of(
    size: int, timeout_ns: int, *, now_ns: int = 0, min_members: int | None = None
) -> ControlHandler:
    """Return a handler for `size` workers, who need all of them unless `min_members` is given."""
    terms = Terms(size, timeout_ns, min_members)
    return ControlHandler(terms.membership(View.first(size)), terms, now_ns)


def service_of(
    key: JobKey, view: View, timeout_s: float, min_members: int | None = None, **options: Any
) -> ControlService:
    """Return a service for a job that begins with `view`; see `handler_of`."""
    terms = terms_of(view, timeout_s, min_members)
    handler = ControlHandler(terms.membership(view), terms, time.monotonic_ns())
    return ControlService(key, handler, terms, **options)
