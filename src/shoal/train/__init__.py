"""A torch optimizer that synchronizes workers, and the model in memory that it works on.

Users enter by `optimizer`. The strategies' courses are carried out by `means`, `sums`, `pairs` and
`servers`, one for each family.
"""

from shoal.faces import face

__getattr__, __dir__ = face(__name__)
