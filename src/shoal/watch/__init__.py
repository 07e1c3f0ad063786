"""What a job shows of itself: who is slow, which way loses packets, metrics."""

from shoal.faces import face

__getattr__, __dir__ = face(__name__)
