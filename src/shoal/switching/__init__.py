"""A switch's decisions over arrays: queues, what is dropped or marked, what goes next and where.

Shared by the lab's software switch and the simulator. Time is an argument, in whole picoseconds;
random numbers come from a seed and a counter. Knows no sockets, clocks or topologies' names.
(docs/papers.md, 1.6 and 1.7; docs/switching.md.)
"""

from shoal.faces import face

__getattr__, __dir__ = face(__name__)
