"""A cluster on one machine: a network namespace for each host, joined by an emulated fabric.

Packets cross a software switch that decides with `switching`, in real time. Any program runs on it.
"""

from shoal.faces import face

__getattr__, __dir__ = face(__name__)
