"""`shoal doctor`: what the transport meets on a machine and between two, and what to change.

Probing (`machine`, `pair`, `listener`) yields facts; judging them (`judge_machine`, `judge_pair`)
is pure and reads neither clock nor socket.
"""

from __future__ import annotations

from shoal.doctor.findings import Finding, Verdict, is_anything_wrong

__all__ = ["Finding", "Verdict", "is_anything_wrong"]
