"""A job as one worker sees it: joining, the engine of its transport, leaving.

`session` is torch's (`shoal.init`), `numpy_communicator` goes without torch (`shoal.connect`).
"""

from shoal.faces import face

__getattr__, __dir__ = face(__name__)
