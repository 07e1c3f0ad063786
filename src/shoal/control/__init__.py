"""The control plane: groups formed at run time, liveness, one place to look when a job hangs.

Small messages between workers and one service over ZeroMQ, authenticated by the job key. It never
touches model data and imports no torch. See docs/control-plane.md.
"""

from shoal.faces import face

__getattr__, __dir__ = face(__name__)
