"""A job as one worker sees it: joining, what its transport stands on, leaving.

`session` is torch's (`shoal.init`), `numpy_communicator` goes without torch (`shoal.connect`).
"""

from shoal.faces import face

__getattr__, __dir__ = face(__name__)
