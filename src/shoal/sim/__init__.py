"""Clusters in virtual time: the network by packets or by flows, training on it, no real clock.

The simulator decides nothing that a core decides: ports are those of `switching`, packets those of
`transport`, groups and clocks those of `groups`.
"""

from shoal.faces import face

__getattr__, __dir__ = face(__name__)
