"""A job's view of itself: slow workers, links that lose packets, metrics."""

from shoal.faces import face

__getattr__, __dir__ = face(__name__)
