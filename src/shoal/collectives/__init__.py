"""How a group averages, decided without touching data or network.

`choice` chooses an algorithm; each algorithm makes a plan (`plan`), or a graph of messages
(`graphs`). `buckets` lays gradients out, `sharding` divides elements evenly, `low_rank` says which
gradients are sent as factors.
"""

from shoal.faces import face

__getattr__, __dir__ = face(__name__)
