"""Which samples of a data set each worker trains on, and which of them count: a core.

A sample is a position in the order of an epoch here; what lies there is not known.
"""

from shoal.faces import face

__getattr__, __dir__ = face(__name__)
