"""Imported by the process that workers are forked from: one whose launcher is gone says nothing.

A launcher that is interrupted while a worker is being made leaves it with half of its instructions.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if kind is not EOFError:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _report
