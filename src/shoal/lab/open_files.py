"""How many files the process of a lab may have open, and what is said when that is too few.

A lab takes several descriptors for every host and command, and often more than a shell allows at
first: the soft limit, which a process may raise for itself up to the hard one.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import resource
from typing import TYPE_CHECKING

from shoal.errors import ResourceError

if TYPE_CHECKING:
    from collections.abc import Iterator


@functools.cache
def raise_limit() -> int:
    """Let this process have as many files open as it may; return how many it could before.

    Later calls return the same: what the user had, and commands are to have again.
    """
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # more than this kernel allows anybody
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return before


@contextlib.contextmanager
def refused_as(what: str) -> Iterator[None]:
    """Raise `ResourceError` if the system refuses something here; `what` cannot be done then."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno == errno.EMFILE:
            may, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            reason = f"this process may not have more than {may} files open (ulimit -Hn)"
        elif error.filename:
            reason += f": {error.filename}"
        message = f"{what}: {reason}."
        raise ResourceError(message) from error
