"""Who averages with whom, decided without clock, socket or array.

A schedule is known beforehand (`schedule`, `all_schedules`); the generator forms groups while
workers train (`generator`). `topology` describes a network, `server_clock` says whose read waits.
"""

from shoal.faces import face

__getattr__, __dir__ = face(__name__)
