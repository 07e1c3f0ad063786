"""`shoal doctor`: what the transport meets on a machine and between two, and what to change.

Probing (`machine`, `pair`, `listener`) yields facts; judging them (`judge_machine`, `judge_pair`)
is pure and reads neither clock nor socket. What pairs measured goes into a `doctor_report`, and
becomes a cluster for the planner (`star`, `cluster_file`).
"""

from shoal.faces import face

__getattr__, __dir__ = face(__name__)
