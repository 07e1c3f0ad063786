"""A torch optimizer that synchronizes, and the model in memory that it works on.

Users enter by `optimizer`. What carries the courses of strategies out is `means`, `sums`, `pairs`
and `servers`, one for each family.
"""

from shoal.faces import face

__getattr__, __dir__ = face(__name__)
