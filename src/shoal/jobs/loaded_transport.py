"""Imported by the process that workers are forked from: the transport's code is there for all.

Where it has not been compiled yet, that happens here: once, and before anybody is timed.
"""

from __future__ import annotations

import contextlib

import torch

from shoal.errors import ShoalError
from shoal.session import load_transport

torch.set_num_threads(1)  # before anything starts more, which no child would have
with contextlib.suppress(ShoalError):  # a worker that wants the transport says what is wrong
    load_transport()
