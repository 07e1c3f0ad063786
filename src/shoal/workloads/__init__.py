"""The workloads room: the real data sets and models that Shoal trains, measures and demonstrates.

It knows files, arrays and models; it must not know about workers' clocks, networks or strategies.
Importing it is light: torch is loaded when a data set or a model is first asked for.
"""

from shoal.faces import face

__getattr__, __dir__ = face(__name__)
