"""Which strategy to use on a cluster: every candidate is simulated, the table is ranked."""

from shoal.faces import face

__getattr__, __dir__ = face(__name__)
