"""Imported last by the process that workers are forked from: its objects are there to stay.

Left to the garbage collector, the first full collection of every worker would write to all of them,
and so copy the memory that workers share: a second in which eight workers on two cores do nothing.
"""

from __future__ import annotations

import gc

gc.collect()
gc.freeze()
