"""The control plane: groups formed at run time, liveness, one place to look when a job hangs.

Small messages between workers and one service over ZeroMQ, authenticated by the job key. It never
touches model data and imports no torch. See docs/control-plane.md.
"""

from __future__ import annotations

from shoal.control.client import ControlClient
from shoal.control.key import JobKey
from shoal.control.messages import Assigned, Dump
from shoal.control.process import ControlProcess
from shoal.control.service import ControlService

__all__ = ["Assigned", "ControlClient", "ControlProcess", "ControlService", "Dump", "JobKey"]
