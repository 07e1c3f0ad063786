"""Imported last by the process that workers are forked from: makes it ready to be copied.

Compiled means are there for all. A worker whose launcher is gone says nothing: a launcher that is
interrupted while a worker is being made leaves it with half of its instructions. And objects are
there to stay: left to the garbage collector, the first full collection of every worker would write
to all of them, and so copy the memory that workers share, a second in which eight workers on two
cores do nothing.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

from shoal.carriers import load_means

if TYPE_CHECKING:
    from types import TracebackType


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if kind is not EOFError:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _report
load_means()
gc.collect()
gc.freeze()
