"""Independent runs, made in parallel processes or on Ray, each written down as soon as it ends.

Knows nothing of what a run computes. Importing it loads neither torch nor Ray.
"""

from shoal.faces import face

__getattr__, __dir__ = face(__name__)
