"""Shows the messages of Shoal's loggers, if SHOAL_LOG asks for it.

Loggers are named by room and file (`shoal.train.optimizer`). Without SHOAL_LOG, and unless the
script sets up logging itself, Python shows warnings on standard error and nothing else.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

from shoal.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_ROOT: Final = "shoal"


class _Handler(logging.StreamHandler):
    """Marks Shoal's own handler."""


def show_log(rank: int, environment: Mapping[str, str] = os.environ) -> None:
    """Write log messages of SHOAL_LOG's level and above to standard error, with the rank.

    Does nothing without SHOAL_LOG. Another call replaces the handler of the one before. Raises
    `UsageError` for a level that does not exist.
    """
    wanted = environment.get("SHOAL_LOG")
    if not wanted:
        return
    if wanted.lower() not in _LEVELS:
        message = f"SHOAL_LOG is one of {', '.join(_LEVELS)}, not {wanted!r}."
        raise UsageError(message)
    logger = logging.getLogger(_ROOT)
    for old in [each for each in logger.handlers if isinstance(each, _Handler)]:
        logger.removeHandler(old)
    handler = _Handler()
    form = f"%(asctime)s rank {rank} %(levelname)s %(name)s: %(message)s"
    handler.setFormatter(logging.Formatter(form))
    logger.addHandler(handler)
    logger.setLevel(_LEVELS[wanted.lower()])
    logger.propagate = False
