"""The control plane: groups formed at run time, liveness, one place to look when a job hangs.

Small messages between workers and one service over ZeroMQ, authenticated by the job key. It never
touches model data and imports no torch. See docs/control-plane.md.
"""

from __future__ import annotations

from shoal.runtime.control.client import ControlClient
from shoal.runtime.control.key import JobKey
from shoal.runtime.control.messages import Assigned, Dump
from shoal.runtime.control.process import ControlProcess
from shoal.runtime.control.service import ControlService

__all__ = ["Assigned", "ControlClient", "ControlProcess", "ControlService", "Dump", "JobKey"]
